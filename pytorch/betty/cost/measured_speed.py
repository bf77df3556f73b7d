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

LEAST_SHARE = 0.25
"""Of a probe's time for what it looks for: others were slower when they were measured where less is left."""


def measured_speed(device: torch.device) -> Speed:
    """Time a kernel of every kind, in a second in all on two cores of the CPU.

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
    """The least of several times, after a run that does not count."""
    times = []
    for _ in range(1 + REPETITIONS):
        _finish(device)
        start = time.perf_counter()
        run()
        _finish(device)
        times.append(time.perf_counter() - start)
    return min(times[1:])


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
