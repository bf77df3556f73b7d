"""Measuring how fast a device is."""

from __future__ import annotations

import math
import time
from collections.abc import Callable

import torch

from betty.cost.probes import Probe, probes
from betty.cost.speed import Speed
from betty.cost.work import Operations

REPETITIONS = 3
STEPS_PER_DOUBLING = 4

HOPELESS = 3
"""How many times longer than one alone threads take where there is no use in trying again."""

LEAST_SHARE = 0.25
"""Of a probe's time for what it looks for: others were slower when they were measured where less is left."""


def measured_speed(device: torch.device) -> Speed:
    """Time a kernel of every kind: a second in all on two idle cores of the CPU, several beside other programs.

    What a probe takes for other kinds of operations, which were measured before, is subtracted. Seconds are rounded to
    powers of the fourth root of 2, so that another measurement mostly finds the same. Random numbers of PyTorch are
    what they were.

    Args:
        device: as many threads as PyTorch has count, too.
    """
    forward, backward = Operations(), Operations()
    on_cuda = device.type == "cuda"
    with torch.random.fork_rng([device] if on_cuda else []), torch.enable_grad(), torch.autocast("cpu", enabled=False):
        for probe in probes(device):
            seconds = _best_seconds(probe.run, device)
            forward = _with_kind(forward, probe.kind, probe.work.forward, seconds)
            if probe.inputs:
                seconds = _best_seconds(_backward_of(probe), device)
                backward = _with_kind(backward, probe.kind, probe.work.backward, seconds)
            else:
                backward = _replaced(backward, probe.kind, getattr(forward, probe.kind))
    return Speed(forward, backward)


def rounded(seconds: float) -> float:
    """The nearest of the powers that seconds are rounded to; 0 for what takes no time."""
    if seconds <= 0:
        return 0.0
    return 2 ** (round(STEPS_PER_DOUBLING * math.log2(seconds)) / STEPS_PER_DOUBLING)


def _backward_of(probe: Probe) -> Callable[[], object]:
    result = probe.run()
    gradient = torch.ones_like(result)
    return lambda: torch.autograd.grad(result, probe.inputs, gradient, retain_graph=True)


def _best_seconds(run: Callable[[], object], device: torch.device) -> float:
    """The least of several times; the first run is there to warm up.

    On the CPU one thread has its turn first, whose own time other programs hardly change. All threads count where they
    take less: beside other programs they wait for each other, for a hundred times as long as there is work to do.
    """
    if device.type == "cuda":
        return _least_seconds(run, time.perf_counter, device)
    num_threads = torch.get_num_threads()
    try:
        torch.set_num_threads(1)
        of_one_thread = _least_seconds(run, time.thread_time, device)
    finally:
        torch.set_num_threads(num_threads)
    if num_threads == 1:
        return of_one_thread
    return min(of_one_thread, _least_seconds(run, time.perf_counter, device, HOPELESS * of_one_thread))


def _least_seconds(
    run: Callable[[], object], clock: Callable[[], float], device: torch.device, hopeless: float = math.inf
) -> float:
    """The least of some times by a clock; there are no more once one was hopeless."""
    least = math.inf
    for _ in range(1 + REPETITIONS):
        _finish(device)
        start = clock()
        run()
        _finish(device)
        seconds = clock() - start
        least = min(least, seconds)
        if seconds > hopeless:
            break
    return least


def _finish(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def _with_kind(known: Operations, kind: str, operations: Operations, seconds: float) -> Operations:
    """The known seconds per unit with those of one kind more: what is left of the time when the others are subtracted.

    Args:
        known: of earlier kinds.
        kind: not among them.
        operations: that took the time.
        seconds: the time.
    """
    amount = getattr(operations, kind)
    left = max(seconds - known.dot_product(operations), LEAST_SHARE * seconds)
    return _replaced(known, kind, rounded(left / amount) if amount else 0.0)


def _replaced(known: Operations, kind: str, seconds: float) -> Operations:
    return known + Operations(**{kind: seconds})
