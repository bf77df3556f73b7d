"""Batch norm over rows that are computed in parts."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from betty.models.chunks import SERIAL_ELEMENTS, row_chunks
from betty.models.norms import BatchNorm

CHUNK_ELEMENTS = {"cpu": SERIAL_ELEMENTS // 2, "cuda": 1 << 20}
"""Of the rows that are looked at in one piece, by device.

On the CPU few enough that PyTorch starts no threads: beside other processes that took 80 times as long.
"""


class BatchStatistics:
    """What a batch norm does to rows that never are on the device together.

    All rows are seen once here, once more by :meth:`backward_`, in pieces; what is summed over them is summed in
    float64. In training mode, or where the norm remembers nothing, rows are normalized by their own mean and variance,
    else by what is remembered, as PyTorch does.

    Args:
        norm: whose weight, bias and mode it is.
        rows: floating ``[num_rows, channels]``, the norm's input, on any device or memory-mapped; not kept.
        updates_running: whether the norm is to remember the statistics, as it would by a forward in training mode.

    Raises:
        BettyError: there are too few rows to take a variance.
    """

    @torch.no_grad()
    def __init__(self, norm: BatchNorm, rows: Tensor, updates_running: bool) -> None:
        self._norm = norm
        self._uses_batch = norm.uses_batch
        norm.check_rows(rows.shape[0])
        if self._uses_batch:
            mean, variance = _mean_and_variance(rows)
            if updates_running:
                norm.remember(mean, variance, rows.shape[0])
        else:
            mean, variance = norm.running_mean.double(), norm.running_var.double()
        self._mean = mean
        self._inverse_deviation = (variance + norm.eps).rsqrt()

    @torch.no_grad()
    def normalize_(self, x: Tensor) -> None:
        """Normalize some of the rows in place; autograd does not see it.

        Args:
            x: floating ``[any, channels]``, on any device.
        """
        x.sub_(self._mean.to(x)).mul_(self._scale(x.device).to(x))
        if self._norm.bias is not None:
            x.add_(self._norm.bias.to(x))

    @torch.no_grad()
    def backward_(self, rows: Tensor, gradient: Tensor) -> None:
        """Turn the gradient of the normalized rows into that of the rows, and add to those of weight and bias.

        Args:
            rows: as they were given at first, not normalized.
            gradient: floating ``[num_rows, channels]``, on the same device, with respect to all normalized rows;
                overwritten.
        """
        mean, inverse_deviation, scale = (
            tensor.to(rows.device) for tensor in (self._mean, self._inverse_deviation, self._scale(rows.device))
        )
        of_weight, of_bias = torch.zeros_like(mean), torch.zeros_like(mean)
        for x, of_result in row_chunks(CHUNK_ELEMENTS[rows.device.type], rows, gradient):
            of_bias += of_result.sum(0, dtype=torch.float64)
            # The mean is in float64, and so is the difference: a new tensor.
            of_weight += (x - mean).mul_(of_result).sum(0)
        of_weight *= inverse_deviation
        _add_gradient(self._norm.weight, of_weight)
        _add_gradient(self._norm.bias, of_bias)
        # Mean and deviation depend on the rows, too, unless they are what is remembered.
        share = 1 / rows.shape[0] if self._uses_batch else 0.0
        slope, offset = of_weight * inverse_deviation * share, of_bias * share
        for x, of_result in row_chunks(CHUNK_ELEMENTS[rows.device.type], rows, gradient):
            of_rows = (mean - x).mul_(slope).add_(of_result).sub_(offset)
            of_result.copy_(of_rows.mul_(scale))

    def _scale(self, device: torch.device) -> Tensor:
        """float64 ``[channels]``: what a row's difference from the mean is multiplied with."""
        inverse_deviation = self._inverse_deviation.to(device)
        weight = self._norm.weight
        return inverse_deviation if weight is None else inverse_deviation * weight.detach().to(inverse_deviation)


def _mean_and_variance(rows: Tensor) -> tuple[Tensor, Tensor]:
    """Those of every channel, float64 ``[channels]`` each; the variance is biased.

    Chan, Golub, LeVeque: Updating Formulae and a Pairwise Algorithm for Computing Sample Variances, 1979.
    """
    mean, squares = torch.zeros(2, rows.shape[1], dtype=torch.float64, device=rows.device)
    seen = 0
    for (chunk,) in row_chunks(CHUNK_ELEMENTS[rows.device.type], rows):
        new = chunk.shape[0]
        chunk_variance, chunk_mean = torch.var_mean(chunk.double(), 0, correction=0)
        difference = chunk_mean - mean
        squares += chunk_variance * new + difference.square() * (seen * new / (seen + new))
        mean += difference * (new / (seen + new))
        seen += new
    return mean, squares / seen


def _add_gradient(parameter: nn.Parameter | None, gradient: Tensor) -> None:
    if parameter is None or not parameter.requires_grad:
        return
    gradient = gradient.to(parameter)
    parameter.grad = gradient if parameter.grad is None else parameter.grad.add_(gradient)
