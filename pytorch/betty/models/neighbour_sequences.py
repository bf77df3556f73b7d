"""The neighbours of all destination nodes as sequences, in the order in which a recurrent network reads them."""

import itertools
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from betty.blocks import Block


@dataclass(frozen=True, eq=False)
class SequenceChunk:
    """Some of the sequences, longest first, read together: those that reach a step are a prefix of them.

    Args:
        destinations: int64 ``[num_sequences]``, the destination node of each sequence.
        sources: int64 ``[num_edges]``, source ids: the first neighbours of all sequences, then the second neighbours
            of those that have one, and so on.
        step_sizes: how many sequences reach each step; descending.
        first_later_edge: how many edges of earlier chunks are not the first one of a sequence.
    """

    destinations: Tensor
    sources: Tensor
    step_sizes: tuple[int, ...]
    first_later_edge: int

    @property
    def num_sequences(self) -> int:
        return self.step_sizes[0]

    @property
    def num_edges(self) -> int:
        return self.sources.numel()

    @property
    def later_edges(self) -> slice:
        """The chunk's part of a tensor with a row for every edge that is not the first one of its sequence."""
        return slice(self.first_later_edge, self.first_later_edge + self.num_edges - self.num_sequences)

    def steps(self) -> Iterator[slice]:
        """The edges of each step."""
        for stop, size in zip(itertools.accumulate(self.step_sizes), self.step_sizes, strict=True):
            yield slice(stop - size, stop)


def neighbour_sequences(block: Block, max_sequences: int, max_edges: int) -> list[SequenceChunk]:
    """Sort the destinations by degree and cut them into chunks; destinations without neighbours are left out.

    Args:
        block: its order of edges is the order of every sequence.
        max_sequences: of a chunk.
        max_edges: of a chunk, unless it is a single sequence.
    """
    if block.num_edges == 0:
        return []
    degrees, destinations = block.in_degrees().sort(descending=True, stable=True)
    host_degrees = np.trim_zeros(degrees.numpy(force=True), "b")
    bounds = chunk_bounds(host_degrees, max_sequences, max_edges)
    degrees, destinations = degrees[: bounds[-1]], destinations[: bounds[-1]]

    sizes = [stop - start for start, stop in itertools.pairwise(bounds)]
    chunk_edges = [int(host_degrees[start:stop].sum()) for start, stop in itertools.pairwise(bounds)]
    later_edges = [edges - size for edges, size in zip(chunk_edges, sizes, strict=True)]
    sources = block.indices.index_select(0, _edges_by_step(block, degrees, destinations, sizes)).long()
    return [
        SequenceChunk(*parts)
        for parts in zip(
            destinations.split(sizes),
            sources.split(chunk_edges),
            (step_sizes(host_degrees[start:stop]) for start, stop in itertools.pairwise(bounds)),
            itertools.accumulate([0, *later_edges[:-1]]),
            strict=True,
        )
    ]


def descending_degrees(block: Block) -> np.ndarray:
    """int64, the in-degrees of the destinations that have neighbours, in descending order."""
    degrees = -np.sort(-block.in_degrees().numpy(force=True))
    return degrees[: np.count_nonzero(degrees)]


def chunk_bounds(degrees: np.ndarray, max_sequences: int, max_edges: int) -> list[int]:
    """Where each chunk begins and, last, where the last one ends."""
    edges_before = np.concatenate([[0], degrees.cumsum()])
    bounds = [0]
    while bounds[-1] < len(degrees):
        start = bounds[-1]
        fitting = int(np.searchsorted(edges_before, edges_before[start] + max_edges, side="right")) - 1
        bounds.append(min(max(fitting, start + 1), start + max_sequences, len(degrees)))
    return bounds


def step_sizes(degrees: np.ndarray) -> tuple[int, ...]:
    """How many of the degrees, which descend, are above 0, above 1, and so on."""
    return tuple(np.searchsorted(-degrees, -np.arange(degrees[0])).tolist())


def _edges_by_step(block: Block, degrees: Tensor, destinations: Tensor, sizes: list[int]) -> Tensor:
    """int64 ``[num_edges]``, positions in ``block.indices`` in the order chunk, step, sequence."""
    first_edges = block.indptr.index_select(0, destinations)
    positions = torch.arange(block.num_edges, device=block.device)
    steps = positions - (degrees.cumsum(0) - degrees).repeat_interleave(degrees, output_size=block.num_edges)
    edges = first_edges.repeat_interleave(degrees, output_size=block.num_edges) + steps
    sizes = torch.tensor(sizes, device=block.device)
    chunk_of_sequence = torch.arange(sizes.numel(), device=block.device).repeat_interleave(
        sizes, output_size=degrees.numel()
    )
    chunks = chunk_of_sequence.repeat_interleave(degrees, output_size=block.num_edges)
    order = (chunks * (steps.max() + 1) + steps).sort(stable=True).indices
    return edges.index_select(0, order)
