"""A block of DGL's as tensors."""

from __future__ import annotations

import torch
from torch import Tensor

from betty.dgl_compat import dgl
from betty.dgl_edges import require_dgl, require_plain_edges
from betty.errors import BettyError


def csc_and_ids(block: dgl.DGLGraph) -> tuple[Tensor, Tensor, Tensor]:
    """``indptr``, ``indices`` and the global ids of the source nodes, which are counted where the block has none.

    Args:
        block: of one node type and one edge type, whose destinations come first among its sources.

    Raises:
        BettyError: it is not such a block, or has data on its edges.
    """
    require_dgl(block)
    if not len(block.srctypes) == len(block.dsttypes) == len(block.canonical_etypes) == 1:
        raise BettyError(
            "the block has several node or edge types; make the graph one with dgl.to_homogeneous(graph, "
            "store_type=False), and sample blocks of that"
        )
    require_plain_edges(block)
    num_src, num_dst = block.num_src_nodes(), block.num_dst_nodes()
    src_ids = block.srcdata.get(dgl.NID, torch.arange(num_src, device=block.device))
    dst_ids = block.dstdata.get(dgl.NID, src_ids[:num_dst])
    if num_dst > num_src or not torch.equal(src_ids[:num_dst], dst_ids):
        raise BettyError(
            "the block's source nodes do not begin with its destination nodes; make it by dgl.to_block with "
            "include_dst_in_src=True"
        )
    indptr, indices, _ = block.adj_tensors("csc")
    return indptr, indices, src_ids
