"""What Betty's autograd functions do inside of ``torch.autocast``: sums over neighbours stay in float32.

PyTorch's own reductions do too. By itself an autograd function would meet inputs of several dtypes there, and its
backward, which runs outside, matrices of others than its forward did.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch.amp import custom_fwd


def float32_forward(forward: Callable[..., Any]) -> Callable[..., Any]:
    """Inside of ``autocast``, let a forward have its floating inputs in float32 and compute without ``autocast``."""
    on_cpu = custom_fwd(forward, device_type="cpu", cast_inputs=torch.float32)
    return _unless_inside(forward, custom_fwd(on_cpu, device_type="cuda", cast_inputs=torch.float32))


def float32_backward(backward: Callable[..., Any]) -> Callable[..., Any]:
    """Let a backward compute without ``autocast`` where it is called inside of it, as the forward did."""

    def without_autocast(*args: Any) -> Any:
        with torch.autocast("cpu", enabled=False), torch.autocast("cuda", enabled=False):
            return backward(*args)

    return _unless_inside(backward, without_autocast)


def _unless_inside(function: Callable[..., Any], guarded: Callable[..., Any]) -> Callable[..., Any]:
    """The function itself where there is no ``autocast``: guards take 15 µs, as small layers do."""

    @functools.wraps(function)
    def guarded_inside(*args: Any) -> Any:
        is_inside = torch.is_autocast_enabled("cpu") or torch.is_autocast_enabled("cuda")
        return (guarded if is_inside else function)(*args)

    return guarded_inside
