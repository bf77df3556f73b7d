"""The output nodes of a full batch in a locality order, with what they need and take."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from betty.blocks import FullBatch, MicroBatch
from betty.memory import MemoryEstimate
from betty.micro_batch_train.cutting import MicroBatchCutter
from betty.micro_batch_train.locality import locality_leaves
from betty.micro_batch_train.memory_weights import (
    MemoryWeights,
    even_weights,
    fitted_weights,
    memory_beyond_static,
)
from betty.micro_batch_train.output_hypergraph import OutputHypergraph, output_hypergraph, sources_of
from betty.seeds import derive_seed

SAMPLE_LENGTHS = (1 / 4, 1 / 12, 1 / 36)
SAMPLE_PLACES = 3
"""Runs of the order to estimate for the weights of memory: such shares of the output nodes, at so many places."""


class OrderedOutputs:
    """The output nodes of one full batch; their order and hypergraph are made once, when first needed.

    Args:
        full_batch: in host memory, with two output nodes or more.
        seed: the same seed gives the same order.
        estimate: what training on a micro-batch takes; without one every kind of node and of edge counts as much as
            every other.
        leaves: of a known order, int64 ``[num_outputs]``, see :func:`~betty.micro_batch_train.locality_leaves`.
    """

    def __init__(
        self,
        full_batch: FullBatch,
        seed: int,
        estimate: Callable[[MicroBatch], MemoryEstimate] | None = None,
        leaves: Tensor | None = None,
    ) -> None:
        self.seed = seed
        self.has_estimate = estimate is not None
        self._full_batch = full_batch
        self._estimate = estimate
        self._given_leaves = leaves

    @cached_property
    def leaves(self) -> NDArray[np.int64]:
        """The leaf of the order that each output node is in, int64 ``[num_outputs]``."""
        if self._given_leaves is not None:
            return self._given_leaves.numpy()
        return locality_leaves(sources_of(self._full_batch.blocks[-1]), derive_seed(self.seed, "partition"))

    @cached_property
    def order(self) -> NDArray[np.int64]:
        """Positions of the output nodes, leaf by leaf."""
        return np.argsort(self.leaves, kind="stable")

    def segments(self, num_segments: int) -> NDArray[np.int64]:
        """The order in runs of about the same memory: the run of each output node, int64 ``[num_outputs]``."""
        segment = np.empty(self.order.size, dtype=np.int64)
        segment[self.order] = even_runs(shares(self.hypergraph)[self.order], num_segments)
        return segment

    @cached_property
    def hypergraph(self) -> OutputHypergraph:
        """What the output nodes share, with the memory of each."""
        return output_hypergraph(self._full_batch, self._weights(), self.seed)

    def factors(self, part: NDArray[np.int64], num_parts: int) -> NDArray[np.float64]:
        """By how much more each part takes, by the estimate, than the hypergraph says, in relation to the others.

        Args:
            part: of every output node, int64 ``[num_outputs]``.
            num_parts: some of which may be empty.

        Returns:
            float64 ``[num_parts]``; ones where there is no estimate.
        """
        if self._estimate is None:
            return np.ones(num_parts)
        positions = np.split(np.argsort(part, kind="stable"), np.cumsum(np.bincount(part, minlength=num_parts))[:-1])
        loads = self.hypergraph.part_loads(part, num_parts)
        # Of an empty part, or of nodes that all weigh nothing, there is nothing to correct.
        known = np.flatnonzero(loads > 0)
        _, estimates = self._estimated([positions[number] for number in known])
        factors = memory_beyond_static(estimates) / loads[known]
        in_relation = np.ones(num_parts)
        in_relation[known] = factors / np.median(factors)
        return in_relation

    def _weights(self) -> MemoryWeights:
        if not self.has_estimate:
            return even_weights(self._full_batch)
        order, num_outputs = self.order, self.order.size
        lengths = [max(1, round(share * num_outputs)) for share in SAMPLE_LENGTHS]
        starts = [
            (length, (num_outputs - length) * place // (SAMPLE_PLACES - 1))
            for length in lengths
            for place in range(SAMPLE_PLACES)
        ]
        runs = [order[start : start + length] for length, start in starts]
        random = np.random.default_rng(derive_seed(self.seed, "weights"))
        runs.append(random.choice(num_outputs, lengths[1], replace=False))
        micro_batches, estimates = self._estimated(runs)
        return fitted_weights(self._full_batch, micro_batches, estimates)

    def _estimated(self, runs: Sequence[NDArray[np.int64]]) -> tuple[list[MicroBatch], list[MemoryEstimate]]:
        cutter = MicroBatchCutter(self._full_batch)
        micro_batches = [cutter.cut([torch.from_numpy(np.sort(run))])[0] for run in runs]
        return micro_batches, [self._estimate(micro_batch) for micro_batch in micro_batches]


def shares(hypergraph: OutputHypergraph) -> NDArray[np.float64]:
    """The memory of every vertex if those of a net share what it takes: float64 ``[num_vertices]``."""
    nets = hypergraph.nets
    pins = np.bincount(nets.indices, minlength=nets.shape[1])
    return nets @ (hypergraph.loads / np.maximum(pins, 1)) + hypergraph.own_loads


def shares_within(hypergraph: OutputHypergraph, part: NDArray[np.int64]) -> NDArray[np.float64]:
    """The memory of every vertex if those of a net in a part share what that part takes for it.

    Args:
        hypergraph: of the vertices.
        part: of every vertex, int64 ``[num_vertices]``.

    Returns:
        float64 ``[num_vertices]``; those of a part sum to what the part takes.
    """
    takes = np.empty(part.size)
    for number in range(int(part.max()) + 1):
        members = np.flatnonzero(part == number)
        takes[members] = shares(hypergraph.of(members))
    return takes


def even_runs(amounts: NDArray[np.float64], num_runs: int) -> NDArray[np.int64]:
    """The run of each amount, when as many runs in their order are to have the same sum.

    Args:
        amounts: float64 ``[num_amounts]``, 0 or more, not all of them 0.
        num_runs: how many; where single amounts are large, some are empty.

    Returns:
        int64 ``[num_amounts]``, ascending.
    """
    middles = np.cumsum(amounts) - amounts / 2
    return np.minimum((middles * (num_runs / amounts.sum())).astype(np.int64), num_runs - 1)
