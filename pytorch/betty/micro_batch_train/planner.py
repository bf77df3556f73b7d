"""Memory-aware partitioning: as few micro-batches as a memory budget allows."""

from __future__ import annotations

import logging
import math
from collections.abc import Sequence
from dataclasses import fields

import torch
from torch import Tensor, nn

from betty.blocks import FullBatch, MicroBatch
from betty.errors import BettyError
from betty.memory import MemoryEstimate, estimate_optimizer_step, size_text
from betty.micro_batch_train.computation_trees import tree_sizes
from betty.micro_batch_train.cutting import MicroBatchCutter
from betty.micro_batch_train.filling import even_runs, filled
from betty.micro_batch_train.part_source import MethodParts, PartSource
from betty.micro_batch_train.plan import Estimate, MicroBatchPlan, estimated, model_estimate

logger = logging.getLogger(__name__)

EXPONENT = 0.6
"""Of the power of K by which the need of K micro-batches falls; 1 would be without redundancy.

Between 0.35 and 0.75 on the graphs that were measured: good for a first guess, and for the next one.
"""

SEGMENTS = 8
"""Segments to fill a micro-batch with: more fill it better, and take longer to make."""

CLEARLY = 1.12
"""By what factor a stand-in for a partition must miss the budget for the partition itself not to be tried.

On cora, tolokers and synthetic-arxiv, with metis and REG and a budget of 1/4, 1/8 and 1/16 of the full batch, the
stand-in's largest micro-batch took from 0.94 to 1.10 times what the partition's did.
"""

CANDIDATES = 8
"""Output nodes whose own micro-batches are looked at to find the one that takes the most."""

ROOM_AFTER_NOTICE = 0.9
"""What is left of the budget that is planned for, each time that more room is asked for."""


def plan_micro_batches(
    full_batch: FullBatch,
    model: nn.Module,
    memory_budget: int,
    method: str = "REG",
    seed: int = 0,
    *,
    estimate: Estimate | None = None,
    device: torch.device | str = "cpu",
) -> MicroBatchPlan:
    """Partition a full batch into as few micro-batches as fit a memory budget.

    A plan fits where every micro-batch does together with the next one, which is loaded while it trains. With one
    micro-batch less the method's parts would not fit.

    Args:
        full_batch: in host memory.
        model: what is to be trained; one of Betty's own, or with ``estimate`` any.
        memory_budget: bytes that training may take on the device, the model and its optimizer included.
        method: a name in :data:`~betty.micro_batch_train.METHODS`, in any case.
        seed: the same seed gives the same plan.
        estimate: what training on a micro-batch takes; :func:`~betty.estimate_memory` of the model if not given.
        device: where to train.

    Raises:
        BettyError: no such method, or the micro-batch of a single output node does not fit the budget.
    """
    if not isinstance(memory_budget, int) or memory_budget < 1:
        raise BettyError(f"a memory budget of {memory_budget} is none; give a whole number of bytes above 0")
    estimate = estimate or model_estimate(model, device)
    if estimate is None:
        raise BettyError(f"the memory of a {type(model).__name__} is not known; give estimate=")
    plan = plan_parts(full_batch, MethodParts(full_batch, method, seed), estimate, memory_budget)
    optimizer_step = estimate_optimizer_step(model, device=device)
    if optimizer_step > memory_budget:
        raise BettyError(
            f"a memory budget of {size_text(memory_budget)} is too small for the model's parameters, gradients and "
            f"optimizer; give at least {optimizer_step} bytes or take a smaller model"
        )
    return plan


def plan_parts(full_batch: FullBatch, source: PartSource, estimate: Estimate, memory_budget: int) -> MicroBatchPlan:
    """Find micro-batches that fit a memory budget, so few that one less of the source's parts would not fit.

    The source makes many small parts, neighbouring ones of which share the most; filled with runs of these, nearly
    every micro-batch takes what the budget allows. Parts of even size cannot do that, and so hardly ever fit in a
    smaller number. That is tried, but for where the small parts joined to as many even ones miss the budget by far, see
    :data:`CLEARLY`; where they do fit, the search goes on with them.

    It costs one partition into many parts, and seldom further ones, of what the source has prepared.

    Raises:
        BettyError: the micro-batch of a single output node does not fit.
    """
    num_outputs = full_batch.output_ids.numel()
    if num_outputs == 0:
        return MicroBatchPlan([], [], [], memory_budget)
    micro_batch = MicroBatch(full_batch.blocks)
    whole = estimate(micro_batch)
    if whole.peak <= memory_budget:
        return MicroBatchPlan([torch.arange(num_outputs)], [micro_batch], [whole], memory_budget)
    _check_single_nodes(full_batch, estimate, memory_budget)
    return _Search(full_batch, source, estimate, memory_budget, whole).fewest()


class BudgetPartitioning:
    """Plans every full batch of a training for a memory budget.

    Args:
        method: a name in :data:`~betty.micro_batch_train.METHODS`.
        memory_budget: bytes that training may take on the device.
    """

    def __init__(self, method: str, memory_budget: int) -> None:
        self._method = method
        self._memory_budget = memory_budget
        self._share = 1.0

    def plan(self, full_batch: FullBatch, model: nn.Module, seed: int, device: torch.device) -> MicroBatchPlan:
        """The micro-batches of a full batch, as few as fit."""
        budget = int(self._memory_budget * self._share)
        return plan_micro_batches(full_batch, model, budget, self._method, seed, device=device)

    def leave_more_room(self, num_micro_batches: int) -> None:
        """Plan with less than before from now on: the device ran out of memory."""
        self._share *= ROOM_AFTER_NOTICE
        logger.info("planning with %s of memory from now on", size_text(self._memory_budget * self._share))


class _Search:
    """The search for the fewest micro-batches of a full batch that does not fit as a whole."""

    def __init__(
        self,
        full_batch: FullBatch,
        source: PartSource,
        estimate: Estimate,
        memory_budget: int,
        whole: MemoryEstimate,
    ) -> None:
        self._full_batch = full_batch
        self._source = source
        self._estimate = estimate
        self._memory_budget = memory_budget
        self._num_outputs = full_batch.output_ids.numel()
        self._static = whole.static
        # With more micro-batches than one, another is loaded beside each.
        self._guess = self._fitting_count(1, whole.peak + whole.loaded)

    def fewest(self) -> MicroBatchPlan:
        # Not single output nodes: a source that gives these need not put them in an order.
        segments = self._source.parts(max(2, min(SEGMENTS * self._guess, self._num_outputs // 2)))
        best = filled(self._full_batch, segments, self._source.halves, self._estimate, self._memory_budget)
        if best and self._is_clear(segments, len(best.parts) - 1):
            return best
        too_few, count = 1, len(best.parts) - 1 if best else self._guess
        while True:
            most = len(best.parts) - 1 if best else self._num_outputs
            if most <= too_few:
                break
            count = min(max(count, too_few + 1), most)
            plan = self._estimated(self._source.parts(count))
            if plan.peak <= self._memory_budget:
                best = plan
            else:
                too_few = count
            count = self._fitting_count(count, plan.peak)
        if best is None:
            raise _too_small(self._memory_budget, self._estimated(list(torch.arange(self._num_outputs).split(1))))
        return best

    def _estimated(self, parts: Sequence[Tensor]) -> MicroBatchPlan:
        return estimated(self._full_batch, parts, self._estimate, self._memory_budget)

    def _fitting_count(self, count: int, need: int) -> int:
        """How many micro-batches should fit, where one of ``count`` needs so many bytes."""
        room = max(1, self._memory_budget - self._static)
        return math.ceil(count * (max(1, need - self._static) / room) ** (1 / EXPONENT))

    def _is_clear(self, segments: Sequence[Tensor], count: int) -> bool:
        """Whether so many parts miss the budget clearly, by runs of segments that are as even as these would be."""
        if len(segments) < SEGMENTS // 2 * count:
            return False
        return self._estimated(even_runs(segments, count)).peak > CLEARLY * self._memory_budget


def _check_single_nodes(full_batch: FullBatch, estimate: Estimate, memory_budget: int) -> None:
    """Refuse a budget that the largest micro-batch of a single output node does not fit: then no plan does."""
    largest = tree_sizes(full_batch).topk(min(CANDIDATES, full_batch.output_ids.numel())).indices
    cutter = MicroBatchCutter(full_batch)
    micro_batches = [cutter.cut([position.reshape(1)])[0] for position in largest]
    singles = MicroBatchPlan([], micro_batches, [estimate(micro_batch) for micro_batch in micro_batches])
    if max(single.peak for single in singles.estimates) > memory_budget:
        raise _too_small(memory_budget, singles)


def _too_small(memory_budget: int, singles: MicroBatchPlan) -> BettyError:
    largest = max(singles.estimates, key=lambda single: single.peak)
    beside = max(single.loaded for single in singles.estimates) if len(singles.estimates) > 1 else 0
    kind, size = max(
        ((field.name, getattr(largest, field.name)) for field in fields(largest)), key=lambda kind: kind[1]
    )
    return BettyError(
        f"a memory budget of {size_text(memory_budget)} is too small even for one output node at a time, which takes "
        f"up to {size_text(largest.peak)}, most of it {kind.replace('_', ' ')} ({size_text(size)}); give at least "
        f"{largest.peak + beside} bytes, sample fewer neighbours or take a smaller model"
    )
