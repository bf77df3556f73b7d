"""An order of all nodes that continues one of some of them: every other node stands where its neighbours do."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array

from betty.blocks import Block
from betty.micro_batch_train.output_hypergraph import sources_of

EDGES_AT_ONCE = 1 << 22
"""Edges whose votes are counted together, which bounds the memory that this takes: about 0.2 GiB."""

SWEEPS = 2
"""Times that nodes are placed by those that need them, and then by those that they need.

With one, an inner layer of synthetic-arxiv had 1 % more redundancy and of cora up to 5 %; three gained nothing more.
"""

MOST_SWEEPS = 8
"""Times at the most, where so far from the ordered nodes others are left."""


def ranks_of_all(needs: csr_array, node_ids: NDArray[np.int64], leaves: NDArray[np.int64]) -> NDArray[np.int32]:
    """The place of every node in an order that continues a locality order of some of them.

    Args:
        needs: ``[num_nodes, num_nodes]``, an entry for each node that a node needs; entries may be there twice.
        node_ids: int64 ``[num_ordered]``, distinct; those that have an order.
        leaves: int64 ``[num_ordered]``, the leaf of each, see
            :func:`~betty.micro_batch_train.locality.locality_leaves`.

    Returns:
        int32 ``[num_nodes]``, each number from 0 to ``num_nodes - 1`` once. Nodes that are not connected with the
        ordered ones, or too far from them, come last.
    """
    places = np.full(needs.shape[0], -1, dtype=np.int32)
    places[node_ids] = distinct_ranks(leaves)
    is_free = places < 0
    needed_by = needs.T.tocsr()
    num_placed = node_ids.size
    for sweep in range(MOST_SWEEPS):
        for neighbours, others in ((needed_by, needs), (needs, needed_by)):
            found = _places_by_neighbours(neighbours, places, _weights(others))
            np.copyto(places, found, where=is_free & (found >= 0))
        before, num_placed = num_placed, np.count_nonzero(places >= 0)
        if sweep + 1 >= SWEEPS and num_placed == before:
            break
    places[places < 0] = node_ids.size
    return distinct_ranks(places)


def ranks_of_sources(block: Block, ranks: NDArray[np.int64]) -> NDArray[np.int64]:
    """The places of a block's sources in an order that continues one of its destinations.

    Args:
        block: in host memory.
        ranks: int64 ``[num_dst]``, each number from 0 to ``num_dst - 1`` once.

    Returns:
        int64 ``[num_src]``, each number from 0 to ``num_src - 1`` once.
    """
    needs = sources_of(block)
    found = _places_by_neighbours(needs.T.tocsr(), ranks.astype(np.int32), _weights(needs))
    found[: block.num_dst] = ranks
    return distinct_ranks(found).astype(np.int64)


def distinct_ranks(places: NDArray[np.integer]) -> NDArray[np.int32]:
    """The ranks of nodes by their places, those of one place in the order in which they come: int32 ``[num_nodes]``."""
    ranks = np.empty(places.size, dtype=np.int32)
    ranks[np.argsort(places, kind="stable")] = np.arange(places.size, dtype=np.int32)
    return ranks


def _weights(neighbours: csr_array) -> NDArray[np.float64]:
    """What the place of each row counts for others: the less, the more neighbours it is a neighbour of."""
    return 1 / np.sqrt(np.maximum(np.diff(neighbours.indptr), 1))


def _places_by_neighbours(
    neighbours: csr_array, places: NDArray[np.int32], weights: NDArray[np.float64]
) -> NDArray[np.int32]:
    """Where most of its neighbours stand, of every row.

    Most of them stand in one half of the order; of these most in one half of that half, and so on to a single place.
    The place that most of them share would ignore how near to each other the others are.

    Args:
        neighbours: ``[num_rows, num_columns]``.
        places: int32 ``[num_columns]``, -1 where there is none.
        weights: float64 ``[num_columns]``, what each counts.

    Returns:
        int32 ``[num_rows]``, -1 for rows none of whose neighbours has a place.
    """
    indptr, num_rows = neighbours.indptr, neighbours.shape[0]
    num_levels = int(places.max(initial=0)).bit_length()
    found = np.full(num_rows, -1, dtype=np.int32)
    first = 0
    while first < num_rows:
        stop = max(first + 1, int(np.searchsorted(indptr, indptr[first] + EDGES_AT_ONCE, side="right")) - 1)
        columns = neighbours.indices[indptr[first] : indptr[stop]]
        rows = np.repeat(np.arange(stop - first), np.diff(indptr[first : stop + 1]))
        has_place = places[columns] >= 0
        columns, rows = columns[has_place], rows[has_place]
        found[first:stop] = _halved(rows, places[columns], weights[columns], stop - first, num_levels)
        first = stop
    return found


def _halved(
    rows: NDArray[np.int64], places: NDArray[np.int32], weights: NDArray[np.float64], num_rows: int, num_levels: int
) -> NDArray[np.int32]:
    """The places that rows come to from the places of their neighbours, all three ``[num_edges]``; -1 without any."""
    found = np.where(np.bincount(rows, minlength=num_rows) > 0, 0, -1).astype(np.int32)
    for level in reversed(range(num_levels)):
        is_above = (places >> level & 1).astype(bool)
        balance = np.bincount(rows, np.where(is_above, weights, -weights), minlength=num_rows)
        goes_above = balance > 0
        found += goes_above.astype(np.int32) << level
        agrees = is_above == goes_above[rows]
        rows, places, weights = rows[agrees], places[agrees], weights[agrees]
    return found
