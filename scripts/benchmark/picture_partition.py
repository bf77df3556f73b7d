"""Draw the README's picture of partitioning by locality: the order, its parts, and how even they are in memory."""

from __future__ import annotations

from pathlib import Path

import matplotlib
import numpy as np
from common import PROJECT, load_graph
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from betty import FullBatch, GraphSAGE, partition, sample_full_batch, split
from betty.files import whole_file
from betty.memory import parse_size
from betty.micro_batch_train import model_estimate

SMALL_GRAPH, NUM_SMALL_PARTS = "cora", 8
LARGE_GRAPH, NUM_PARTS = "synthetic-arxiv", 16
FAN_OUTS = [10, 25]
COLORS = {"REG": "0.72", "locality": "#0072B2"}
HATCHES = {"REG": "////", "locality": ""}


def plot_needs(axes: Axes, full_batch: FullBatch, parts: list[np.ndarray], title: str, has_bounds: bool) -> None:
    """A point for every source of the last block that an output node needs, both sorted by part."""
    block = full_batch.blocks[-1]
    rank = np.empty(block.num_dst, dtype=np.int64)
    rank[np.concatenate(parts)] = np.arange(block.num_dst)
    output = rank[np.repeat(np.arange(block.num_dst), block.in_degrees().numpy())]
    node = block.indices.numpy()
    first = np.full(block.num_src, block.num_dst)
    np.minimum.at(first, node, output)
    column = np.empty(block.num_src, dtype=np.int64)
    column[np.argsort(first, kind="stable")] = np.arange(block.num_src)
    axes.plot(column[node], output, ",", color="black", alpha=0.8)
    if has_bounds:
        for bound in np.cumsum([len(part) for part in parts])[:-1]:
            axes.axhline(bound, color=COLORS["locality"], linewidth=0.8)
    axes.set(xlim=(0, block.num_src), ylim=(block.num_dst, 0), title=title)
    axes.set(xlabel="nodes that they need", ylabel="output nodes", xticks=[], yticks=[])


def plot_memory(axes: Axes) -> None:
    """The estimated memory of every micro-batch, and the mean as a line."""
    dataset = load_graph(LARGE_GRAPH)
    full_batch = sample_full_batch(dataset.graph, dataset.train_ids, FAN_OUTS, seed=1236)
    estimate = model_estimate(GraphSAGE(dataset.num_features, 64, dataset.num_classes, num_layers=2), "cpu")
    unit = parse_size("1MiB")
    for shift, method in ((-0.2, "REG"), (0.2, "locality")):
        parts = partition(full_batch, NUM_PARTS, method, estimate=estimate)
        sizes = np.array([estimate(micro_batch).peak / unit for micro_batch in split(full_batch, parts)])
        axes.bar(
            np.arange(len(sizes)) + shift,
            sizes,
            0.4,
            color=COLORS[method],
            hatch=HATCHES[method],
            edgecolor="0.35",
            linewidth=0.4,
            label=f"{method}, mean {sizes.mean():.0f} MiB, largest {sizes.max():.0f} MiB",
        )
    axes.set(xlabel="micro-batch", ylabel="estimated peak memory (MiB)", xticks=[])
    axes.set_ylim(0, 1.3 * axes.get_ylim()[1])
    axes.set_title(f"{NUM_PARTS} parts of {LARGE_GRAPH}")
    axes.legend(frameon=False, loc="upper center", fontsize=9)


def main() -> None:
    dataset = load_graph(SMALL_GRAPH)
    full_batch = sample_full_batch(dataset.graph, dataset.train_ids, FAN_OUTS, seed=1236)
    parts = [part.numpy() for part in partition(full_batch, NUM_SMALL_PARTS, "locality")]
    with matplotlib.rc_context({"font.size": 10, "axes.spines.top": False, "axes.spines.right": False}):
        figure = Figure(figsize=(12, 3.8), layout="constrained")
        before, after, memory = figure.subplots(1, 3, width_ratios=[1, 1, 1.4])
        plot_needs(before, full_batch, [np.arange(full_batch.output_ids.numel())], f"{SMALL_GRAPH}, as it comes", False)
        plot_needs(after, full_batch, parts, f"in {NUM_SMALL_PARTS} parts by locality", True)
        plot_memory(memory)
        path = Path(PROJECT / "docs" / "partition.png")
        with whole_file(path) as file:
            figure.savefig(file, format="png", dpi=130)
    print(f"drawn from {SMALL_GRAPH} and {LARGE_GRAPH}: {path}")


if __name__ == "__main__":
    main()
