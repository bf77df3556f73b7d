"""Graphs as in-edges in CSC form: built from edge lists, taken out of DGL, told apart by a fingerprint."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from betty.dgl_compat import dgl
from betty.envelope import digest_of, tensor_digest


def undirected_csc(first_ends: NDArray, second_ends: NDArray, num_nodes: int) -> tuple[Tensor, Tensor]:
    """The in-neighbours of every node, given the edges of an undirected graph in any direction.

    Reverse edges are added, duplicates and self-loops removed. Memory: 8 bytes for each of the ``2 * num_edges``
    directed edges, the same again if any edge is there twice.

    Args:
        first_ends: integer ``[num_edges]``, node ids in ``[0, num_nodes)``.
        second_ends: integer ``[num_edges]``, the other ends.
        num_nodes: number of nodes, below 3 * 10**9.

    Returns:
        ``indptr`` int64 ``[num_nodes + 1]`` and ``indices`` int64 ``[num_directed_edges]``, ascending for each node.
    """
    keys = _keys_of_both_directions(first_ends, second_ends, num_nodes)
    keys.sort()
    return _csc_of_sorted(distinct_of_sorted(keys), num_nodes)


def directed_csc(sources: NDArray, destinations: NDArray, num_nodes: int) -> tuple[Tensor, Tensor]:
    """The in-neighbours of every node, given the edges of a directed graph; all are kept, self-loops too.

    Args:
        sources: integer ``[num_edges]``, node ids in ``[0, num_nodes)``.
        destinations: integer ``[num_edges]``.
        num_nodes: number of nodes, below 3 * 10**9.

    Returns:
        ``indptr`` int64 ``[num_nodes + 1]`` and ``indices`` int64 ``[num_edges]``, ascending for each node, a source
        as often as it has edges to the node.
    """
    keys = np.multiply(destinations, num_nodes, dtype=np.int64)
    keys += sources
    keys.sort()
    return _csc_of_sorted(keys, num_nodes)


def _csc_of_sorted(keys: NDArray[np.int64], num_nodes: int) -> tuple[Tensor, Tensor]:
    """The CSC form, given ``destination * num_nodes + source`` of every edge, ascending; it is made in their place."""
    row_starts = np.arange(num_nodes + 1, dtype=np.int64) * num_nodes
    indptr = np.searchsorted(keys, row_starts)
    np.remainder(keys, num_nodes, out=keys)
    return torch.from_numpy(indptr), torch.from_numpy(keys)


def _keys_of_both_directions(first_ends: NDArray, second_ends: NDArray, num_nodes: int) -> NDArray[np.int64]:
    """``destination * num_nodes + source`` of every edge in both directions, self-loops left out."""
    proper = first_ends != second_ends
    if not proper.all():
        first_ends, second_ends = first_ends[proper], second_ends[proper]
    num_edges = len(first_ends)
    keys = np.empty(2 * num_edges, dtype=np.int64)
    for half, sources, destinations in (
        (keys[:num_edges], first_ends, second_ends),
        (keys[num_edges:], second_ends, first_ends),
    ):
        np.multiply(destinations, num_nodes, out=half, dtype=np.int64)
        half += sources
    return keys


def distinct_of_sorted(keys: NDArray[np.int64]) -> NDArray[np.int64]:
    """Ascending keys without second copies; the very same array if there are none."""
    is_new = np.ones(len(keys), dtype=bool)
    np.not_equal(keys[1:], keys[:-1], out=is_new[1:])
    return keys if is_new.all() else keys[is_new]


def require_csc(indptr: Tensor, indices: Tensor) -> None:
    """Refuse what DGL would take unseen, and crash on: pointers and node ids out of range. Every byte is read.

    Args:
        indptr: int64 ``[num_nodes + 1]``.
        indices: int64 ``[num_edges]``.

    Raises:
        ValueError: they are not the CSC form of a graph.
    """
    for name, tensor in (("indptr", indptr), ("indices", indices)):
        if tensor.dtype != torch.int64 or tensor.dim() != 1:
            raise ValueError(f"{name} is {tensor.dtype} {list(tensor.shape)} and not int64 in one dimension")
    if indptr.numel() == 0 or indptr[0] != 0 or indptr[-1] != indices.numel() or (indptr[1:] < indptr[:-1]).any():
        raise ValueError(f"indptr does not ascend from 0 to the number of edges, {indices.numel()}")
    if indices.numel():
        low, high = (int(value) for value in indices.aminmax())
        if low < 0 or high >= indptr.numel() - 1:
            raise ValueError(f"node ids from {low} to {high} for {indptr.numel() - 1} nodes")


def build_graph(indptr: Tensor, indices: Tensor) -> dgl.DGLGraph:
    """A DGL graph on the very same tensors, with nothing but the CSC form made.

    Args:
        indptr: int64 ``[num_nodes + 1]``.
        indices: int64 ``[num_edges]``, the sources of each node's in-edges; may be memory-mapped.
    """
    edge_ids_in_order = torch.empty(0, dtype=torch.int64)
    return dgl.graph(("csc", (indptr, indices, edge_ids_in_order)), num_nodes=indptr.numel() - 1)


def csc(graph: dgl.DGLGraph) -> tuple[Tensor, Tensor]:
    """The in-edges of a graph, without a copy where it already has the CSC form.

    Returns:
        ``indptr`` int64 ``[num_nodes + 1]`` and ``indices`` int64 ``[num_edges]``.
    """
    indptr, indices, _ = graph.adj_tensors("csc")
    return indptr.long(), indices.long()


def graph_fingerprint(graph: dgl.DGLGraph) -> str:
    """A checksum, in hexadecimal: equal for graphs whose nodes have the same in-neighbours in the same order."""
    return fingerprint_of(*map(tensor_digest, csc(graph)))


def fingerprint_of(indptr_digest: str, indices_digest: str) -> str:
    """The fingerprint of a graph, from the checksums of its CSC tensors."""
    return digest_of({"indptr": indptr_digest, "indices": indices_digest})
