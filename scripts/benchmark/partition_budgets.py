"""The fewest micro-batches that plans for memory budgets need, by method."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
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
    label,
    model_of,
    provenance,
)
from tqdm import tqdm

from betty import BettyError, FullBatch, GraphSAGE, MicroBatch, plan_micro_batches, sample_full_batch
from betty.command_line import run_command
from betty.memory import size_text
from betty.micro_batch_train.plan import model_estimate

DIVISORS = (4, 8, 16)


@dataclass(frozen=True)
class Need:
    """How many micro-batches a budget needs, by method; numbers are medians over the seeds.

    Args:
        graph: its name.
        divisor: the full batch's estimated peak ÷ the budget.
        budgets: bytes, by seed.
        static: bytes that the model, its gradients and its optimizer take.
        counts: by method, then by seed; none where the budget is too small for a single output node.
    """

    graph: str
    divisor: int
    budgets: Sequence[int]
    static: int
    counts: dict[str, Sequence[int | None]]

    @property
    def budget(self) -> float:
        return statistics.median(self.budgets)

    def is_enough(self, method: str) -> bool:
        return None not in self.counts[method]

    def ratio(self, method: str) -> float:
        """Micro-batches of a method ÷ those of the reference, for which the budget is enough."""
        if not self.is_enough(method):
            return math.inf
        pairs = zip(self.counts[method], self.counts[REFERENCE], strict=True)
        return statistics.median(count / reference for count, reference in pairs)

    def cell(self, method: str) -> str:
        return f"{statistics.median(self.counts[method])}" if self.is_enough(method) else "too little"

    def row(self) -> list[str]:
        share = f"{100 * self.static / self.budget:.0f} %"
        others = [method for method in METHODS_TO_COMPARE if method != REFERENCE]
        ratios = [
            f"{self.ratio(method):.2f}" if self.is_enough(method) and self.is_enough(REFERENCE) else ""
            for method in others
        ]
        counts = [self.cell(method) for method in METHODS_TO_COMPARE]
        return [self.graph, f"1/{self.divisor}", size_text(self.budget), share, *counts, *ratios]


def fewest(full_batch: FullBatch, model: GraphSAGE, budget: int, method: str, seed: int) -> int | None:
    """The micro-batches of a plan; ``None`` where there is no plan for so little."""
    try:
        return len(plan_micro_batches(full_batch, model, budget, method, seed).parts)
    except BettyError:
        return None


def measure(graph: str) -> list[Need]:
    """All budgets of a graph."""
    dataset = load_graph(graph)
    model = model_of(dataset)
    estimate = model_estimate(model, "cpu")
    full_batches = {seed: sample_full_batch(dataset.graph, dataset.train_ids, FAN_OUTS, seed) for seed in SEEDS}
    wholes = {seed: estimate(MicroBatch(full_batch.blocks)).peak for seed, full_batch in full_batches.items()}
    one_of_several = estimate(MicroBatch(full_batches[SEEDS[0]].blocks, weight=0.5))
    return [
        Need(
            label(graph),
            divisor,
            [whole // divisor for whole in wholes.values()],
            one_of_several.static,
            {
                method: [
                    fewest(full_batch, model, wholes[seed] // divisor, method, seed)
                    for seed, full_batch in full_batches.items()
                ]
                for method in METHODS_TO_COMPARE
            },
        )
        for divisor in tqdm(DIVISORS, label(graph), leave=False)
    ]


def figures(needs: Sequence[Need]) -> list[Figure]:
    ratios = {f"{need.graph}, 1/{need.divisor}": need.ratio(TESTED) for need in needs if need.is_enough(REFERENCE)}
    mean = {"all graphs and budgets": statistics.fmean(ratios.values())} if ratios else {}
    name = f"micro-batches ÷ {REFERENCE}'s"
    return [Figure(name, 1, ratios), Figure(f"{name}, mean", 0.8, mean)]


def main() -> None:
    needs = [need for graph in chosen_graphs() for need in measure(graph)]
    print("### The fewest micro-batches for a share of the full batch's estimated peak:", end=" ")
    print(f"{SETTING}, medians over {len(SEEDS)} seeds\n")
    counts = [f"K, {method}" for method in METHODS_TO_COMPARE]
    ratios = [f"{method} ÷ {REFERENCE}" for method in METHODS_TO_COMPARE if method != REFERENCE]
    header = ["graph", "budget", "size", "of it the model's", *counts, *ratios]
    print(markdown_table(header, [need.row() for need in needs]))
    print("\nToo little: the model, its gradients and its optimizer leave too little for some output node alone.\n")
    print(f"{figure_table(figures(needs))}\n\n{provenance(describe_machine(), 'partition_budgets')}")


if __name__ == "__main__":
    run_command("partition_budgets", main)
