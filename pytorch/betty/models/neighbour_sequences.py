"""The neighbours of all destination nodes as sequences, those of one length side by side."""

from dataclasses import dataclass

import torch
from torch import Tensor

from betty.blocks import Block


@dataclass(frozen=True, eq=False)
class NeighbourSequences:
    """A sequence for every destination that has neighbours, shortest first, in groups of equal length.

    Args:
        sources: ``[num_edges]``, source ids, one sequence after the other.
        destinations: int64 ``[num_sequences]``, the destination of each sequence.
        group_lengths: the length of the sequences of each group, ascending.
        group_edges: the edges of each group, its length times its number of sequences.
    """

    sources: Tensor
    destinations: Tensor
    group_lengths: list[int]
    group_edges: list[int]


def neighbour_sequences(block: Block) -> NeighbourSequences:
    """Sort the destinations by degree; each sequence keeps the block's order of edges."""
    degrees, destinations = block.in_degrees().sort(stable=True)
    first = block.num_dst - int(degrees.count_nonzero())
    degrees, destinations = degrees[first:], destinations[first:]

    shifts = block.indptr[destinations] - (degrees.cumsum(0) - degrees)
    edges = torch.arange(block.num_edges, device=block.device)
    edges += shifts.repeat_interleave(degrees, output_size=block.num_edges)
    lengths, counts = degrees.unique_consecutive(return_counts=True)
    return NeighbourSequences(
        sources=block.indices.index_select(0, edges),
        destinations=destinations,
        group_lengths=lengths.tolist(),
        group_edges=(lengths * counts).tolist(),
    )
