"""A partition at the size of ogbn-products: the order, the parts, the split, and the memory of all of it."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from functools import partial
from typing import TypeVar

from common import describe_machine, load_graph, markdown_table, peak_resident_bytes
from partition_common import (
    FAN_OUTS,
    SEEDS,
    Figure,
    chosen_graphs,
    figure_table,
    label,
    measured_alone,
    order_of,
    provenance,
)
from tqdm import tqdm

from betty import redundancy, sample_full_batch, split
from betty.command_line import run_command
from betty.memory import size_text
from betty.micro_batch_train.graph_partitioner import positions_by_part
from betty.micro_batch_train.locality_parts import LocalityParts
from betty.micro_batch_train.ordered_outputs import OrderedOutputs

LARGE_GRAPHS = ("synthetic-products",)
NUM_PARTS = 12
STEPS = {
    "load": "load the data set",
    "sample": "sample a full batch",
    "order_of_data_set": "make the order of the data set",
    "order": "make an order of the full batch",
    "rest": "make the first parts by the latter",
    "split": "split an epoch into its micro-batches",
}
"""What is timed, one after the other."""

Made = TypeVar("Made")


def timed(seconds: dict[str, float], step: str, work: Callable[[], Made]) -> Made:
    """What a piece of work makes; its seconds go into ``seconds``."""
    start = time.perf_counter()
    made = work()
    seconds[step] = time.perf_counter() - start
    return made


def measure_here(graph: str) -> dict[str, float]:
    """Seconds of all steps, and what came of them, in this process."""
    seed, seconds = SEEDS[0], {}
    dataset = timed(seconds, "load", lambda: load_graph(graph))
    full_batch = timed(seconds, "sample", lambda: sample_full_batch(dataset.graph, dataset.train_ids, FAN_OUTS, seed))
    before = peak_resident_bytes()
    timed(seconds, "order_of_data_set", lambda: order_of(dataset, seed))
    outputs = OrderedOutputs(full_batch, seed)
    timed(seconds, "order", lambda: outputs.leaves)
    parts = timed(seconds, "rest", lambda: positions_by_part(LocalityParts(outputs)(NUM_PARTS)))
    peak_of_parts = peak_resident_bytes()
    timed(seconds, "split", lambda: split(full_batch, parts))
    return {
        **seconds,
        "num_outputs": full_batch.output_ids.numel(),
        "num_edges": sum(block.num_edges for block in full_batch.blocks),
        "redundancy": redundancy(full_batch, parts),
        "peak_before": before,
        "peak_of_parts": peak_of_parts,
        "peak": peak_resident_bytes(),
    }


def print_measured_here(*arguments: str) -> None:
    print(json.dumps(measure_here(*arguments)))


def row(graph: str, measured: dict[str, float]) -> list[str]:
    seconds = [f"{measured[step]:.2f}" for step in STEPS]
    sizes = [size_text(measured[name]) for name in ("peak_before", "peak_of_parts", "peak")]
    counts = [f"{measured[name]:,}" for name in ("num_outputs", "num_edges")]
    return [graph, *counts, *seconds, f"{measured['redundancy']:.3f}", *sizes]


def figures(measured: dict[str, dict[str, float]]) -> list[Figure]:
    def by_graph(name: str, divisor: float = 1) -> dict[str, float]:
        return {graph: of_graph[name] / divisor for graph, of_graph in measured.items()}

    return [
        Figure("the order of the data set", 180, by_graph("order_of_data_set"), unit=" s", digits=1),
        Figure("an order of the full batch", 180, by_graph("order"), unit=" s", digits=1),
        Figure("splitting an epoch", 5, by_graph("split"), unit=" s", digits=2),
        Figure("peak resident memory", 16, by_graph("peak", 1 << 30), unit=" GiB", digits=2),
    ]


def main() -> None:
    graphs = chosen_graphs(LARGE_GRAPHS)
    measured = {label(graph): measured_alone(__file__, graph) for graph in tqdm(graphs, leave=False)}
    print(f"### Parts by locality at large, fan-outs {','.join(map(str, FAN_OUTS))}, K = {NUM_PARTS}\n")
    peaks = [f"peak {when} (resident)" for when in ("before partitioning", "after the parts", "after all")]
    header = ["graph", "output nodes", "edges", *(f"{what} (s)" for what in STEPS.values()), "redundancy", *peaks]
    print(markdown_table(header, [row(*item) for item in measured.items()]))
    print(f"\n{figure_table(figures(measured))}\n\n{provenance(describe_machine(), 'partition_large')}")


if __name__ == "__main__":
    run_command("partition_large", partial(print_measured_here, *sys.argv[1:]) if len(sys.argv) > 1 else main)
