"""Weighted graphs over the output nodes of a block, whose minimum cut is a good partition of them."""

from __future__ import annotations

import numpy as np
import pymetis
from scipy.sparse import csr_array, eye_array

from betty.blocks import Block

MAX_SHARING = 64
"""The most output nodes that may share a source node for it to count in the redundancy-embedded graph.

A hub that ``n`` output nodes share makes ``n²`` pairs of weight 1: it costs the most time and memory, tells the least
(nearly every part needs it in any partition) and drowns what tells more. Of the bounds from 16 to none, measured with
fan-outs 10 and 10,25, this one gave less redundancy than none in 16 parts of every graph: at 10,25 cora 2.25 and 2.38,
citeseer 1.43 and 1.44, tolokers 6.32 and 6.39, synthetic-arxiv 4.09 and 5.49, there in a fourth of the time.
``scripts/benchmark.sh hubs`` measures it again.

In a block with few sources for its output nodes most edges may come from such hubs, which then are all there is to
tell output nodes apart: the bound is raised until it keeps half of the edges.
"""


def induced_graph(block: Block) -> csr_array:
    """The edges of a block whose both ends are output nodes, in both directions, each of weight 1.

    Returns:
        Symmetric ``[num_dst, num_dst]`` without a diagonal.
    """
    among_outputs = own_and_neighbours(block, _ones(block.num_edges))[:, : block.num_dst]
    graph = (among_outputs + among_outputs.T).tocsr()
    graph.data.fill(1)
    return _without_diagonal(graph)


def redundancy_graph(block: Block, max_sharing: int = MAX_SHARING) -> csr_array:
    """The redundancy-embedded graph of a block (Betty, ASPLOS 2023, section 4): A·Aᵀ, its diagonal dropped.

    A holds a 1 for every source node that an output node needs, itself among them. The weight of two output nodes is
    thus the number of source nodes that they share: what is loaded twice if they part.

    Source nodes that more than ``max_sharing`` output nodes share are not counted (or more than the median edge's
    source is shared by, if that is more), which bounds the pairs by that number times the edges.

    Returns:
        Symmetric ``[num_dst, num_dst]`` without a diagonal; the weights are shared source nodes.
    """
    adjacency = own_and_neighbours(block, _is_counted(block, max_sharing))
    return _without_diagonal(adjacency @ adjacency.T)


def _ones(num_edges: int) -> np.ndarray:
    # METIS's own type: the product is handed over without a copy.
    return np.ones(num_edges, dtype=pymetis.zero_copy_dtype())


def _is_counted(block: Block, max_sharing: int) -> np.ndarray:
    """For every edge 1 if its source node counts in the redundancy-embedded graph, 0 if too many share it."""
    num_sharing = np.bincount(block.indices.numpy(), minlength=block.num_src)
    num_sharing[: block.num_dst] += 1
    sharing_of_edge = num_sharing.take(block.indices.numpy())
    bound = max(max_sharing, np.median(sharing_of_edge)) if sharing_of_edge.size else max_sharing
    return (sharing_of_edge <= bound).astype(pymetis.zero_copy_dtype())


def own_and_neighbours(block: Block, edge_values: np.ndarray) -> csr_array:
    """``[num_dst, num_src]`` with a 1 for every output node's own column and for its edges of a value above 0."""
    shape = (block.num_dst, block.num_src)
    neighbours = csr_array((edge_values, block.indices.numpy(), block.indptr.numpy()), shape=shape)
    # The sum merges parallel edges and leaves out zeros.
    adjacency = neighbours + eye_array(*shape, dtype=edge_values.dtype, format="csr")
    adjacency.data.fill(1)
    return adjacency


def _without_diagonal(graph: csr_array) -> csr_array:
    """Drops, in place, the diagonal of a graph in which it is complete."""
    graph.setdiag(0)
    graph.eliminate_zeros()
    return graph
