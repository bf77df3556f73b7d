"""Parts by locality: runs of an order in which neighbours share what they need, refined until their memory is even."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property
from itertools import pairwise

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
from betty.micro_batch_train.refinement import TEMPERATURE, refined
from betty.seeds import derive_seed

LEAVES_PER_PART = 8
"""Leaves that a part must have for whole leaves to be moved first, and single output nodes after that."""

ROUNDS_OF_LEAVES, ROUNDS_OF_OUTPUTS, ROUNDS_AGAIN = 40, 60, 20
"""Rounds of refinement: of leaves, of output nodes, and of output nodes once more by what the parts really take."""

PARTS_AT_ONCE = 32
"""The most parts to be refined together, neighbours in the order: time and memory go with their number."""

SAMPLE_LENGTHS = (0.6, 1.0, 1.5)
SAMPLE_PLACES = 3
"""Runs of the order to estimate for the weights of memory: so many times a part's length, at so many places."""


class LocalityParts:
    """Any number of parts of one full batch by locality; the order and the hypergraph are made once, when first needed.

    Args:
        full_batch: in host memory, with two output nodes or more.
        seed: the same seed gives the same parts.
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
        self._full_batch = full_batch
        self._seed = seed
        self._estimate = estimate
        self._given_leaves = leaves
        self._hypergraph: OutputHypergraph | None = None

    @cached_property
    def leaves(self) -> NDArray[np.int64]:
        """The leaf of the order that each output node is in, int64 ``[num_outputs]``."""
        if self._given_leaves is not None:
            return self._given_leaves.numpy()
        return locality_leaves(sources_of(self._full_batch.blocks[-1]), derive_seed(self._seed, "partition"))

    @cached_property
    def order(self) -> NDArray[np.int64]:
        """Positions of the output nodes, leaf by leaf."""
        return np.argsort(self.leaves, kind="stable")

    def segments(self, num_segments: int) -> Tensor:
        """The order in runs of about the same memory: the run of each output node, int64 ``[num_outputs]``."""
        return torch.from_numpy(self._segments(num_segments))

    def __call__(self, num_parts: int) -> Tensor:
        """Parts of the same memory that load little twice: the part of each output node, int64 ``[num_outputs]``."""
        return torch.from_numpy(self._parts(num_parts))

    def _segments(self, num_segments: int) -> NDArray[np.int64]:
        hypergraph = self._hypergraph_for(num_segments)
        segment = np.empty(self.order.size, dtype=np.int64)
        segment[self.order] = _even_runs(_shares(hypergraph)[self.order], num_segments)
        return segment

    def _parts(self, num_parts: int) -> NDArray[np.int64]:
        hypergraph = self._hypergraph_for(num_parts)
        random = np.random.default_rng(derive_seed(self._seed, "refinement", num_parts))
        num_leaves = int(self.leaves.max()) + 1
        if num_leaves >= LEAVES_PER_PART * num_parts:
            by_leaf = hypergraph.contracted(self.leaves, num_leaves)
            part_of_leaf = _even_runs(_shares(by_leaf), num_parts)
            part_of_leaf = _refined_in_groups(by_leaf, part_of_leaf, num_parts, ROUNDS_OF_LEAVES, random, TEMPERATURE)
            part = part_of_leaf[self.leaves]
        else:
            part = self._segments(num_parts)
        part = _refined_in_groups(hypergraph, part, num_parts, ROUNDS_OF_OUTPUTS, random, TEMPERATURE)
        if self._estimate is None:
            return part
        factors = self._factors(hypergraph, part, num_parts)
        return _refined_in_groups(hypergraph, part, num_parts, ROUNDS_AGAIN, random, 0.0, factors)

    def _hypergraph_for(self, num_parts: int) -> OutputHypergraph:
        """The hypergraph, with weights that are right for about so many parts when it is made."""
        if self._hypergraph is None:
            self._hypergraph = output_hypergraph(self._full_batch, self._weights(num_parts), self._seed)
        return self._hypergraph

    def _weights(self, num_parts: int) -> MemoryWeights:
        if self._estimate is None:
            return even_weights(self._full_batch)
        order, num_outputs = self.order, self.order.size
        lengths = [min(num_outputs, max(1, round(times * num_outputs / num_parts))) for times in SAMPLE_LENGTHS]
        starts = [
            (length, (num_outputs - length) * place // SAMPLE_PLACES)
            for length in lengths
            for place in range(SAMPLE_PLACES)
        ]
        runs = [order[start : start + length] for length, start in starts]
        random = np.random.default_rng(derive_seed(self._seed, "weights"))
        runs.append(random.choice(num_outputs, lengths[1], replace=False))
        micro_batches, estimates = self._estimated(runs)
        return fitted_weights(self._full_batch, micro_batches, estimates)

    def _factors(self, hypergraph: OutputHypergraph, part: NDArray[np.int64], num_parts: int) -> NDArray[np.float64]:
        """By how much more each part takes than the hypergraph says, in relation to the others: ``[num_parts]``."""
        positions = np.split(np.argsort(part, kind="stable"), np.cumsum(np.bincount(part, minlength=num_parts))[:-1])
        loads = hypergraph.part_loads(part, num_parts)
        # Of an empty part, or of nodes that all weigh nothing, there is nothing to correct.
        known = np.flatnonzero(loads > 0)
        _, estimates = self._estimated([positions[number] for number in known])
        factors = memory_beyond_static(estimates) / loads[known]
        in_relation = np.ones(num_parts)
        in_relation[known] = factors / np.median(factors)
        return in_relation

    def _estimated(self, runs: Sequence[NDArray[np.int64]]) -> tuple[list[MicroBatch], list[MemoryEstimate]]:
        cutter = MicroBatchCutter(self._full_batch)
        micro_batches = [cutter.cut([torch.from_numpy(np.sort(run))])[0] for run in runs]
        return micro_batches, [self._estimate(micro_batch) for micro_batch in micro_batches]


def _shares(hypergraph: OutputHypergraph) -> NDArray[np.float64]:
    """The memory of every vertex if those of a net share what it takes: float64 ``[num_vertices]``."""
    nets = hypergraph.nets
    pins = np.bincount(nets.indices, minlength=nets.shape[1])
    return nets @ (hypergraph.loads / np.maximum(pins, 1)) + hypergraph.own_loads


def _even_runs(amounts: NDArray[np.float64], num_runs: int) -> NDArray[np.int64]:
    """The run of each amount, when as many runs in their order are to have the same sum.

    Args:
        amounts: float64 ``[num_amounts]``, 0 or more, not all of them 0.
        num_runs: how many; where single amounts are large, some are empty.

    Returns:
        int64 ``[num_amounts]``, ascending.
    """
    middles = np.cumsum(amounts) - amounts / 2
    return np.minimum((middles * (num_runs / amounts.sum())).astype(np.int64), num_runs - 1)


def _refined_in_groups(
    hypergraph: OutputHypergraph,
    part: NDArray[np.int64],
    num_parts: int,
    num_rounds: int,
    random: np.random.Generator,
    temperature: float,
    factors: NDArray[np.float64] | None = None,
) -> NDArray[np.int64]:
    """Refine groups of neighbouring parts, no more of them at once than :data:`PARTS_AT_ONCE`.

    Args and result as for :func:`~betty.micro_batch_train.refinement.refined`; without ``factors`` all are 1.
    """
    factors = np.ones(num_parts) if factors is None else factors
    num_groups = -(-num_parts // PARTS_AT_ONCE)
    if num_groups == 1:
        return refined(hypergraph, part, num_parts, num_rounds, random, temperature, factors)
    part = part.copy()
    bounds = np.arange(num_groups + 1) * num_parts // num_groups
    for first, end in pairwise(bounds):
        members = np.flatnonzero((part >= first) & (part < end))
        group = hypergraph.of(members)
        part[members] = first + refined(
            group, part[members] - first, int(end - first), num_rounds, random, temperature, factors[first:end]
        )
    return part
