"""The parts of a full batch: which output nodes go into which micro-batch."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from betty.blocks import FullBatch
from betty.errors import BettyError


def check_parts(full_batch: FullBatch, parts: Sequence[Tensor]) -> None:
    """Refuse parts that do not hold every output node exactly once.

    Raises:
        BettyError: they do not, one is empty, or one is not an int64 tensor.
    """
    num_outputs = full_batch.output_ids.numel()
    for part in parts:
        if not isinstance(part, Tensor) or part.dtype != torch.int64 or part.dim() != 1:
            raise BettyError(f"a part is {_describe(part)}, and must be a one-dimensional tensor of torch.int64")
    if any(part.numel() == 0 for part in parts):
        raise BettyError("a part has no output nodes; leave it out")
    # NumPy and not PyTorch, whose idle threads would take the cores from those that cut.
    positions = np.concatenate([part.numpy() for part in parts]) if parts else np.empty(0, dtype=np.int64)
    in_range = positions.size == num_outputs and positions.min() >= 0 and positions.max() < num_outputs
    if not in_range or (np.bincount(positions, minlength=num_outputs) != 1).any():
        raise BettyError(
            f"the parts hold {positions.size} positions, but must hold each of the {num_outputs} output nodes once"
        )


def _describe(part: object) -> str:
    return f"{part.dtype} {list(part.shape)}" if isinstance(part, Tensor) else f"a {type(part).__name__}"
