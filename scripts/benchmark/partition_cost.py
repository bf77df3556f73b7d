"""What the first partition costs that is kept, against one by REG: seconds and memory, each in its own process."""

from __future__ import annotations

import json
import statistics
import sys
import tempfile
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import torch
from common import describe_machine, load_graph, markdown_table, peak_resident_bytes
from partition_common import (
    FAN_OUTS,
    METHODS_TO_COMPARE,
    REFERENCE,
    SEEDS,
    SETTING,
    TESTED,
    Figure,
    chosen_graphs,
    figure_table,
    graph_sage,
    label,
    measured_alone,
    provenance,
    timed_parts,
)
from tqdm import tqdm

from betty import FullBatch, sample_full_batch
from betty.blocks import chain_blocks
from betty.command_line import run_command
from betty.memory import size_text
from betty.micro_batch_train.plan import model_estimate

NUM_PARTS = 16
REPETITIONS = 3


@dataclass(frozen=True)
class Cost:
    """Of one partition from nothing; medians over the seeds.

    Args:
        seconds: median of :data:`REPETITIONS`.
        peak: resident bytes of the process.
        added: by how much partitioning raised them.
    """

    seconds: float
    peak: float
    added: float


def store(path: Path, full_batch: FullBatch) -> None:
    arrays = {"node_ids": full_batch.input_ids.numpy()}
    for layer, block in enumerate(full_batch.blocks):
        arrays |= {f"indptr_{layer}": block.indptr.numpy(), f"indices_{layer}": block.indices.numpy()}
    np.savez(path, **arrays)


def load(path: Path) -> FullBatch:
    """What :func:`store` wrote. It is read into its place, so that the peak before partitioning is what is in use."""
    with np.load(path) as arrays:
        tensors = {name: torch.from_numpy(arrays[name]) for name in arrays.files}
    layers = [(tensors[f"indptr_{layer}"], tensors[f"indices_{layer}"]) for layer in range(len(FAN_OUTS))]
    return FullBatch(chain_blocks(layers, tensors["node_ids"]))


def measure_here(path: str, method: str, seed: str, num_features: str, num_classes: str) -> dict[str, float]:
    """The cost of a method, in this process."""
    full_batch = load(Path(path))
    estimate = model_estimate(graph_sage(int(num_features), int(num_classes)), "cpu")
    before = peak_resident_bytes()
    seconds = [timed_parts(full_batch, NUM_PARTS, method, int(seed), estimate)[1]]
    peak = peak_resident_bytes()
    for _ in range(REPETITIONS - 1):
        seconds.append(timed_parts(full_batch, NUM_PARTS, method, int(seed), estimate)[1])
    return {"seconds": statistics.median(seconds), "peak": peak, "added": peak - before}


def print_measured_here(*arguments: str) -> None:
    print(json.dumps(measure_here(*arguments)))


def measure(graph: str) -> dict[str, Cost]:
    """The cost of every method on the full batches of a graph."""
    dataset = load_graph(graph)
    costs: dict[str, list[dict[str, float]]] = {method: [] for method in METHODS_TO_COMPARE}
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "full-batch.npz"
        for seed in tqdm(SEEDS, label(graph), leave=False):
            store(path, sample_full_batch(dataset.graph, dataset.train_ids, FAN_OUTS, seed))
            for method, of_method in costs.items():
                of_method.append(
                    measured_alone(__file__, path, method, seed, dataset.num_features, dataset.num_classes)
                )
    return {method: median_cost(of_method) for method, of_method in costs.items()}


def median_cost(costs: list[dict[str, float]]) -> Cost:
    return Cost(**{name: statistics.median(cost[name] for cost in costs) for name in costs[0]})


def row(graph: str, method: str, cost: Cost, reference: Cost) -> list[str]:
    ratios = [cost.seconds / reference.seconds, cost.peak / reference.peak]
    cells = ["", ""] if method == REFERENCE else [f"{ratio:.2f}" for ratio in ratios]
    sizes = [size_text(size) for size in (cost.peak, cost.added)]
    return [graph, method, f"{cost.seconds:.3f}", *sizes, *cells]


def figures(costs: dict[str, dict[str, Cost]]) -> list[Figure]:
    tested = {graph: (of_graph[TESTED], of_graph[REFERENCE]) for graph, of_graph in costs.items()}
    return [
        Figure(
            f"seconds of the first partition ÷ {REFERENCE}'s",
            10,
            {graph: cost.seconds / reference.seconds for graph, (cost, reference) in tested.items()},
            digits=2,
        ),
        Figure(
            f"peak resident memory ÷ {REFERENCE}'s",
            1,
            {graph: cost.peak / reference.peak for graph, (cost, reference) in tested.items()},
        ),
        Figure(
            f"MiB that partitioning adds to it, less those of {REFERENCE}",
            0,
            {graph: (cost.added - reference.added) / (1 << 20) for graph, (cost, reference) in tested.items()},
            digits=1,
        ),
    ]


def main() -> None:
    costs = {label(graph): measure(graph) for graph in chosen_graphs()}
    print(f"### A first partition into {NUM_PARTS} parts, from nothing: {SETTING}, medians over {len(SEEDS)} seeds\n")
    sizes = ["peak resident memory", "added by partitioning"]
    ratios = [f"seconds ÷ {REFERENCE}'s", f"peak ÷ {REFERENCE}'s"]
    rows = [
        row(graph, method, cost, of_graph[REFERENCE])
        for graph, of_graph in costs.items()
        for method, cost in of_graph.items()
    ]
    print(markdown_table(["graph", "method", "seconds", *sizes, *ratios], rows))
    print(f"\n{figure_table(figures(costs))}\n\n{provenance(describe_machine(), 'partition_cost')}")


if __name__ == "__main__":
    run_command("partition_cost", partial(print_measured_here, *sys.argv[1:]) if len(sys.argv) > 1 else main)
