"""Redundancy and balance of partitions by memory, on the full batch they were made for and on the next epoch's."""

from __future__ import annotations

import itertools
import statistics
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from common import describe_machine, load_graph, markdown_table
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
    geometric_mean,
    label,
    model_of,
    order_of,
    provenance,
    timed_parts,
)
from torch import Tensor
from tqdm import tqdm

from betty import FullBatch, redundancy, sample_full_batch
from betty.command_line import run_command
from betty.memory import size_text
from betty.micro_batch_train.plan import Estimate, estimated, model_estimate
from betty.micro_batch_train.planning_ahead import partition_seed

EPOCHS = (0, 1)
NUM_PARTS = (4, 16, 32)
PARTS_WITH_LESS_MEMORY = (16, 32)
OF_DATA_SET = "locality, order of the data set"
"""As training does it, by an order that knows the nodes' whole neighbourhoods; its time is not in the seconds."""

CONTENDERS = (*METHODS_TO_COMPARE, OF_DATA_SET)
KEPT = ("locality", OF_DATA_SET)
"""Those whose parts training keeps from epoch to epoch; others are made anew."""


@dataclass(frozen=True)
class Quality:
    """What a partition comes to.

    Args:
        redundancy: input nodes of all micro-batches ÷ of the full batch.
        largest: estimated bytes of the micro-batch that takes the most.
        mean: estimated bytes of a micro-batch on the mean.
        largest_own: as ``largest``, without what every micro-batch takes, the model and its optimizer.
        seconds: that it took to make.
    """

    redundancy: float
    largest: int
    mean: float
    largest_own: int
    seconds: float


@dataclass(frozen=True)
class Comparison:
    """A method beside the reference on the same full batches, by seed; numbers are medians over the seeds."""

    graph: str
    epoch: int
    num_parts: int
    method: str
    qualities: Sequence[Quality]
    references: Sequence[Quality]

    @property
    def where(self) -> str:
        return f"{self.graph}, K = {self.num_parts}"

    def median(self, amount: Callable[[Quality], float]) -> float:
        return statistics.median(map(amount, self.qualities))

    def ratio(self, amount: Callable[[Quality], float]) -> float:
        pairs = zip(self.qualities, self.references, strict=True)
        return statistics.median(amount(quality) / amount(reference) for quality, reference in pairs)

    def row(self) -> list[str]:
        ratios = [f"{self.ratio(amount):.3f}" for amount in (redundancy_of, largest_of, largest_own_of)]
        return [
            self.graph,
            str(self.num_parts),
            self.method,
            f"{self.median(redundancy_of):.3f}",
            size_text(self.median(largest_of)),
            f"{self.median(imbalance_of):.3f}",
            *([""] * len(ratios) if self.method == REFERENCE else ratios),
            f"{self.median(lambda quality: quality.seconds):.3f}",
        ]


def redundancy_of(quality: Quality) -> float:
    return quality.redundancy


def largest_of(quality: Quality) -> float:
    return quality.largest


def largest_own_of(quality: Quality) -> float:
    return quality.largest_own


def imbalance_of(quality: Quality) -> float:
    return quality.largest / quality.mean


def quality_of(full_batch: FullBatch, parts: Sequence[Tensor], estimate: Estimate, seconds: float) -> Quality:
    estimates = estimated(full_batch, parts, estimate).estimates
    peaks = [of_part.peak for of_part in estimates]
    return Quality(
        redundancy(full_batch, parts),
        largest=max(peaks),
        mean=statistics.fmean(peaks),
        largest_own=max(of_part.peak - of_part.static for of_part in estimates),
        seconds=seconds,
    )


def qualities_by_epoch(
    full_batches: Sequence[FullBatch], num_parts: int, contender: str, seed: int, estimate: Estimate, leaves: Tensor
) -> list[Quality]:
    """Of every epoch's full batch, with the parts that training would take."""
    method, leaves_given = ("locality", leaves) if contender == OF_DATA_SET else (contender, None)
    qualities: list[Quality] = []
    for epoch, full_batch in enumerate(full_batches):
        if epoch > 0 and contender in KEPT:
            seconds = 0.0
        else:
            own_seed = partition_seed(seed, 0, epoch, 0)
            parts, seconds = timed_parts(full_batch, num_parts, method, own_seed, estimate, leaves_given)
        qualities.append(quality_of(full_batch, parts, estimate, seconds))
    return qualities


def measure(graph: str) -> list[Comparison]:
    """All comparisons of a graph."""
    dataset = load_graph(graph)
    estimate = model_estimate(model_of(dataset), "cpu")
    measured: dict[tuple[int, int, str], list[Quality]] = defaultdict(list)
    for seed in tqdm(SEEDS, label(graph), leave=False):
        full_batches = [sample_full_batch(dataset.graph, dataset.train_ids, FAN_OUTS, seed, epoch) for epoch in EPOCHS]
        leaves = order_of(dataset, seed).leaves_of(full_batches[0].output_ids)
        for num_parts, method in itertools.product(NUM_PARTS, CONTENDERS):
            by_epoch = qualities_by_epoch(full_batches, num_parts, method, seed, estimate, leaves)
            for epoch, quality in zip(EPOCHS, by_epoch, strict=True):
                measured[epoch, num_parts, method].append(quality)
    return [
        Comparison(label(graph), epoch, num_parts, method, qualities, measured[epoch, num_parts, REFERENCE])
        for (epoch, num_parts, method), qualities in measured.items()
    ]


def figures(comparisons: Sequence[Comparison], method: str) -> list[Figure]:
    """What a method is to reach on the full batches of one epoch."""
    tested = [comparison for comparison in comparisons if comparison.method == method]
    redundancies = {comparison.where: comparison.ratio(redundancy_of) for comparison in tested}
    less_memory = [comparison for comparison in tested if comparison.num_parts in PARTS_WITH_LESS_MEMORY]
    numbers = " and ".join(map(str, PARTS_WITH_LESS_MEMORY))
    return [
        Figure(
            f"largest micro-batch ÷ {REFERENCE}'s, K = {numbers}",
            0.80,
            {comparison.where: comparison.ratio(largest_of) for comparison in less_memory},
        ),
        Figure(
            f"largest micro-batch ÷ its own mean, K = {numbers}",
            1.05,
            {comparison.where: comparison.median(imbalance_of) for comparison in less_memory},
        ),
        Figure(f"redundancy ÷ {REFERENCE}'s", 0.90, redundancies),
        Figure(
            f"redundancy ÷ {REFERENCE}'s, geometric mean",
            0.85,
            {"all graphs and K": geometric_mean(redundancies.values())},
        ),
    ]


def print_epoch(title: str, comparisons: Sequence[Comparison]) -> None:
    ratios = [f"{name} ÷ {REFERENCE}'s" for name in ("redundancy", "largest", "largest without the model")]
    header = ["graph", "K", "method", "redundancy", "largest micro-batch", "÷ mean", *ratios, "partition (s)"]
    print(f"### {title}: {SETTING}, medians over {len(SEEDS)} seeds\n")
    print(markdown_table(header, [comparison.row() for comparison in comparisons]))
    for method in dict.fromkeys([TESTED, OF_DATA_SET]):
        print(f"\n{figure_table(figures(comparisons, method), method)}")
    print()


def main() -> None:
    comparisons = [comparison for graph in chosen_graphs() for comparison in measure(graph)]
    titles = ("Parts on the full batch they were made for", "On the next epoch's, parts by locality kept")
    for epoch, title in zip(EPOCHS, titles, strict=True):
        print_epoch(title, [comparison for comparison in comparisons if comparison.epoch == epoch])
    print(provenance(describe_machine(), "partition_quality"))


if __name__ == "__main__":
    run_command("partition_quality", main)
