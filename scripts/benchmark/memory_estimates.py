"""What a micro-batch is estimated to take against what it takes at its peak, over models, sizes and graphs."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from itertools import groupby, product

from common import describe_machine, load_graph, markdown_table
from memory_common import METHOD, SEED, loader_of, micro_batch_peak, new_model
from tqdm import tqdm

from betty import estimate_memory, partition, sample_full_batch
from betty.datasets import Dataset
from betty.device_loader import LoadedBatch
from betty.memory import size_text
from betty.micro_batch_train import MicroBatchLoader, input_nodes

GRAPHS = ("cora", "tolokers", "synthetic-arxiv")
MODELS = ("mean", "sum", "gcn", "pool", "lstm", "GAT")
FAN_OUTS = ([10], [10, 25], [5, 10, 10])
NUM_HIDDEN = (16, 128, 256)
NUM_PARTS = (1, 4, 16)
LARGEST = 12 << 30
"""Bytes; cases that are estimated at more are left out."""

WORST_ERROR = 0.05
MEAN_ERROR = 0.02


@dataclass(frozen=True)
class Case:
    """An estimate and what was measured, in bytes; nothing was where it is too large."""

    graph: str
    model: str
    num_layers: int
    num_hidden: int
    num_parts: int
    estimate: int
    measured: int | None

    @property
    def error(self) -> float:
        """Above 0 where the estimate is too high."""
        return self.estimate / self.measured - 1

    def __str__(self) -> str:
        name = f"{self.num_layers} layers, {self.num_hidden} hidden, K = {self.num_parts}"
        return name.replace("1 layers", "1 layer")


def largest_micro_batch(dataset: Dataset, fan_outs: list[int], num_parts: int) -> tuple[LoadedBatch, int]:
    """The micro-batch with the most input nodes as the trainer loads it, and how many output nodes there are in all."""
    full_batch = sample_full_batch(dataset.graph, dataset.train_ids, fan_outs, seed=SEED)
    parts = partition(full_batch, num_parts, METHOD, SEED)
    largest = parts[int(input_nodes(full_batch, parts).argmax())]
    with closing(MicroBatchLoader(full_batch, parts, loader_of(dataset)).load([largest])) as loading:
        return next(loading), full_batch.output_ids.numel()


def measure(dataset: Dataset, graph: str, fan_outs: list[int], num_parts: int) -> Iterator[Case]:
    """Every model and width on one micro-batch."""
    loaded, num_outputs = largest_micro_batch(dataset, fan_outs, num_parts)
    for num_hidden, name in product(NUM_HIDDEN, MODELS):
        model = new_model(name, dataset, len(fan_outs), num_hidden)
        accumulates = num_parts > 1
        estimate = estimate_memory(model, loaded.batch.blocks, accumulates=accumulates).peak
        fits = estimate <= LARGEST
        measured = micro_batch_peak(model, loaded, num_outputs, accumulates) if fits else None
        yield Case(graph, name, len(fan_outs), num_hidden, num_parts, estimate, measured)


def all_cases() -> list[Case]:
    cases = []
    total = len(GRAPHS) * len(FAN_OUTS) * len(NUM_PARTS) * len(NUM_HIDDEN) * len(MODELS)
    with tqdm(total=total, leave=False) as progress:
        for graph in GRAPHS:
            dataset = load_graph(graph)
            for fan_outs, num_parts in product(FAN_OUTS, NUM_PARTS):
                for case in measure(dataset, graph, fan_outs, num_parts):
                    progress.update()
                    progress.set_description(f"{graph}, {case.model}, {case}")
                    cases.append(case)
    return cases


def row(graph: str, model: str, cases: Sequence[Case]) -> list[str]:
    """One row of the table."""
    errors = [abs(case.error) for case in cases]
    worst = max(cases, key=lambda case: abs(case.error))
    shares = [f"{100 * statistics.fmean(errors):.2f}", f"{100 * worst.error:+.2f}"]
    return [graph, model, str(len(cases)), *shares, f"{worst}, {size_text(worst.measured)}"]


def main() -> None:
    every_case = all_cases()
    cases = [case for case in every_case if case.measured is not None]
    groups = groupby(sorted(cases, key=group_of), key=group_of)
    rows = [row(GRAPHS[graph], MODELS[model], list(group)) for (graph, model), group in groups]
    rows.append(row("all", "", cases))
    print("### Estimates against measured peaks\n")
    header = ["graph", "model", "cases", "mean error (%)", "worst error (%)", "worst case, its peak"]
    print(markdown_table(header, rows))
    print(f"\nLeft out, since estimated at more than {size_text(LARGEST)}: {len(every_case) - len(cases)} cases.")
    beyond = [case for case in cases if abs(case.error) > WORST_ERROR]
    mean = statistics.fmean(abs(case.error) for case in cases)
    print(f"Beyond {WORST_ERROR:.0%}: {len(beyond)} cases; the mean is {mean:.2%}, to be below {MEAN_ERROR:.0%}.")
    for case in beyond:
        sizes = f"estimate {size_text(case.estimate)}, measured {size_text(case.measured)}"
        print(f"- {case.graph}, {case.model}, {case}: {100 * case.error:+.1f} %, {sizes}")
    print(f"\n{describe_machine()}")


def group_of(case: Case) -> tuple[int, int]:
    return GRAPHS.index(case.graph), MODELS.index(case.model)


if __name__ == "__main__":
    main()
