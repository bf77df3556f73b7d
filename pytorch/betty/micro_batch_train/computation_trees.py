"""What every single output node takes to compute, without cutting anything."""

from __future__ import annotations

import torch
from torch import Tensor

from betty.blocks import FullBatch

LARGEST_TREE = 2**31
"""Where counting ends: 2³² such trees can be summed."""


def tree_sizes(full_batch: FullBatch) -> Tensor:
    """Count the nodes of the tree that computes each output node.

    The tree of a node holds the node, the trees of its sources in the last block, and its own tree in the block
    before; a node that is reached in several ways counts each time. O(edges of the full batch).

    Args:
        full_batch: in host memory.

    Returns:
        int64 ``[num_outputs]``, from 1 to :data:`LARGEST_TREE`.
    """
    sizes = torch.ones_like(full_batch.input_ids)
    for block in full_batch.blocks:
        until = torch.zeros(block.num_edges + 1, dtype=torch.int64)
        torch.cumsum(sizes.index_select(0, block.indices), 0, out=until[1:])
        of_sources = until.index_select(0, block.indptr[1:]) - until.index_select(0, block.indptr[:-1])
        sizes = (sizes[: block.num_dst] + of_sources).clamp_(max=LARGEST_TREE)
    return sizes
