"""Products of matrices by whatever library is fastest for them; no gradients."""

import torch
from torch import Tensor

HAS_ONEDNN = torch.backends.mkldnn.is_available() and hasattr(torch.ops.mkldnn, "_linear_pointwise")
"""Whether PyTorch holds oneDNN's linear layer, which its compiler uses; no public function leads to it."""


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """Compute ``x @ weight.T + bias``.

    PyTorch sends products of float32 matrices on the CPU to MKL, which uses half the width of the vector units of
    AMD's processors: measured on a core of an EPYC, 105 Gflop/s for ``[512, 128] @ [128, 512]`` against oneDNN's 240.

    Args:
        x: floating ``[rows, in_channels]``.
        weight: ``[out_channels, in_channels]``, of the same dtype.
        bias: ``[out_channels]``, of the same dtype, or nothing.
    """
    if goes_to_onednn(x, weight):
        return torch.ops.mkldnn._linear_pointwise(x, weight, bias, "none", [], "")
    return torch.nn.functional.linear(x, weight, bias)


def sigmoid_linear(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """Compute the logistic function of ``x @ weight.T + bias``, in one pass where :func:`linear` goes to oneDNN.

    Args:
        x: floating ``[rows, in_channels]``.
        weight: ``[out_channels, in_channels]``, of the same dtype.
        bias: ``[out_channels]``, of the same dtype.
    """
    if goes_to_onednn(x, weight):
        return torch.ops.mkldnn._linear_pointwise(x, weight, bias, "sigmoid", [], "")
    return torch.addmm(bias, x, weight.T).sigmoid_()


def linear_scratch(in_channels: int, dtype: torch.dtype, device_type: str) -> int:
    """Bytes that :func:`linear` takes beside its result, where oneDNN copies pieces of the weight for every thread.

    Observed with PyTorch 2.13: 64 rows of up to 1,024 columns, a multiple of 16, and a little more.
    """
    if not HAS_ONEDNN or device_type != "cpu" or dtype != torch.float32:
        return 0
    return torch.get_num_threads() * 64 * min(-(-in_channels // 16) * 16, 1024) * dtype.itemsize + 1024


def goes_to_onednn(x: Tensor, weight: Tensor) -> bool:
    """Whether :func:`linear` computes this product with oneDNN."""
    has_kernel = HAS_ONEDNN and x.device.type == "cpu" and x.dtype == torch.float32
    # For matrices with gaps between their rows or columns oneDNN has nothing but a loop, hundreds of times slower.
    return has_kernel and _has_no_gaps(x) and _has_no_gaps(weight)


def _has_no_gaps(matrix: Tensor) -> bool:
    return matrix.is_contiguous() or matrix.T.is_contiguous()
