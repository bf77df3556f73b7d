"""A locality order: the output nodes in an order in which neighbours share what they need."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array

from betty.micro_batch_train.metis import minimum_cut

MAX_PAIRS = 1 << 25
"""Pairs of output nodes that share a node, to be looked at for the order: nodes that the most share are left out first.

Making the order of synthetic-products, which comes up against it, took 1.1 GiB beyond its graph and features.
"""

MAX_SHARING = 64
"""Nodes that more output nodes share are left out in any case, as in the redundancy-embedded graph."""

WEIGHT_OF_NODE = 1000
"""What the edges among the output nodes that share a node weigh, together, for each of them: METIS takes integers."""

MAX_LEAVES = 1024
LEAST_PER_LEAF = 3


def locality_leaves(needs: csr_array, seed: int) -> NDArray[np.int64]:
    """Small groups of output nodes, numbered so that those of near numbers share what they need.

    A recursive bisection by METIS of the graph in which two output nodes are joined for every node that both need,
    with a weight of 1 ÷ (sharing output nodes − 1): a node that ``n`` of them share then costs about as much when it
    is cut as one that two share, as in a hypergraph, and not ``n²`` times as much.

    Args:
        needs: ``[num_outputs, num_nodes]``, a 1 for each node that an output node needs.
        seed: of METIS.

    Returns:
        int64 ``[num_outputs]``, the leaf of each, from 0 to :data:`MAX_LEAVES` - 1.
    """
    num_outputs = needs.shape[0]
    num_leaves = min(MAX_LEAVES, num_outputs // LEAST_PER_LEAF)
    if num_leaves < 2:
        return np.zeros(num_outputs, dtype=np.int64)
    return minimum_cut(_shared_needs(needs), num_leaves, seed).numpy()


def _shared_needs(needs: csr_array) -> csr_array:
    """The graph to be cut: symmetric float32 ``[num_outputs, num_outputs]`` of whole numbers, without a diagonal."""
    num_sharing = np.bincount(needs.indices, minlength=needs.shape[1])
    bound = min(MAX_SHARING, _largest_sharing(num_sharing))
    is_counted = (num_sharing > 1) & (num_sharing <= bound)
    # Whole numbers, whose sums are exact: both weights of a pair are the same.
    weights = np.rint(WEIGHT_OF_NODE / np.maximum(num_sharing - 1, 1)).astype(np.float32)
    kept = np.flatnonzero(is_counted[needs.indices])
    rows = np.searchsorted(kept, needs.indptr)
    columns = needs.indices[kept]
    weighted = csr_array((weights[columns], columns, rows), shape=needs.shape)
    ones = csr_array((np.ones(columns.size, dtype=np.float32), columns, rows), shape=needs.shape)
    graph = weighted @ ones.T
    graph.setdiag(0)
    graph.eliminate_zeros()
    return graph


def _largest_sharing(num_sharing: NDArray[np.int64]) -> int:
    """The most output nodes that may share a node, for all pairs of them to be no more than :data:`MAX_PAIRS`.

    Args:
        num_sharing: int64 ``[num_nodes]``, how many output nodes need each.

    Returns:
        2 or more.
    """
    nodes_by_sharing = np.bincount(num_sharing)
    nodes_by_sharing[:2] = 0
    pairs = np.cumsum(nodes_by_sharing * np.arange(nodes_by_sharing.size, dtype=np.float64) ** 2)
    return max(2, int(np.searchsorted(pairs, MAX_PAIRS, side="right")) - 1)
