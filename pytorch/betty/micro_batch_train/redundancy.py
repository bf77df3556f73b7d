"""How many nodes a partition makes the micro-batches load, without cutting them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from betty.blocks import FullBatch
from betty.micro_batch_train.parts import check_parts

PARTS_PER_WORD = 64


def input_nodes(full_batch: FullBatch, parts: Sequence[Tensor]) -> Tensor:
    """Count the input nodes that the micro-batch of each part has.

    Every node carries a word with one bit for each part that needs it. The words of the output nodes are passed on
    along the edges of all blocks, for 64 parts at a time: O(edges of the full batch).

    Args:
        full_batch: in host memory.
        parts: int64 tensors of positions in ``full_batch.output_ids``.

    Returns:
        int64 ``[len(parts)]``.
    """
    counts = [
        count
        for first in range(0, len(parts), PARTS_PER_WORD)
        for count in _count_inputs(full_batch, parts[first : first + PARTS_PER_WORD])
    ]
    return torch.tensor(counts, dtype=torch.int64)


def _count_inputs(full_batch: FullBatch, parts: Sequence[Tensor]) -> list[int]:
    bits = np.left_shift(np.uint64(1), np.arange(len(parts), dtype=np.uint64))
    needed_by = np.zeros(full_batch.output_ids.numel(), dtype=np.uint64)
    for bit, part in zip(bits, parts, strict=True):
        needed_by[part.numpy()] |= bit
    for block in reversed(full_batch.blocks):
        needed_by_destination = needed_by
        # Destinations are sources too: their words come first.
        needed_by = np.pad(needed_by_destination, (0, block.num_src - block.num_dst))
        edge_words = needed_by_destination.repeat(block.in_degrees().numpy())
        np.bitwise_or.at(needed_by, block.indices.numpy(), edge_words)
    return [np.count_nonzero(needed_by & bit) for bit in bits]


def redundancy(full_batch: FullBatch, parts: Sequence[Tensor]) -> float:
    """Input nodes of all micro-batches ÷ input nodes of the full batch.

    Args:
        full_batch: in host memory.
        parts: int64 tensors of positions in ``full_batch.output_ids``, together every position.

    Returns:
        1.0 where the micro-batches share no node, which is ideal; at most the number of parts.

    Raises:
        BettyError: the parts do not hold every output node once.
    """
    check_parts(full_batch, parts)
    return int(input_nodes(full_batch, parts).sum()) / full_batch.input_ids.numel()
