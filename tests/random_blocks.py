"""Blocks and full batches with the odd shapes that code must get right."""

import itertools

import torch

from betty import Block, FullBatch
from betty.blocks import chain_blocks


def random_block(num_dst: int, num_src: int, max_degree: int, seed: int) -> Block:
    """A block whose first destination is isolated, whose second has one neighbour and whose last is a hub.

    Every other degree is random. The neighbours of a destination are distinct.
    """
    generator = torch.Generator().manual_seed(seed)
    degrees = torch.randint(0, min(max_degree, num_src) + 1, (num_dst,), generator=generator)
    degrees[0], degrees[1 % num_dst], degrees[-1] = 0, 1, num_src
    indptr = torch.zeros(num_dst + 1, dtype=torch.int64)
    indptr[1:] = degrees.cumsum(0)
    rows = [torch.randperm(num_src, generator=generator)[:degree] for degree in degrees.tolist()]
    ids = torch.randperm(10 * num_src, generator=generator)[:num_src]
    return Block(indptr, torch.cat(rows).int(), ids)


def random_full_batch(num_nodes: list[int], max_degree: int, seed: int) -> FullBatch:
    """A full batch of random blocks.

    Args:
        num_nodes: of every level, input nodes first, output nodes last; one more than there are blocks.
        max_degree: of a destination node, hubs aside.
        seed: of the random numbers.
    """
    blocks = [
        random_block(num_dst, num_src, max_degree, seed + layer)
        for layer, (num_src, num_dst) in enumerate(itertools.pairwise(num_nodes))
    ]
    return FullBatch(chain_blocks([(block.indptr, block.indices) for block in blocks], blocks[0].src_ids))


def neighbourhoods(num_nodes: list[int], max_degree: int, seed: int) -> FullBatch:
    """Every node has 1 to ``max_degree`` sources near its place in a ring, so that cuts of few shared nodes exist.

    Args:
        num_nodes: of every level, input nodes first, output nodes last.
        max_degree: of a destination node.
        seed: of the random numbers.
    """
    draw = torch.Generator().manual_seed(seed)
    layers = []
    for num_src, num_dst in itertools.pairwise(num_nodes):
        degrees = torch.randint(1, max_degree + 1, (num_dst,), generator=draw)
        place = torch.arange(num_dst).repeat_interleave(degrees) * num_src // num_dst
        steps = torch.randint(0, 4 * max_degree, place.shape, generator=draw)
        layers.append((torch.cat([torch.zeros(1, dtype=torch.int64), degrees.cumsum(0)]), (place + steps) % num_src))
    return FullBatch(chain_blocks(layers, torch.randperm(num_nodes[0], generator=draw)))
