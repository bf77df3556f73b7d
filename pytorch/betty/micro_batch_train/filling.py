"""Filling micro-batches with runs of small parts, as long as fit a memory budget."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from betty.blocks import FullBatch, MicroBatch
from betty.memory import MemoryEstimate
from betty.micro_batch_train.cutting import MicroBatchCutter
from betty.micro_batch_train.plan import Estimate, MicroBatchPlan

EXPONENT = 0.75
"""Of the power of its length by which a run's need rises, to guess the second length to try."""

SLOWEST_RISE = 0.35
"""The same power at the least: where even so one segment more would be too much, that is not tried."""

SMALLEST_SHARE = 1e-6
"""What a run is taken to fill at least: a guess is a multiple of what is left."""

LARGEST_SHARE = 1e6
"""What a run is taken to fill where there is no room at all."""


def filled(
    full_batch: FullBatch,
    segments: Sequence[Tensor],
    halves: Callable[[Tensor], list[Tensor]],
    estimate: Estimate,
    memory_budget: int,
    most_loaded: float = math.inf,
) -> MicroBatchPlan | None:
    """Make a micro-batch of each run of segments that fits, and with one segment more should not.

    Whether it would is not tried where what the run takes leaves little doubt, see :data:`SLOWEST_RISE`. From the last
    to the first: what is loaded beside a micro-batch is known then. A segment that is too much by itself is halved.

    Args:
        full_batch: in host memory.
        segments: parts of it in an order in which neighbours share the most.
        halves: a part of several output nodes in two parts or more.
        estimate: what training on a micro-batch takes.
        memory_budget: bytes.
        most_loaded: bytes that a micro-batch may take beside another one.

    Returns:
        A plan that fits, or ``None`` where an output node does not fit beside the micro-batch after it.
    """
    cutter = MicroBatchCutter(full_batch)
    remaining, taken, length = list(segments), [], 1
    while remaining:
        beside = taken[-1].estimate.loaded if taken else 0
        runs = _LastRuns(remaining, cutter, estimate, memory_budget - beside, most_loaded)
        length = _longest(runs.fill, max(1, length), len(remaining))
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

    def __init__(
        self,
        segments: Sequence[Tensor],
        cutter: MicroBatchCutter,
        estimate: Estimate,
        room: int,
        most_loaded: float,
    ) -> None:
        self._segments = segments
        self._cutter = cutter
        self._estimate = estimate
        self._room = room
        self._most_loaded = most_loaded
        self._known: dict[int, _Run] = {}

    def run(self, length: int) -> _Run:
        """The last so many segments."""
        if length not in self._known:
            part = ascending(self._segments[-length:])
            (micro_batch,) = self._cutter.cut([part])
            self._known[length] = _Run(part, micro_batch, self._estimate(micro_batch))
        return self._known[length]

    def fill(self, length: int) -> float:
        """The share of the room that the last so many segments take."""
        estimate = self.run(length).estimate
        static = estimate.static
        if self._room <= static:
            return LARGEST_SHARE
        share = (estimate.peak - static) / (self._room - static)
        return max(SMALLEST_SHARE, share, estimate.loaded / self._most_loaded)


class _Step(NamedTuple):
    """A length that was tried, and the share of the room that it takes."""

    length: int
    share: float


def _longest(fill: Callable[[int], float], start: int, most: int) -> int:
    """The largest length up to ``most`` that fits, or nearly so, 0 for none.

    One step or two where ``start`` is the answer, few where it is near.

    Args:
        fill: the share of the room that a length takes, up to 1 where it fits; rises with the length.
        start: the first length to try.
        most: at least 1.
    """
    fitting, too_long, exponent = 0, most + 1, EXPONENT
    before: _Step | None = None
    length = min(start, most)
    while too_long - fitting > 1:
        share = fill(length)
        if share <= 1:
            fitting = length
            if share * (1 + 1 / length) ** SLOWEST_RISE > 1:
                break
        else:
            too_long = length
        if before is not None:
            rise = math.log(share / before.share) / math.log(length / before.length)
            exponent = min(max(rise, SLOWEST_RISE), 1)
        before = _Step(length, share)
        guess = round(length * share ** (-1 / exponent))
        length = min(max(guess, fitting + 1), too_long - 1)
    return fitting


def ascending(segments: Sequence[Tensor]) -> Tensor:
    """Segments as one part, its positions in ascending order."""
    # By NumPy, which takes a fraction of the time that PyTorch's threads do.
    return torch.from_numpy(np.sort(torch.cat(list(segments)).numpy()))


def even_runs(segments: Sequence[Tensor], count: int) -> list[Tensor]:
    """Segments joined to at most ``count`` parts of about as many output nodes each, in the order of segments."""
    before = torch.tensor([0, *(segment.numel() for segment in segments)]).cumsum(0)
    run_of_segment = before[:-1] * count // before[-1]
    lengths = run_of_segment.bincount()
    ends = lengths[lengths > 0].cumsum(0).tolist()
    return [ascending(segments[start:end]) for start, end in zip([0, *ends], ends, strict=False)]
