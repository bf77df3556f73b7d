"""Splitting a full batch into micro-batches, and loading them one ahead of the training."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Protocol

import torch
from torch import Tensor

from betty.blocks import FullBatch, MicroBatch
from betty.device_loader import DeviceLoader, LoadedBatch, one_ahead
from betty.memory import counted
from betty.micro_batch_train.cutting import SLOTS_IN_CACHE, MicroBatchCutter
from betty.micro_batch_train.parts import check_parts


def split(full_batch: FullBatch, parts: Sequence[Tensor]) -> list[MicroBatch]:
    """Split a full batch into micro-batches.

    Args:
        full_batch: what to split, in host memory.
        parts: int64 tensors of positions in ``full_batch.output_ids``, which together hold every position once.

    Returns:
        One micro-batch per part, in the order of the parts.

    Raises:
        BettyError: the parts overlap or leave out output nodes.
    """
    check_parts(full_batch, parts)
    if not parts:
        return []
    at_once = max(1, SLOTS_IN_CACHE // full_batch.input_ids.numel())
    if at_once > 1 or len(parts) == 1:
        return _cut_all(full_batch, parts, at_once)
    # Large micro-batches: threads are of use where each has work for a while.
    workers = min(torch.get_num_threads(), len(parts))
    with ThreadPoolExecutor(workers) as pool:
        cut_share = counted(lambda first: _cut_all(full_batch, parts[first::workers], at_once))
        shares = list(pool.map(cut_share, range(workers)))
    return [shares[index % workers][index // workers] for index in range(len(parts))]


def _cut_all(full_batch: FullBatch, parts: Sequence[Tensor], at_once: int) -> list[MicroBatch]:
    cutter = MicroBatchCutter(full_batch, min(at_once, len(parts)))
    groups = [parts[first : first + at_once] for first in range(0, len(parts), at_once)]
    return [micro_batch for group in groups for micro_batch in cutter.cut(group)]


class Watch(Protocol):
    """Takes notice of micro-batches that follow each other; what it raises ends their loop."""

    def begin(self) -> None:
        """Nothing is loaded yet."""

    def __call__(self, micro_batch: MicroBatch) -> None:
        """The next micro-batch is to be loaded."""


class MicroBatchLoader:
    """Yields the micro-batches of a full batch on the device, the next one being made while this one trains.

    A background thread cuts the next micro-batch, gathers its features and labels and copies them to the device. It
    runs one ahead and no further: no more than two micro-batches are alive at a time, as long as the caller keeps
    none of them. An error in the background is raised from the loop; leaving the loop early ends the thread.

    Args:
        full_batch: in host memory.
        parts: as for :func:`split`.
        device_loader: gathers and copies.
        watch: takes notice of every loop, and of every micro-batch that is cut, before it is loaded.
        load_batch: called in place of ``device_loader.load``, for a micro-batch with other values than features and
            labels.
    """

    def __init__(
        self,
        full_batch: FullBatch,
        parts: Sequence[Tensor],
        device_loader: DeviceLoader,
        watch: Watch | None = None,
        load_batch: Callable[[MicroBatch, float], LoadedBatch] | None = None,
    ) -> None:
        check_parts(full_batch, parts)
        self._full_batch = full_batch
        self._parts = parts
        self._device_loader = device_loader
        self._watch = watch
        self._load_batch = load_batch or device_loader.load

    @property
    def device(self) -> torch.device:
        """Where micro-batches are brought."""
        return self._device_loader.device

    def __len__(self) -> int:
        return len(self._parts)

    def __iter__(self) -> Iterator[LoadedBatch]:
        return self.load(self._parts)

    def load(self, parts: Iterable[Tensor]) -> Generator[LoadedBatch, None, None]:
        """The same loop over other parts, which need not hold every output node.

        Args:
            parts: int64 tensors of distinct positions in the full batch's ``output_ids``.
        """
        cutter = None

        def load_part(part: Tensor) -> LoadedBatch:
            nonlocal cutter
            start = time.perf_counter()
            cutter = cutter or MicroBatchCutter(self._full_batch)
            (micro_batch,) = cutter.cut([part])
            if self._watch is not None:
                self._watch(micro_batch)
            return self._load_batch(micro_batch, time.perf_counter() - start)

        if self._watch is not None:
            self._watch.begin()
        return one_ahead(load_part, parts, self._device_loader.hand_over)
