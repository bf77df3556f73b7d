"""Bringing batches to the device, the next one in the background of the training."""

from __future__ import annotations

import time
import weakref
from collections.abc import Callable, Generator, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from threading import Event
from typing import NamedTuple, TypeVar

import torch
from torch import Tensor

from betty.background import require_room_for_a_thread
from betty.blocks import MicroBatch
from betty.datasets.dataset import Pending, checked_value
from betty.memory import counted

Job = TypeVar("Job")
Result = TypeVar("Result")


@dataclass(frozen=True, eq=False)
class LoadedBatch:
    """A batch on the device, with what it takes to train on it.

    Args:
        batch: the blocks.
        features: ``[num_inputs, channels]``, of its input nodes: the data set's, or what the layers before made.
        target: of its output nodes: labels, int64 ``[num_outputs]``, or the gradient of the loss with respect to their
            results, ``[num_outputs, channels]``; ``None`` where nothing but results is asked for.
        prepare_s: seconds that making the blocks took.
        transfer_s: seconds that gathering the features and copying everything to the device took.
    """

    batch: MicroBatch
    features: Tensor
    target: Tensor | None
    prepare_s: float
    transfer_s: float

    def record_stream(self, stream: torch.cuda.Stream) -> None:
        """Keep the memory of a batch that another stream made until ``stream`` has used it."""
        self.batch.record_stream(stream)
        self.features.record_stream(stream)
        if self.target is not None:
            self.target.record_stream(stream)


class Rows(NamedTuple):
    """Some rows of a tensor that does not belong to a batch.

    Args:
        values: ``[num_rows, ...]``, in host memory, mapped from a file, or on the device.
        positions: int64, in host memory.
    """

    values: Tensor
    positions: Tensor


class DeviceLoader:
    """Gathers a batch's features and labels in host memory and copies them with its blocks to the device.

    On CUDA the copy goes through page-locked memory on a stream of its own, so that it runs beside the kernels of
    the batch in training.

    Args:
        features: ``[num_nodes, num_features]`` of all nodes, in host memory (may be memory-mapped), or what their check
            will give, which the first batch waits for.
        labels: int64 ``[num_nodes]``.
        device: where to train.
    """

    def __init__(self, features: Tensor | Pending[Tensor], labels: Tensor, device: torch.device) -> None:
        self._features = features
        self._labels = labels
        self.device = device
        self._stream = torch.cuda.Stream(device) if device.type == "cuda" else None

    @property
    def num_features(self) -> int:
        """Channels of the features."""
        return self._features.shape[1]

    def load(self, batch: MicroBatch, prepare_s: float) -> LoadedBatch:
        """Bring a batch with its features and labels to the device; what is returned is there already."""
        return self.load_rows(batch, prepare_s, self.features_of(batch), self.labels_of(batch))

    def features_of(self, batch: MicroBatch) -> Rows:
        """The features of a batch's input nodes."""
        return Rows(checked_value(self._features), batch.input_ids)

    def labels_of(self, batch: MicroBatch) -> Rows:
        """The labels of its output nodes."""
        return Rows(self._labels, batch.output_ids)

    def load_rows(self, batch: MicroBatch, prepare_s: float, features: Rows, target: Rows | None) -> LoadedBatch:
        """The same with other values for the batch's input and output nodes, see :class:`LoadedBatch`."""
        start = time.perf_counter()
        selected = [self._gather(features), None if target is None else self._gather(target)]
        if self._stream is None:
            batch, selected = (
                batch.to(self.device),
                [rows if rows is None else rows.to(self.device) for rows in selected],
            )
        else:
            with torch.cuda.stream(self._stream):
                batch = batch.pin_memory().to(self.device, non_blocking=True)
                selected = [rows if rows is None else rows.to(self.device, non_blocking=True) for rows in selected]
            self._stream.synchronize()
        return LoadedBatch(batch, *selected, prepare_s, time.perf_counter() - start)

    def hand_over(self, loaded: LoadedBatch) -> LoadedBatch:
        """Let the current stream of the calling thread use what :meth:`load` returned in another thread."""
        if self._stream is not None:
            loaded.record_stream(torch.cuda.current_stream(self.device))
        return loaded

    def _gather(self, rows: Rows) -> Tensor:
        if rows.values.device.type != "cpu":
            with torch.cuda.stream(self._stream):
                return rows.values.index_select(0, rows.positions.to(self.device))
        shape = (rows.positions.numel(), *rows.values.shape[1:])
        gathered = torch.empty(shape, dtype=rows.values.dtype, pin_memory=self._stream is not None)
        return torch.index_select(rows.values, 0, rows.positions, out=gathered)


def one_ahead(
    load: Callable[[Job], Result], jobs: Iterable[Job], receive: Callable[[Result], Result] = lambda result: result
) -> Generator[Result, None, None]:
    """Yield ``load(job)`` for every job, the next one being loaded in a background thread.

    A caller that lets each result go when it asks for the next one never has more than two alive, the one in its
    hands and the one being loaded: loading waits until the result before is gone. A caller that keeps them all gets
    them all, one after the other. An error in the background is raised here, in its turn; closing the iterator waits
    for the background thread and ends it.

    Args:
        load: called in the background; what it returns can be referred to weakly.
        jobs: what to load, one after the other.
        receive: called with each result in the thread of the caller.
    """
    require_room_for_a_thread()
    with ThreadPoolExecutor(max_workers=1, thread_name_prefix="one-ahead") as background:
        jobs = iter(jobs)
        gone_before_last = _set_event()
        pending = _submit_next(background, load, jobs, gone_before_last)
        gone_last = _set_event()
        try:
            while pending is not None:
                # The caller is back: if it kept the result before, it wants more than two.
                gone_before_last.set()
                result = receive(pending.result())
                gone_before_last, gone_last = gone_last, Event()
                weakref.finalize(result, gone_last.set)
                pending = _submit_next(background, load, jobs, gone_before_last)
                yield result
                del result
        finally:
            gone_before_last.set()


def _set_event() -> Event:
    event = Event()
    event.set()
    return event


def _submit_next(
    background: ThreadPoolExecutor, load: Callable[[Job], Result], jobs: Iterator[Job], may_start: Event
) -> Future[Result] | None:
    def load_in_turn(job: Job) -> Result:
        may_start.wait()
        return load(job)

    for job in jobs:
        return background.submit(counted(load_in_turn), job)
    return None
