"""A linear layer on the fastest matrix product there is."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager

import torch
from torch import Tensor, nn
from torch.autograd.function import FunctionCtx, once_differentiable

from betty.cost.work import Operations, Work, new_tensor
from betty.memory.tape import Held, Tape
from betty.models.autocast import float32_backward, float32_forward
from betty.models.matrix_products import goes_to_onednn, linear, linear_scratch


class Linear(nn.Linear):
    """``torch.nn.Linear``, but that it goes to oneDNN where that is faster than where PyTorch would send it."""

    def forward(self, x: Tensor) -> Tensor:
        """Compute ``x @ weight.T + bias``.

        Args:
            x: floating ``[rows, in_features]``.

        Returns:
            ``[rows, out_features]``.
        """
        if goes_to_onednn(x, self.weight) and not torch.is_autocast_enabled("cpu"):
            return _Linear.apply(x, self.weight, self.bias)
        return super().forward(x)

    def memory(
        self, tape: Tape, x: Held, num_rows: int, needs_gradient: bool, kind: str = "hidden"
    ) -> AbstractContextManager[Held]:
        """What the layer takes, see :class:`~betty.memory.tape.Tape`.

        Args:
            tape: to be played on.
            x: the input.
            num_rows: of the input.
            needs_gradient: whether the input needs one.
            kind: of the result.
        """
        scratch = linear_scratch(self.in_features, tape.dtype, tape.device_type)
        return linear_memory(tape, x, num_rows, self.weight, needs_gradient, self.bias is not None, kind, scratch)

    def work(self, num_rows: int, needs_gradient: bool) -> Work:
        """What the layer computes.

        Args:
            num_rows: of the input.
            needs_gradient: whether the input needs one.
        """
        return linear_work(num_rows, self.in_features, self.out_features, needs_gradient)


class _Linear(torch.autograd.Function):
    @staticmethod
    @float32_forward
    def forward(ctx: FunctionCtx, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        ctx.save_for_backward(x, weight)
        return linear(x, weight, bias)

    @staticmethod
    @once_differentiable
    @float32_backward
    def backward(ctx: FunctionCtx, gradient: Tensor) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
        x, weight = ctx.saved_tensors
        into_x, into_weight, into_bias = ctx.needs_input_grad
        return (
            linear(gradient, weight.T) if into_x else None,
            # With so many rows to sum over, oneDNN is the slower one.
            gradient.T @ x if into_weight else None,
            gradient.sum(0) if into_bias else None,
        )


@contextmanager
def linear_memory(
    tape: Tape,
    x: Held,
    num_rows: int,
    weight: Tensor,
    needs_gradient: bool,
    has_bias: bool = True,
    kind: str = "hidden",
    scratch: int = 0,
) -> Iterator[Held]:
    """What ``x @ weight.T + bias`` takes, see :class:`~betty.memory.tape.Tape`; of the weight only the shape counts."""
    out_features, in_features = weight.shape
    tape.save(x)
    result = tape.allocate(kind, num_rows, out_features)
    tape.touch(kind, scratch, dtype=torch.uint8)
    yield result
    before = tape.gradient
    tape.gradient = tape.allocate("backward", num_rows, in_features) if needs_gradient else None
    tape.add_gradient(out_features, in_features)
    tape.add_gradient(out_features * has_bias)
    tape.free(before, x)


def linear_work(num_rows: int, in_channels: int, out_channels: int, needs_gradient: bool) -> Work:
    """What ``x @ weight.T`` computes, and backward the gradients of the weight and, where it is needed, of ``x``."""
    product = Operations(multiply=2 * num_rows * in_channels * out_channels)
    forward = product + Operations(stream=num_rows * in_channels) + new_tensor(num_rows, out_channels)
    backward = product + Operations(call=1, stream=num_rows * (in_channels + out_channels))
    if needs_gradient:
        backward += product + Operations(stream=num_rows * out_channels) + new_tensor(num_rows, in_channels)
    return Work(forward, backward)
