"""Full batches written out as lists of neighbours, and what output nodes need walked through in plain Python."""

import itertools
import random

import torch

from betty import Block, FullBatch
from betty.blocks import chain_blocks


def full_batch_of(*layers: list[list[int]], num_inputs: int) -> FullBatch:
    """A full batch of the sources of every destination.

    Args:
        layers: of every block, input layer first; the destinations of one are the sources of the next.
        num_inputs: source nodes of the first block.
    """
    csc = []
    for rows in layers:
        indptr = torch.tensor([0, *itertools.accumulate(map(len, rows))])
        csc.append((indptr, torch.tensor(list(itertools.chain(*rows)), dtype=torch.int32)))
    return FullBatch(chain_blocks(csc, torch.arange(num_inputs)))


def with_parallel_edges(num_nodes: list[int], max_degree: int, seed: int) -> FullBatch:
    """Sources drawn with replacement, and a self-loop at every third destination.

    Args:
        num_nodes: of every level, input nodes first, output nodes last.
        max_degree: of a destination node, its self-loop aside.
        seed: of the random numbers.
    """
    draw = random.Random(seed)
    layers = []
    for num_src, num_dst in itertools.pairwise(num_nodes):
        rows = [[draw.randrange(num_src) for _ in range(draw.randrange(max_degree + 1))] for _ in range(num_dst)]
        layers.append([row + [node] * (node % 3 == 0) for node, row in enumerate(rows)])
    return full_batch_of(*layers, num_inputs=num_nodes[0])


def neighbours_of(block: Block) -> list[list[int]]:
    """The sources of every destination, as often as there are edges."""
    return [row.tolist() for row in block.indices.tensor_split(block.indptr[1:-1])]


def needed_nodes(full_batch: FullBatch, output: int) -> list[set[int]]:
    """The source nodes of every block, input layer first, that one output node needs, itself among them."""
    needed = [{output}]
    for block in reversed(full_batch.blocks):
        rows = neighbours_of(block)
        needed.append(needed[-1] | {source for node in needed[-1] for source in rows[node]})
    return needed[:0:-1]
