"""Node ids, in whatever form they are given."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from betty.errors import BettyError


def as_node_ids(ids: Tensor | NDArray | Sequence[int], what: str) -> Tensor:
    """Ids as an int64 tensor in host memory: the very same one where they are that already.

    Args:
        ids: one-dimensional, integers of any width.
        what: to blame in an error, in the plural.

    Raises:
        BettyError: they are on a device, no integers, none at all, or not in one dimension.
    """
    if isinstance(ids, Tensor) and ids.device.type != "cpu":
        raise BettyError(f"{what} are on {ids.device}, and sampled in host memory; move them there with .cpu()")
    try:
        tensor = ids if isinstance(ids, Tensor) else _from_array(np.asarray(ids))
    # Lists of lists of several lengths, and dtypes that PyTorch does not have.
    except (ValueError, TypeError):
        raise BettyError(f"{what} are a {type(ids).__name__} that holds no integers; {_ADVICE}") from None
    if tensor.dim() != 1 or tensor.numel() == 0:
        raise BettyError(f"{what} are of shape {list(tensor.shape)}, and must be one-dimensional and non-empty")
    if tensor.dtype == torch.bool:
        raise BettyError(f"{what} are a mask, and must be ids; give torch.as_tensor(mask).nonzero().view(-1)")
    if tensor.is_floating_point() or tensor.is_complex():
        raise BettyError(f"{what} are {tensor.dtype}, and must be integers; {_ADVICE}")
    return tensor.long()


def _from_array(array: NDArray) -> Tensor:
    # PyTorch takes neither the other byte order nor, without a warning, what cannot be written to.
    return torch.from_numpy(np.require(array, array.dtype.newbyteorder("="), "W"))


_ADVICE = "give a list, an array or a tensor of them"
