"""The memory of a micro-batch as a weighted sum of its nodes and edges, which can be told for every output node."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import nnls

from betty.blocks import FullBatch, MicroBatch
from betty.memory import MemoryEstimate

TOWARDS_EVEN = 1e-3
"""How much of a fit's error a weight may cost that differs from the even one by all of it.

Sizes of micro-batches rise together, so that several weights would explain them equally well.
"""


@dataclass(frozen=True)
class MemoryWeights:
    """What nodes and edges take, in any one unit.

    Args:
        of_source: per source node, for every block, input layer first.
        of_edge: per edge, for every block.
        of_output: per output node.
    """

    of_source: tuple[float, ...]
    of_edge: tuple[float, ...]
    of_output: float

    @classmethod
    def of_counts(cls, values: Sequence[float]) -> MemoryWeights:
        """From weights in the order of :func:`counts`."""
        return cls(tuple(values[:-1:2]), tuple(values[1:-1:2]), values[-1])


def counts(batch: FullBatch | MicroBatch) -> NDArray[np.float64]:
    """Source nodes and edges of every block, input layer first, and output nodes: float64 ``[2 * num_blocks + 1]``."""
    per_block = [count for block in batch.blocks for count in (block.num_src, block.num_edges)]
    return np.array([*per_block, batch.blocks[-1].num_dst], dtype=np.float64)


def even_weights(full_batch: FullBatch) -> MemoryWeights:
    """The weights with which every kind of node and of edge takes as much of the full batch as every other.

    For partitions without a model: parts that are even by these are nearly even by others, since parts with many nodes
    of one kind have many of the others.
    """
    return MemoryWeights.of_counts((1 / np.maximum(counts(full_batch), 1)).tolist())


def memory_beyond_static(estimates: Sequence[MemoryEstimate]) -> NDArray[np.float64]:
    """Bytes that each micro-batch takes beyond what all of them take, 1 or more: float64 ``[num_estimates]``."""
    return np.array([max(estimate.peak - estimate.static, 1) for estimate in estimates], dtype=np.float64)


def fitted_weights(
    full_batch: FullBatch, micro_batches: Sequence[MicroBatch], estimates: Sequence[MemoryEstimate]
) -> MemoryWeights:
    """The weights that explain what some of a full batch's micro-batches take beyond what all of them take.

    Non-negative least squares of the relative errors.

    Args:
        full_batch: what they were cut from.
        micro_batches: one or more, about as large as those to be made, of different composition; none is empty.
        estimates: of each one.

    Returns:
        Weights in bytes, none below 0.
    """
    takes = memory_beyond_static(estimates)
    of_batches = np.stack([counts(batch) for batch in micro_batches])
    even = 1 / np.maximum(counts(full_batch), 1)
    # What every kind would weigh if all of them took the same share of the memory.
    even *= np.median(takes / (of_batches @ even))
    errors = of_batches * even / takes[:, None]
    towards_even = np.sqrt(TOWARDS_EVEN) * np.eye(even.size)
    target = np.concatenate([np.ones(takes.size), np.full(even.size, np.sqrt(TOWARDS_EVEN))])
    multiples, _ = nnls(np.concatenate([errors, towards_even]), target)
    return MemoryWeights.of_counts((even * multiples).tolist())
