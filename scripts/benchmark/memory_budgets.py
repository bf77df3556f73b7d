"""Plans for memory budgets: what their steps take, what fewer micro-batches would, and the time that planning takes."""

from __future__ import annotations

import itertools
import re
from dataclasses import dataclass
from functools import partial

import torch
from common import compare_seconds, describe_machine, load_graph, markdown_table
from memory_common import CPU, METHOD, SEED, loader_of, new_model, step_peak
from tqdm import tqdm

from betty import BettyError, FullBatch, MicroBatchPlan, partition, plan_micro_batches, redundancy, sample_full_batch
from betty.memory import size_text
from betty.micro_batch_train.graph_partitioner import Partitioner, PartitionProblem
from betty.micro_batch_train.plan import estimated, model_estimate
from betty.models.layered_model import LayeredModel

CASES = (
    ("cora", "mean"),  # of an LSTM on its 1,433 features nearly all is parameters, which no plan makes less
    ("tolokers", "mean"),
    ("tolokers", "lstm"),
    ("synthetic-arxiv", "mean"),
    ("synthetic-arxiv", "lstm"),
)
DIVISORS = (2, 4, 8, 16)
FAN_OUTS = [10, 25]
NUM_HIDDEN = 64
REPETITIONS = 3


@dataclass(frozen=True, eq=False)
class Budget:
    """A budget and what came of it; sizes in bytes.

    Args:
        graph: its name.
        model: its name.
        asked: a share of what the full batch takes.
        divisor: the full batch's peak ÷ ``asked``.
        plan: for ``asked``, or for the least budget that there is a plan for.
        measured: the peak of the step by the plan.
        measured_with_one_less: the peak of the step by the method's own parts, one micro-batch less.
        redundancy: of the plan.
        num_parts_of_method: the fewest parts of the method that are estimated to fit, from one less than planned on.
        plan_s: seconds that planning takes.
        partition_s: seconds that one partition into as many parts takes.
    """

    graph: str
    model: str
    asked: int
    divisor: int
    plan: MicroBatchPlan
    measured: int
    measured_with_one_less: int
    redundancy: float
    num_parts_of_method: int
    plan_s: float
    partition_s: float

    @property
    def name(self) -> str:
        budget = self.plan.memory_budget
        if budget == self.asked:
            return f"1/{self.divisor}"
        return f"1/{self.divisor} is too little; 1/{self.asked * self.divisor / budget:.1f}"

    def row(self) -> list[str]:
        budget, count = self.plan.memory_budget, len(self.plan.parts)
        shares = [f"{peak / budget:.3f}" for peak in (self.plan.peak, self.measured)]
        parts = [f"{self.redundancy:.2f}", f"{self.measured_with_one_less / budget:.3f}", str(self.num_parts_of_method)]
        return [self.graph, self.model, self.name, size_text(budget), str(count), *shares, *parts]

    def time_row(self) -> list[str]:
        times = [f"{1000 * seconds:.0f}" for seconds in (self.plan_s, self.partition_s)]
        ratio = f"{self.plan_s / self.partition_s:.1f}"
        return [self.graph, self.model, self.name, str(len(self.plan.parts)), *times, ratio]


def plan_at_least(full_batch: FullBatch, model: LayeredModel, budget: int) -> MicroBatchPlan:
    """The plan for a budget, or, where that is too small, for the least that the error asks for."""
    try:
        return plan_micro_batches(full_batch, model, budget, METHOD, SEED)
    except BettyError as error:
        least = re.search(r"(\d+) bytes will do", str(error))
        return plan_at_least(full_batch, model, int(least[1]))


def parts_that_fit(full_batch: FullBatch, model: LayeredModel, budget: int, first: int) -> int:
    """From so many on, in steps of a twentieth, the first number of the method's parts that are estimated to fit."""
    source, estimate = Partitioner(PartitionProblem(full_batch, SEED), METHOD), model_estimate(model, CPU)
    counts = itertools.accumulate(
        itertools.repeat(1.05), lambda count, step: max(count + 1, int(count * step)), initial=first
    )
    return next(count for count in counts if estimated(full_batch, source.parts(count), estimate).peak <= budget)


def measure(graph: str, model_name: str) -> list[Budget]:
    """All budgets of a graph and a model."""
    dataset = load_graph(graph)
    full_batch = sample_full_batch(dataset.graph, dataset.train_ids, FAN_OUTS, seed=SEED)
    model = new_model(model_name, dataset, len(FAN_OUTS), NUM_HIDDEN)
    step = partial(step_peak, model, full_batch, device_loader=loader_of(dataset))
    whole = step([torch.arange(full_batch.output_ids.numel())])

    def measured_budget(divisor: int) -> Budget:
        plan = plan_at_least(full_batch, model, whole // divisor)
        budget, count = plan.memory_budget, len(plan.parts)
        seconds = compare_seconds(
            partial(plan_micro_batches, full_batch, model, budget, METHOD, SEED),
            partial(partition, full_batch, count, METHOD, SEED),
            REPETITIONS,
        )
        return Budget(
            graph,
            model_name,
            whole // divisor,
            divisor,
            plan,
            measured=step(plan.parts),
            measured_with_one_less=step(partition(full_batch, count - 1, METHOD, SEED)),
            redundancy=redundancy(full_batch, plan.parts),
            num_parts_of_method=parts_that_fit(full_batch, model, budget, count - 1),
            plan_s=seconds[0],
            partition_s=seconds[1],
        )

    budgets: list[Budget] = []
    for divisor in tqdm(DIVISORS, f"{graph}, {model_name}", leave=False):
        budgets.append(measured_budget(divisor))
        if budgets[-1].plan.memory_budget > whole // divisor:
            break  # there is no plan for less
    return budgets


def main() -> None:
    budgets = [budget for case in CASES for budget in measure(*case)]
    setting = f"{len(FAN_OUTS)} layers, {NUM_HIDDEN} hidden channels, fan-outs {','.join(map(str, FAN_OUTS))}"
    print(f"### Steps by plans for a share of the full batch's measured peak: {setting}, {METHOD}\n")
    shares = ["planned peak ÷ budget", "measured peak ÷ budget", "redundancy"]
    of_method = ["measured ÷ budget with K − 1 parts", "even parts that fit (within 5 %)"]
    header = ["graph", "model", "budget", "size", "K", *shares, *of_method]
    print(markdown_table(header, [budget.row() for budget in budgets]))
    print(f"\n### Planning against one partition into K parts, medians of {REPETITIONS} that take turns\n")
    header = ["graph", "model", "budget", "K", "plan (ms)", "partition (ms)", "ratio"]
    print(markdown_table(header, [budget.time_row() for budget in budgets]))
    print(f"\n{describe_machine()}")


if __name__ == "__main__":
    main()
