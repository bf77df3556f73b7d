"""Parts by locality: runs of an order in which neighbours share what they need, refined until their memory is even."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from betty.micro_batch_train.ordered_outputs import OrderedOutputs, even_runs, shares
from betty.micro_batch_train.refinement import TEMPERATURE, refined_in_groups
from betty.seeds import derive_seed

LEAVES_PER_PART = 8
"""Leaves that a part must have for whole leaves to be moved first, and single output nodes after that."""

ROUNDS_OF_LEAVES, ROUNDS_OF_OUTPUTS, ROUNDS_AGAIN = 40, 60, 20
"""Rounds of refinement: of leaves, of output nodes, and of output nodes once more by what the parts really take."""


class LocalityParts:
    """Any number of parts by locality.

    Args:
        outputs: what to partition.
    """

    def __init__(self, outputs: OrderedOutputs) -> None:
        self._outputs = outputs

    def segments(self, num_segments: int) -> Tensor:
        """The order in runs of about the same memory: the run of each output node, int64 ``[num_outputs]``."""
        return torch.from_numpy(self._outputs.segments(num_segments))

    def __call__(self, num_parts: int) -> Tensor:
        """Parts of the same memory that load little twice: the part of each output node, int64 ``[num_outputs]``."""
        return torch.from_numpy(self._parts(num_parts))

    def _parts(self, num_parts: int) -> NDArray[np.int64]:
        outputs, leaves = self._outputs, self._outputs.leaves
        hypergraph = outputs.hypergraph
        random = np.random.default_rng(derive_seed(outputs.seed, "refinement", num_parts))
        num_leaves = int(leaves.max()) + 1
        if num_leaves >= LEAVES_PER_PART * num_parts:
            by_leaf = hypergraph.contracted(leaves, num_leaves)
            part_of_leaf = even_runs(shares(by_leaf), num_parts)
            part_of_leaf = refined_in_groups(by_leaf, part_of_leaf, num_parts, ROUNDS_OF_LEAVES, random, TEMPERATURE)
            part = part_of_leaf[leaves]
        else:
            part = outputs.segments(num_parts)
        part = refined_in_groups(hypergraph, part, num_parts, ROUNDS_OF_OUTPUTS, random, TEMPERATURE)
        if not outputs.has_estimate:
            return part
        factors = outputs.factors(part, num_parts)
        return refined_in_groups(hypergraph, part, num_parts, ROUNDS_AGAIN, random, 0.0, factors)
