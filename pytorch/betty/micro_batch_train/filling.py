"""Filling micro-batches with runs of small parts, as long as fit a memory budget."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from betty.blocks import FullBatch, MicroBatch
from betty.memory import MemoryEstimate
from betty.micro_batch_train.cutting import MicroBatchCutter
from betty.micro_batch_train.plan import Estimate, MicroBatchPlan


def filled(
    full_batch: FullBatch,
    segments: Sequence[Tensor],
    halves: Callable[[Tensor], list[Tensor]],
    estimate: Estimate,
    memory_budget: int,
) -> MicroBatchPlan | None:
    """Make a micro-batch of each run of segments that fits and would not with one segment more.

    From the last to the first: what is loaded beside a micro-batch is known then. A segment that is too much by itself
    is halved.

    Args:
        full_batch: in host memory.
        segments: parts of it in an order in which neighbours share the most.
        halves: a part of several output nodes in two parts or more.
        estimate: what training on a micro-batch takes.
        memory_budget: bytes.

    Returns:
        A plan that fits, or ``None`` where an output node does not fit beside the micro-batch after it.
    """
    cutter = MicroBatchCutter(full_batch)
    remaining, taken, length = list(segments), [], 1
    while remaining:
        beside = taken[-1].estimate.loaded if taken else 0
        runs = _LastRuns(remaining, cutter, estimate, memory_budget - beside)
        length = _longest(runs.fits, max(1, length), len(remaining))
        if length:
            taken.append(runs.run(length))
            del remaining[-length:]
        elif remaining[-1].numel() > 1:
            remaining += halves(remaining.pop())
        else:
            return None
    return MicroBatchPlan(*(list(column) for column in zip(*taken[::-1], strict=True)), memory_budget)


class _Run(NamedTuple):
    """A run of segments as one part, with its micro-batch and what that takes."""

    part: Tensor
    micro_batch: MicroBatch
    estimate: MemoryEstimate


class _LastRuns:
    """The runs at the end of a list of segments, each made once."""

    def __init__(self, segments: Sequence[Tensor], cutter: MicroBatchCutter, estimate: Estimate, room: int) -> None:
        self._segments = segments
        self._cutter = cutter
        self._estimate = estimate
        self._room = room
        self._known: dict[int, _Run] = {}

    def run(self, length: int) -> _Run:
        """The last so many segments."""
        if length not in self._known:
            part = torch.cat(self._segments[-length:]).sort().values
            (micro_batch,) = self._cutter.cut([part])
            self._known[length] = _Run(part, micro_batch, self._estimate(micro_batch))
        return self._known[length]

    def fits(self, length: int) -> bool:
        return self.run(length).estimate.peak <= self._room


def _longest(fits: Callable[[int], bool], start: int, most: int) -> int:
    """The largest number up to ``most`` that fits, 0 for none; found in few steps where it is near ``start``."""
    fitting, too_long, step = 0, most + 1, 1
    length = min(start, most)
    while too_long - fitting > 1:
        if fits(length):
            fitting = length
        else:
            too_long = length
        if too_long > most:
            length = min(fitting + step, most)
        elif fitting == 0:
            length = max(too_long - step, 1)
        else:
            length = (fitting + too_long) // 2
        step *= 2
    return fitting


def even_runs(segments: Sequence[Tensor], count: int) -> list[Tensor]:
    """Segments joined to at most ``count`` parts of about as many output nodes each, in their order."""
    before = torch.tensor([0, *(segment.numel() for segment in segments)]).cumsum(0)
    run_of_segment = before[:-1] * count // before[-1]
    lengths = run_of_segment.bincount()
    ends = lengths[lengths > 0].cumsum(0).tolist()
    return [torch.cat(segments[start:end]) for start, end in zip([0, *ends], ends, strict=False)]
