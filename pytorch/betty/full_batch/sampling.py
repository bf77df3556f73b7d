"""Sampling a full batch: the blocks of a set of output nodes.

The rule is that of DGL's ``NeighborSampler``. The random numbers are not: DGL seeds the generator of each thread with
the seed plus the number of threads that drew before it, so that a batch sampled in a background thread, or after DGL
drew in another one, would come out differently. Here every number comes from a generator of the batch's own.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache, partial
from numbers import Integral
from typing import TYPE_CHECKING, NamedTuple, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from betty.blocks import FullBatch, chain_blocks, index_dtype
from betty.dgl_edges import require_dgl, require_plain_edges
from betty.errors import BettyError
from betty.node_ids import as_node_ids
from betty.seeds import derive_seed, generator

if TYPE_CHECKING:
    import dgl

ALL_NEIGHBORS = -1
# What it costs to sort and match an id, as a multiple of a look at a node's flag (measured: 80-350 ns, 0.2-0.7 ns).
SORTING_COST = 256


class FullBatchSource(Protocol):
    """Where a trainer gets its full batches from."""

    @property
    def num_batches(self) -> int:
        """Full batches of an epoch."""

    def load(self, epoch: int, batch: int) -> FullBatch:
        """The full batch at position ``batch`` of an epoch, both counted from 0."""


class SampledFullBatches:
    """Full batches sampled when they are asked for.

    Args:
        graph: as in :func:`sample_full_batch`.
        output_ids: as in :func:`sample_full_batch`, the output nodes of an epoch.
        fan_outs: as in :func:`sample_full_batch`.
        seed: of the order of the output nodes and of the sampling.
        batch_size: as in :func:`epoch_batches`.

    Raises:
        BettyError: an argument is out of range.
    """

    def __init__(
        self,
        graph: dgl.DGLGraph,
        output_ids: Tensor | NDArray | Sequence[int],
        fan_outs: Sequence[int],
        seed: int,
        batch_size: int | None = None,
    ) -> None:
        output_ids, fan_outs = _checked_arguments(graph, output_ids, fan_outs)
        self._graph = graph
        self._fan_outs = fan_outs
        self._seed = seed
        self._output_ids = lru_cache(maxsize=1)(partial(epoch_batches, output_ids, batch_size, seed))
        self.num_batches = count_batches(output_ids.numel(), batch_size)

    def load(self, epoch: int, batch: int) -> FullBatch:
        """The full batch at position ``batch`` of an epoch, both counted from 0.

        Raises:
            BettyError: there is no such batch.
        """
        check_position(epoch, batch, self.num_batches)
        output_ids = self._output_ids(epoch)[batch]
        return _sample(self._graph, output_ids, self._fan_outs, self._seed, epoch, batch)


def count_batches(num_outputs: int, batch_size: int | None) -> int:
    """How many batches :func:`epoch_batches` makes.

    Raises:
        BettyError: the batch size is below 1.
    """
    if batch_size is None:
        return 1
    if batch_size < 1:
        raise BettyError(f"a batch size of {batch_size} is not possible; give at least 1, or none for a single batch")
    return -(-num_outputs // batch_size)


def check_position(epoch: int, batch: int, num_batches: int) -> None:
    """Refuse a batch that no epoch has.

    Raises:
        BettyError: there is no such batch.
    """
    if epoch < 0 or not 0 <= batch < num_batches:
        raise BettyError(f"there is no batch {batch} in epoch {epoch}: an epoch has {num_batches}, counted from 0")


def epoch_batches(output_ids: Tensor, batch_size: int | None, seed: int, epoch: int) -> list[Tensor]:
    """Split the output nodes of an epoch into batches.

    Without a batch size there is one batch, ``output_ids`` as they are. With one, every epoch shuffles the output
    nodes anew and cuts them into batches of that size, the last one maybe smaller. Within a batch they stand in
    ascending order, which keeps the reads of features and labels near each other.

    Args:
        output_ids: int64 ``[num_outputs]``.
        batch_size: output nodes of a batch, or None for all.
        seed: of the shuffle.
        epoch: counted from 0.

    Returns:
        Disjoint int64 tensors that together hold ``output_ids``.

    Raises:
        BettyError: the batch size is below 1.
    """
    count_batches(output_ids.numel(), batch_size)
    if batch_size is None:
        return [output_ids]
    order = torch.randperm(output_ids.numel(), generator=generator(seed, "batches", epoch))
    return [batch.sort().values for batch in output_ids.index_select(0, order).split(batch_size)]


def sample_full_batch(
    graph: dgl.DGLGraph,
    output_ids: Tensor | NDArray | Sequence[int],
    fan_outs: Sequence[int],
    seed: int,
    epoch: int = 0,
    batch: int = 0,
) -> FullBatch:
    """Sample the blocks of a set of output nodes.

    Each node of a layer takes up to ``fan_out`` of its in-edges, uniformly and without replacement, or all where it has
    no more than that; the sources of these edges, after the node itself, are the nodes of the layer before. The
    same arguments give the same batch in any process and thread, whatever the number of threads.

    The nodes stand in the order in which they are reached: the output nodes as given, then layer by layer what is new,
    ascending. The sources of a destination node stand in the order of the graph's edges.

    Args:
        graph: of one node type and one edge type, on the CPU. Its edges may be parallel, and carry no data.
        output_ids: integers ``[num_outputs]``, distinct nodes: a tensor in host memory, an array or a list.
        fan_outs: neighbours to take per layer, input layer first; ``-1`` takes all.
        seed: at least 0.
        epoch: together with the seed and ``batch`` it tells which random numbers to draw.
        batch: position in the epoch.

    Returns:
        As many blocks as there are fan-outs.

    Raises:
        BettyError: an argument is out of range.
    """
    output_ids, fan_outs = _checked_arguments(graph, output_ids, fan_outs)
    if any(not isinstance(number, Integral) or number < 0 for number in (seed, epoch, batch)):
        raise BettyError(f"seed {seed}, epoch {epoch}, batch {batch}: each must be a whole number and at least 0")
    return _sample(graph, output_ids, fan_outs, seed, epoch, batch)


def _sample(
    graph: dgl.DGLGraph, output_ids: Tensor, fan_outs: tuple[int, ...], seed: int, epoch: int, batch: int
) -> FullBatch:
    random = np.random.default_rng(derive_seed(seed, "sampling", epoch, batch))
    in_edges = _in_edges(graph)
    nodes = _ReachedNodes(graph.num_nodes(), output_ids.numpy())
    layers = []
    for fan_out in reversed(fan_outs):
        indptr, sources = _sample_neighbors(in_edges, nodes.ids, fan_out, random)
        layers.append((torch.from_numpy(indptr), torch.from_numpy(nodes.local_ids(sources))))
    return FullBatch(chain_blocks(layers[::-1], torch.from_numpy(nodes.ids)))


class _InEdges(NamedTuple):
    """A graph in CSC form: the sources of node ``i`` are ``sources[indptr[i]:indptr[i + 1]]``."""

    indptr: NDArray
    sources: NDArray


def _in_edges(graph: dgl.DGLGraph) -> _InEdges:
    # A graph restricted to other formats refuses to give this one.
    formats = graph.formats()
    if "csc" not in formats["created"] + formats["not created"]:
        graph = graph.formats("csc")
    indptr, sources, _ = graph.adj_tensors("csc")
    return _InEdges(indptr.numpy(), sources.numpy())


def _sample_neighbors(
    in_edges: _InEdges, node_ids: NDArray, fan_out: int, random: np.random.Generator
) -> tuple[NDArray, NDArray]:
    """Choose in-edges of every node.

    Returns:
        int64 ``indptr`` ``[num_nodes + 1]`` over the nodes, and ``[num_edges]`` global ids of the chosen edges'
        sources, each node's in the order of the graph's edges.
    """
    first_edges = in_edges.indptr.take(node_ids).astype(np.int64, copy=False)
    degrees = in_edges.indptr.take(node_ids + 1) - first_edges
    candidates = _offsets(degrees)
    if fan_out == ALL_NEIGHBORS:
        indptr, chosen = candidates, np.arange(candidates[-1])
    else:
        indptr = _offsets(np.minimum(degrees, fan_out))
        chosen = np.flatnonzero(_choose(degrees, candidates, fan_out, random))
    chosen += np.repeat(first_edges - candidates[:-1], np.diff(indptr))
    return indptr, in_edges.sources.take(chosen)


def _offsets(counts: NDArray) -> NDArray:
    offsets = np.zeros(counts.size + 1, dtype=np.int64)
    np.cumsum(counts, out=offsets[1:])
    return offsets


def _choose(degrees: NDArray, candidates: NDArray, fan_out: int, random: np.random.Generator) -> NDArray:
    """Choose ``fan_out`` of the candidates of every node, all where there are no more.

    Floyd's algorithm for a random subset (Bentley and Floyd, "Programming Pearls: A Sample of Brilliance", 1987), for
    all nodes at once. With ``last`` running over the final ``fan_out`` candidates, each step draws one of those up to
    ``last``, and takes ``last`` itself if the one drawn is taken already.

    Args:
        degrees: int64 ``[num_nodes]``, number of candidates of each node.
        candidates: int64 ``[num_nodes + 1]``, position of the first candidate of each node.
        fan_out: at least 1.
        random: source of the random numbers.

    Returns:
        bool ``[sum of degrees]``, which candidates are chosen.
    """
    chosen = np.repeat(degrees <= fan_out, degrees)
    rows = np.flatnonzero(degrees > fan_out)
    first = candidates.take(rows)
    last = degrees.take(rows) - fan_out
    for _ in range(fan_out if rows.size else 0):
        drawn = (random.random(rows.size) * (last + 1)).astype(np.int64)
        taken = chosen.take(first + drawn)
        chosen[first + np.where(taken, last, drawn)] = True
        last += 1
    return chosen


class _ReachedNodes:
    """Global ids of the nodes reached so far, and their local ids, which count them in the order of reaching."""

    def __init__(self, num_nodes: int, output_ids: NDArray) -> None:
        self.ids = np.empty(0, dtype=np.int64)
        self._local_ids = np.empty(num_nodes, dtype=np.int32 if index_dtype(num_nodes) == torch.int32 else np.int64)
        self._append(output_ids)

    def local_ids(self, node_ids: NDArray) -> NDArray:
        """The local ids of nodes, those of them that are new appended first."""
        self._append(self._new_among(node_ids))
        return self._local_ids.take(node_ids)

    def _new_among(self, node_ids: NDArray) -> NDArray:
        num_nodes = self._local_ids.size
        # Sorting a few ids is faster than a pass over all nodes of a large graph.
        if node_ids.size + self.ids.size < num_nodes // SORTING_COST:
            return np.setdiff1d(node_ids, self.ids)
        is_new = np.zeros(num_nodes, dtype=bool)
        is_new[node_ids] = True
        is_new[self.ids] = False
        return np.flatnonzero(is_new)

    def _append(self, node_ids: NDArray) -> None:
        count = self.ids.size
        self._local_ids[node_ids] = np.arange(count, count + node_ids.size)
        self.ids = np.concatenate([self.ids, node_ids])


def _checked_arguments(
    graph: dgl.DGLGraph, output_ids: Tensor | NDArray | Sequence[int], fan_outs: Sequence[int]
) -> tuple[Tensor, tuple[int, ...]]:
    """Output nodes as int64 ``[num_outputs]`` and fan-outs, once they fit the graph."""
    require_dgl(graph)
    if not graph.is_homogeneous:
        raise BettyError(
            "the graph has several node or edge types, or is a block; make it one with "
            "dgl.to_homogeneous(graph, store_type=False), and all edges count the same"
        )
    if graph.device.type != "cpu":
        raise BettyError("the graph is sampled in host memory; move it there with .cpu()")
    require_plain_edges(graph)
    return _checked_ids(output_ids, graph.num_nodes()), _checked_fan_outs(fan_outs)


def _checked_fan_outs(fan_outs: Sequence[int]) -> tuple[int, ...]:
    numbers = np.asarray(fan_outs, dtype=object)
    if numbers.ndim != 1 or not numbers.size or any(not _is_fan_out(number) for number in numbers):
        raise BettyError(
            f"fan-outs {fan_outs}: give one per layer, as in [10, 25], each at least 1, or -1 for all neighbours"
        )
    return tuple(int(number) for number in numbers)


def _is_fan_out(number: object) -> bool:
    return isinstance(number, Integral) and (number >= 1 or number == ALL_NEIGHBORS)


def _checked_ids(output_ids: Tensor | NDArray | Sequence[int], num_nodes: int) -> Tensor:
    output_ids = as_node_ids(output_ids, "output nodes")
    low, high = (int(value) for value in output_ids.aminmax())
    if low < 0 or high >= num_nodes:
        raise BettyError(f"output nodes run from {low} to {high}, but the graph's nodes from 0 to {num_nodes - 1}")
    if not np.diff(np.sort(output_ids.numpy())).all():
        raise BettyError("output nodes occur more than once; give each one once, e.g. output_ids.unique()")
    return output_ids
