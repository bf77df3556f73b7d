"""What Betty's autograd functions do inside of ``torch.autocast``: sums over neighbours stay in float32.

PyTorch's own reductions do too. By itself an autograd function would meet inputs of several dtypes there, and its
backward, which runs outside, matrices of others than its forward did.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch.amp import custom_bwd, custom_fwd

DEVICE_TYPES = ("cpu", "cuda")


def float32_forward(forward: Callable[..., Any]) -> Callable[..., Any]:
    """Inside of ``autocast``, let a forward have its floating inputs in float32 and compute without ``autocast``."""
    for device_type in DEVICE_TYPES:
        forward = custom_fwd(forward, device_type=device_type, cast_inputs=torch.float32)
    return forward


def float32_backward(backward: Callable[..., Any]) -> Callable[..., Any]:
    """Let the backward of a :func:`float32_forward` compute without ``autocast`` where it is called inside of it."""
    guarded = backward
    for device_type in DEVICE_TYPES:
        guarded = custom_bwd(guarded, device_type=device_type)

    @functools.wraps(backward)
    def guarded_where_needed(*args: Any) -> Any:
        # The guard takes 15 µs, as long as the backward of a small layer.
        is_inside = any(torch.is_autocast_enabled(device_type) for device_type in DEVICE_TYPES)
        return (guarded if is_inside else backward)(*args)

    return guarded_where_needed
