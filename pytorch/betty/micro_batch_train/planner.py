"""Memory-aware partitioning: as few micro-batches as a memory budget allows."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from typing import NamedTuple

import torch
from torch import Tensor, nn

from betty.blocks import FullBatch, MicroBatch
from betty.errors import BettyError
from betty.memory import MemoryEstimate, estimate_memory, size_text
from betty.micro_batch_train.block_dataloader import split
from betty.micro_batch_train.computation_trees import tree_sizes
from betty.micro_batch_train.cutting import MicroBatchCutter
from betty.micro_batch_train.part_source import MethodParts, PartSource
from betty.models.layered_model import LayeredModel

logger = logging.getLogger(__name__)

Estimate = Callable[[MicroBatch], MemoryEstimate]

EXPECTED_EXPONENT = 0.7
"""Of the power of K by which micro-batches shrink, until it is measured; 1 would be without redundancy."""

LARGEST_EXPONENT, SMALLEST_EXPONENT = 1.2, 0.25

LARGEST_JUMP = 4
"""By what factor a number of micro-batches may be raised beyond all that were tried."""

FEW = 1 / 8
"""The share of micro-batches that may be too big for these to be split instead of starting over."""

CANDIDATES = 32
"""Output nodes whose own micro-batches are looked at to find the one that takes the most."""

ROOM_AFTER_NOTICE = 0.9
"""What is left of the budget that is planned for, each time that more room is asked for."""


@dataclass(frozen=True, eq=False)
class MicroBatchPlan:
    """The micro-batches of a full batch, and what training on them is estimated to take.

    Args:
        parts: int64 tensors of positions in the full batch's ``output_ids``.
        micro_batches: one per part, in host memory.
        estimates: one per micro-batch; none where the model's memory cannot be estimated.
        memory_budget: bytes, or ``None`` where the number of micro-batches was given.
    """

    parts: list[Tensor]
    micro_batches: list[MicroBatch]
    estimates: list[MemoryEstimate]
    memory_budget: int | None = None

    @property
    def needs(self) -> list[int]:
        """Bytes while each micro-batch trains, the next one being loaded beside it."""
        loaded = [estimate.loaded for estimate in self.estimates[1:]] + [0]
        return [
            estimate.peak + beside
            for estimate, beside in zip(self.estimates, loaded[: len(self.estimates)], strict=True)
        ]

    @property
    def peak(self) -> int | None:
        """The largest need in bytes; ``None`` where it is not known."""
        return max(self.needs, default=None)


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
    return plan_parts(full_batch, MethodParts(full_batch, method, seed), estimate, memory_budget)


def model_estimate(model: nn.Module, device: torch.device | str) -> Estimate | None:
    """What estimates the memory of a model; ``None`` where it is none of Betty's own."""
    if not isinstance(model, LayeredModel):
        return None
    return lambda micro_batch: estimate_memory(model, micro_batch.blocks, device=device)


def plan_parts(full_batch: FullBatch, source: PartSource, estimate: Estimate, memory_budget: int) -> MicroBatchPlan:
    """Find the fewest parts of a source that fit a memory budget.

    What K micro-batches need falls about as a power of K. The search follows that power from what it has measured,
    between the largest K that does not fit and the smallest that does, until these are neighbours. A K at which only a
    few micro-batches are too big serves as well: those are split.

    What does not fit at K may fit at a smaller one, though seldom; such a plan is found only if it is tried.

    Raises:
        BettyError: the micro-batch of a single output node does not fit.
    """
    num_outputs = full_batch.output_ids.numel()
    if num_outputs == 0:
        return MicroBatchPlan([], [], [], memory_budget)
    micro_batch = MicroBatch(full_batch.blocks)
    whole = MicroBatchPlan([torch.arange(num_outputs)], [micro_batch], [estimate(micro_batch)], memory_budget)
    if whole.peak <= memory_budget:
        return whole
    _check_single_nodes(full_batch, estimate, memory_budget)
    static = _static(whole.estimates[0])
    # With more micro-batches than one, another is loaded beside each.
    need_of_whole = whole.peak + whole.estimates[0].loaded - static
    curve = _Curve(max(1, memory_budget - static), [_Point(1, need_of_whole)])
    best, misses = None, {1}
    while True:
        too_few = max(miss for miss in misses if best is None or miss < len(best.parts))
        most = num_outputs if best is None else len(best.parts) - 1
        if too_few == most:
            break
        count = min(max(curve.crossing(), too_few + 1), most)
        plan = estimated(full_batch, source.parts(count), estimate, memory_budget)
        curve.add(_Point(count, plan.peak - static))
        if plan.peak > memory_budget:
            misses.add(count)
            plan = _with_too_big_ones_split(full_batch, plan, source, estimate, most)
        best = plan or best
    if best is None:
        raise _too_small(memory_budget, estimated(full_batch, source.parts(num_outputs), estimate, memory_budget))
    return best


def estimated(
    full_batch: FullBatch, parts: Sequence[Tensor], estimate: Estimate | None, memory_budget: int | None = None
) -> MicroBatchPlan:
    """The plan of given parts, with what they take where that is known."""
    micro_batches = split(full_batch, parts)
    estimates = [estimate(micro_batch) for micro_batch in micro_batches] if estimate else []
    return MicroBatchPlan(list(parts), micro_batches, estimates, memory_budget)


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

    def leave_more_room(self) -> None:
        """Plan with less than before from now on: the device ran out of memory."""
        self._share *= ROOM_AFTER_NOTICE
        logger.info("planning with %s of memory from now on", size_text(self._memory_budget * self._share))


class _Point(NamedTuple):
    """A number of micro-batches, and the most bytes that one of them needs beside what all have in common."""

    count: int
    need: int


class _Curve:
    """What was measured of need by number of micro-batches, and where it should cross the room that there is.

    Args:
        room: bytes.
        points: at least one, whose need is above the room.
    """

    def __init__(self, room: int, points: Sequence[_Point]) -> None:
        self._room = room
        self._points = sorted(points)

    def add(self, point: _Point) -> None:
        self._points = sorted([*self._points, point])

    def crossing(self) -> int:
        """The number of micro-batches from which on they should fit."""
        above = max(point for point in self._points if point.need > self._room)
        fitting = [point for point in self._points if point.count > above.count]
        # Not the nearest: what a number more or less changes is chance.
        before = [point for point in self._points if point.count * 2 <= above.count]
        if fitting:
            factor = self._factor(above, _exponent(above, min(fitting)))
        elif before:
            factor = min(self._factor(above, _exponent(above, max(before))), LARGEST_JUMP)
        else:
            factor = self._factor(above, EXPECTED_EXPONENT)
        return math.ceil(above.count * factor)

    def _factor(self, point: _Point, exponent: float) -> float:
        return (point.need / self._room) ** (1 / exponent)


def _exponent(one: _Point, other: _Point) -> float:
    exponent = -math.log(one.need / max(1, other.need)) / math.log(one.count / other.count)
    return min(max(exponent, SMALLEST_EXPONENT), LARGEST_EXPONENT)


def _with_too_big_ones_split(
    full_batch: FullBatch, plan: MicroBatchPlan, source: PartSource, estimate: Estimate, most: int
) -> MicroBatchPlan | None:
    """A plan that fits, of at most ``most`` micro-batches; ``None`` where splitting a few does not lead there."""
    few = max(1, int(FEW * len(plan.parts)))
    while plan.peak > plan.memory_budget:
        too_big = [number for number, need in enumerate(plan.needs) if need > plan.memory_budget]
        divisible = all(plan.parts[number].numel() > 1 for number in too_big)
        if len(too_big) > few or not divisible or len(plan.parts) + len(too_big) > most:
            return None
        plan = _with_split(full_batch, plan, set(too_big), source, estimate)
    return plan if len(plan.parts) <= most else None


def _with_split(
    full_batch: FullBatch, plan: MicroBatchPlan, numbers: set[int], source: PartSource, estimate: Estimate
) -> MicroBatchPlan:
    cutter = MicroBatchCutter(full_batch)
    pieces = []
    for number, piece in enumerate(zip(plan.parts, plan.micro_batches, plan.estimates, strict=True)):
        if number not in numbers:
            pieces.append(piece)
            continue
        for part in source.halves(plan.parts[number]):
            (micro_batch,) = cutter.cut([part])
            pieces.append((part, micro_batch, estimate(micro_batch)))
    return MicroBatchPlan(*(list(column) for column in zip(*pieces, strict=True)), plan.memory_budget)


def _static(estimate: MemoryEstimate) -> int:
    """Bytes that every micro-batch takes, whatever its size."""
    return estimate.parameters + estimate.gradients + estimate.optimizer


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
