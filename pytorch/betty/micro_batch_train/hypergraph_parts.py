"""Parts by the hypergraph of what output nodes share: the fewest copies of input nodes, and the same memory."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.sparse import csr_array
from torch import Tensor

from betty.micro_batch_train.kahypar import MAX_PARTS, minimum_connectivity
from betty.micro_batch_train.locality_parts import LocalityParts
from betty.micro_batch_train.ordered_outputs import OrderedOutputs, shares_within
from betty.micro_batch_train.output_hypergraph import OutputHypergraph
from betty.micro_batch_train.refinement import TEMPERATURE, refined_in_groups
from betty.seeds import derive_seed

MAX_PINS = 100_000
"""Pairs of an output node and an input node it needs to look at: nets of the fewest output nodes are taken first.

Those of many are in nearly all parts anyway. At fan-outs 10,25 and K = 16, before refinement, a random choice of
100,000 pins gave a redundancy of 6.37 on tolokers, the smallest nets 6.07. Refined, these end at 5.78 after 5 s of
Mt-KaHyPar on one thread, 300,000 pins at 5.75 after 13 s, and 1 million take 39 s; locality gives 5.87 in 1.4 s. Cora
and citeseer have 28,000 and 21,000 pins: 2.07 and 1.41 in 1 s each, by locality 2.15 and 1.45. Of the 16 million of
synthetic-arxiv even 300,000 tell too little, 3.98 after 12 s: the parts by locality, 3.85 then, are kept.
"""

ROUNDS, ROUNDS_AGAIN = 60, 20
"""Rounds of refinement with all nets, and once more by what the parts really take, if that can be told."""


class HypergraphParts:
    """Any number of parts by connectivity.

    Parts by locality come first: from them it is known what each output node takes among those that it shares with,
    and by that these parts are made even. If every node's memory were shared by all output nodes that need it, those
    of parts that share much would weigh too little.

    Args:
        outputs: what to partition.
    """

    def __init__(self, outputs: OrderedOutputs) -> None:
        self._outputs = outputs
        self._by_locality = LocalityParts(outputs)

    def segments(self, num_segments: int) -> Tensor:
        """Runs of the locality order, since parts by connectivity stand in none: int64 ``[num_outputs]``."""
        return self._by_locality.segments(num_segments)

    def __call__(self, num_parts: int) -> Tensor:
        """Parts of the same memory that load little twice: the part of each output node, int64 ``[num_outputs]``."""
        by_locality = self._by_locality(num_parts)
        hypergraph = self._outputs.hypergraph
        if num_parts > MAX_PARTS or not hypergraph.counts.any():
            # Too many for Mt-KaHyPar, or nothing is shared that is loaded.
            return by_locality
        by_connectivity = self._by_connectivity(hypergraph, by_locality.numpy(), num_parts)
        # Where most nets had to be left out, they may tell less than the order does.
        if hypergraph.copies(by_locality.numpy(), num_parts) < hypergraph.copies(by_connectivity, num_parts):
            return by_locality
        return torch.from_numpy(by_connectivity)

    def _by_connectivity(
        self, hypergraph: OutputHypergraph, start: NDArray[np.int64], num_parts: int
    ) -> NDArray[np.int64]:
        outputs = self._outputs
        takes = shares_within(hypergraph, start) * outputs.factors(start, num_parts)[start]
        nets, weights = _smallest_nets(hypergraph, MAX_PINS)
        seed = derive_seed(outputs.seed, "connectivity", num_parts)
        part = _along(outputs.order, minimum_connectivity(nets, weights, takes, num_parts, seed), num_parts)
        random, factors = np.random.default_rng(seed), outputs.factors(part, num_parts)
        part = refined_in_groups(hypergraph, part, num_parts, ROUNDS, random, TEMPERATURE, factors)
        if not outputs.has_estimate:
            return part
        return refined_in_groups(
            hypergraph, part, num_parts, ROUNDS_AGAIN, random, 0.0, outputs.factors(part, num_parts)
        )


def _smallest_nets(hypergraph: OutputHypergraph, max_pins: int) -> tuple[csr_array, NDArray[np.float64]]:
    """The nets of input nodes, smallest first, as many as have so many pins, and input nodes that each stands for."""
    pins = np.bincount(hypergraph.nets.indices, minlength=hypergraph.counts.size)
    of_inputs = np.flatnonzero(hypergraph.counts)
    by_size = of_inputs[np.argsort(pins[of_inputs], kind="stable")]
    num_kept = max(1, np.searchsorted(np.cumsum(pins[by_size]), max_pins, side="right"))
    kept = np.sort(by_size[:num_kept])
    return hypergraph.nets[:, kept], hypergraph.counts[kept]


def _along(order: NDArray[np.int64], part: NDArray[np.int64], num_parts: int) -> NDArray[np.int64]:
    """The parts numbered by the mean place of their output nodes in the order: neighbours are refined together."""
    place = np.empty(order.size)
    place[order] = np.arange(order.size)
    means = np.bincount(part, weights=place, minlength=num_parts) / np.maximum(
        np.bincount(part, minlength=num_parts), 1
    )
    return np.argsort(np.argsort(means, kind="stable"), kind="stable")[part]
