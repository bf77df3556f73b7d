"""A linear layer on the fastest matrix product there is."""

import torch
from torch import Tensor, nn
from torch.autograd.function import FunctionCtx, once_differentiable

from betty.models.matrix_products import goes_to_onednn, linear


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


class _Linear(torch.autograd.Function):
    @staticmethod
    def forward(ctx: FunctionCtx, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        ctx.save_for_backward(x, weight)
        return linear(x, weight, bias)

    @staticmethod
    @once_differentiable
    def backward(ctx: FunctionCtx, gradient: Tensor) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
        x, weight = ctx.saved_tensors
        into_x, into_weight, into_bias = ctx.needs_input_grad
        return (
            linear(gradient, weight.T) if into_x else None,
            # With so many rows to sum over, oneDNN is the slower one.
            gradient.T @ x if into_weight else None,
            gradient.sum(0) if into_bias else None,
        )
