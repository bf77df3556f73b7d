"""Measuring the most memory that tensors take at one time."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import ContextVar
from types import TracebackType
from typing import ParamSpec, TypeVar

import numpy as np
import torch

from betty.errors import BettyError
from betty.memory.allocator_events import AllocatorEvent, paused, recorded

Parameters = ParamSpec("Parameters")
Result = TypeVar("Result")

CPU = torch.device("cpu")

# By device, of the meter that runs there: a second one would take away the first one's numbers.
_events_of_running: dict[torch.device, list[AllocatorEvent]] = {}

# Whether the thread is inside of uncounted; threads that it starts do not know by themselves.
_is_uncounted: ContextVar[bool] = ContextVar("is_uncounted", default=False)


class PeakMemory:
    """The peak of what tensors take on a device inside of a ``with``, beyond what they took at its start.

    ::

        with betty.PeakMemory("cpu") as meter:
            model(blocks, x).sum().backward()
        print(meter.peak_bytes)

    Temporaries inside of kernels count, and so does what is allocated inside and still alive at the end.

    On CUDA this is ``max_memory_allocated`` minus ``memory_allocated`` at the start, of all threads, in the units of
    PyTorch's caching allocator (multiples of 512 bytes); ``reset_peak_memory_stats`` is called at the start. It costs
    nothing.

    On the CPU it is the highest sum of what PyTorch's allocator handed out less what it took back, in bytes as asked
    for: of the thread of the ``with``, the backward passes it starts, and the background work of Betty's loaders and
    of ``betty.split``. Other threads count as far as they run what :func:`counted` returned. Tensors from before the
    start should not be freed inside, nor should other threads free what was allocated inside: on CUDA the former lower
    the sum, on the CPU only as far as an earlier meter saw memory allocated at their address (else PyTorch warns of a
    block of unknown size). Notes of 300 bytes an event are kept until the end: measure steps or an epoch, not a run.

    Measuring made a mean step on cora take 1.21 times as long (4.7 ms without), an lstm step (1.4 s) no longer: 64
    output nodes, fan-outs 10,25, 64 hidden channels, one thread of a busy machine; ``./scripts/benchmark.sh meter``.

    Args:
        device: the CPU, or a CUDA device.

    Raises:
        BettyError: memory is not counted on such a device; on entry, a meter is running there already, or PyTorch's
            profiler is in this thread.
    """

    def __init__(self, device: torch.device | str = "cpu") -> None:
        self._device = _with_index(device)
        self._events: list[AllocatorEvent] = []
        self._recording: AbstractContextManager[None] | None = None
        self._bytes_before = 0
        self._peak_bytes: int | None = None

    @property
    def peak_bytes(self) -> int:
        """The peak, in bytes.

        Raises:
            BettyError: the ``with`` has not ended.
        """
        if self._peak_bytes is None:
            raise BettyError(
                "the peak of a PeakMemory is known when its with block has ended; read peak_bytes after it"
            )
        return self._peak_bytes

    def __enter__(self) -> PeakMemory:
        if self._device in _events_of_running:
            raise BettyError(f"a PeakMemory of {self._device} is running already; use one after the other")
        self._peak_bytes, self._events = None, []
        if self._device == CPU:
            if torch.autograd._profiler_enabled():
                raise BettyError("PeakMemory uses PyTorch's profiler, which is running already; end it before")
            self._recording = recorded(self._events)
            self._recording.__enter__()
        else:
            torch.cuda.reset_peak_memory_stats(self._device)
            self._bytes_before = torch.cuda.memory_allocated(self._device)
        _events_of_running[self._device] = self._events
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        del _events_of_running[self._device]
        if self._recording is None:
            self._peak_bytes = torch.cuda.max_memory_allocated(self._device) - self._bytes_before
        else:
            self._recording.__exit__(None, None, None)
            self._peak_bytes = highest_sum(self._events)
            self._events = []


@contextmanager
def uncounted() -> Iterator[None]:
    """Leave out of a running meter of the CPU what this thread allocates inside, work of the host that is not measured.

    What is allocated inside should not be freed while the meter runs, nor the other way round, unless it is small.
    Work that is handed to other threads by way of :func:`counted` inside is left out as well.
    """
    events = _events_of_running.get(CPU)
    is_counting = events is not None and torch.autograd._profiler_enabled()
    before = _is_uncounted.set(True)
    try:
        with paused(events) if is_counting else nullcontext():
            yield
    finally:
        _is_uncounted.reset(before)


def counted(work: Callable[Parameters, Result]) -> Callable[Parameters, Result]:
    """Let a meter of the CPU count what work allocates in another thread.

    Args:
        work: to be called in another thread; counts if a :class:`PeakMemory` runs from before each call until its end.

    Returns:
        The same work; inside of :func:`uncounted` as it is.
    """
    if _is_uncounted.get():
        return work

    @functools.wraps(work)
    def counted_work(*args: Parameters.args, **kwargs: Parameters.kwargs) -> Result:
        events = _events_of_running.get(CPU)
        if events is None or torch.autograd._profiler_enabled():
            return work(*args, **kwargs)
        with recorded(events):
            return work(*args, **kwargs)

    return counted_work


def highest_sum(events: list[AllocatorEvent]) -> int:
    """The most bytes that were alive at one time, at least 0.

    Args:
        events: of several threads, each thread's in order of time.
    """
    if not events:
        return 0
    times, sizes = np.array([event.time_us for event in events]), np.array([event.num_bytes for event in events])
    return max(0, int(sizes[times.argsort(kind="stable")].cumsum().max()))


def _with_index(device: torch.device | str) -> torch.device:
    try:
        device = torch.device(device)
    except RuntimeError as error:
        raise BettyError(f"there is no device {device!r}; PeakMemory counts on cpu and cuda") from error
    if device.type == "cpu":
        return CPU
    if device.type != "cuda":
        raise BettyError(f"PeakMemory counts on cpu and cuda, not on {device}")
    if (device.index or 0) >= torch.cuda.device_count():
        raise BettyError(f"this machine has no device {device} for PeakMemory to count on")
    return torch.device("cuda", torch.cuda.current_device() if device.index is None else device.index)
