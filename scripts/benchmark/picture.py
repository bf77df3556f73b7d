"""Draw the README's picture from a real run: what micro-batches need, and that they train as the full batch does."""

from __future__ import annotations

import logging
from pathlib import Path

import matplotlib
from accuracy import SETTINGS, micro_batch_trainer, mini_batch_trainer, new_model, train
from common import PROJECT, load_graph
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator, PercentFormatter

from betty import partition, sample_full_batch
from betty.datasets import Dataset
from betty.files import whole_file
from betty.micro_batch_train import input_nodes

GRAPH = "synthetic-arxiv"
NUM_PARTS = (1, 2, 4, 8, 16, 32)
STYLES = {"REG": ("o-", "#0072B2"), "metis": ("s--", "#009E73"), "random": ("^:", "#D55E00")}


def plot_sizes(axes: Axes, dataset: Dataset) -> None:
    """The largest micro-batch's share of the full batch's input nodes, per method and K."""
    full_batch = sample_full_batch(dataset.graph, dataset.train_ids, [10, 25], seed=1236)
    num_inputs = full_batch.input_ids.numel()
    for method, (style, color) in STYLES.items():
        parts = [partition(full_batch, k, method) for k in NUM_PARTS]
        shares = [int(input_nodes(full_batch, part).max()) / num_inputs for part in parts]
        axes.plot(NUM_PARTS, shares, style, color=color, label=method)
    axes.set_xscale("log", base=2)
    axes.set_xticks(NUM_PARTS, [str(k) for k in NUM_PARTS])
    axes.yaxis.set_major_formatter(PercentFormatter(1.0))
    axes.set(xlabel="micro-batches (K)", ylim=(0, 1.05), title="On the device at a time")
    axes.set_ylabel("input nodes of the largest micro-batch\n÷ input nodes of the full batch")
    axes.legend(frameon=False)


def plot_losses(axes: Axes, dataset: Dataset) -> None:
    """The loss of the full batch, of 8 micro-batches and of mini-batches."""
    setting = SETTINGS[GRAPH]
    curves = {
        "full batch": (micro_batch_trainer(dataset, 1, 0), "-", "0.65", 5),
        "8 micro-batches": (micro_batch_trainer(dataset, 8, 0), "--", "black", 1.5),
        f"mini-batches of {setting.mini_batch_size:,}": (
            mini_batch_trainer(dataset, setting.mini_batch_size, 0),
            ":",
            "#D55E00",
            1.5,
        ),
    }
    for label, (train_epoch, style, color, width) in curves.items():
        losses = train(new_model(dataset, setting, "sage", 0), train_epoch, dataset, setting, 0)["losses"]
        axes.plot(range(1, len(losses) + 1), losses, style, color=color, linewidth=width, label=label)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.set(xlabel="epoch", ylabel="training loss", title="One step of the whole batch, or many of small ones")
    axes.legend(frameon=False)


def main() -> None:
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    dataset = load_graph(GRAPH)
    with matplotlib.rc_context({"font.size": 10, "axes.spines.top": False, "axes.spines.right": False}):
        figure = Figure(figsize=(10, 3.8), layout="constrained")
        sizes, losses = figure.subplots(1, 2)
        plot_sizes(sizes, dataset)
        plot_losses(losses, dataset)
        path = Path(PROJECT / "docs" / "betty.png")
        with whole_file(path) as file:
            figure.savefig(file, format="png", dpi=130)
    print(f"drawn from a run on {GRAPH}: {path}")


if __name__ == "__main__":
    main()
