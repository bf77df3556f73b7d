"""What PyTorch's CPU allocator hands out and takes back, as it tells its profiler."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

import torch


class AllocatorEvent(NamedTuple):
    """Memory that was allocated for a tensor or freed.

    Args:
        time_us: when, in microseconds of a clock that all threads share.
        num_bytes: how much; negative where it was freed.
    """

    time_us: float
    num_bytes: int


@contextmanager
def recorded(events: list[AllocatorEvent]) -> Iterator[None]:
    """Record what this thread allocates and frees, and append it to ``events`` at the end.

    The threads that PyTorch's backward pass uses are recorded too; a Python thread must record for itself. This is the
    profiler that PyTorch calls legacy: the newer one can run in one thread at a time, drops memory events when it is
    told to profile all threads, and writes to the standard error.

    Args:
        events: may be shared by several threads.
    """
    _start()
    try:
        yield
    finally:
        _stop(events)


@contextmanager
def paused(events: list[AllocatorEvent]) -> Iterator[None]:
    """Record nothing inside, in the middle of :func:`recorded` to the same events."""
    _stop(events)
    try:
        yield
    finally:
        _start()


def _start() -> None:
    torch.autograd._enable_profiler_legacy(_memory_only())
    torch.autograd._enable_record_function(False)  # or every operation would be an event as well


def _stop(events: list[AllocatorEvent]) -> None:
    torch.autograd._enable_record_function(True)
    threads = torch.autograd._disable_profiler_legacy()
    events.extend(
        AllocatorEvent(event.start_us(), event.cpu_memory_usage())
        for thread in threads
        for event in thread
        if event.kind() == "memory_alloc"
    )


def _memory_only() -> torch._C._profiler.ProfilerConfig:
    profiler = torch._C._profiler
    return profiler.ProfilerConfig(
        profiler.ProfilerState.CPU,
        False,  # shapes
        True,  # memory
        False,  # stacks
        False,  # floating-point operations
        False,  # modules
        profiler._ExperimentalConfig(),
    )
