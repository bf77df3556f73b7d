"""The output nodes whose own micro-batches take the most: no plan fits a budget that these do not."""

from __future__ import annotations

from dataclasses import dataclass

from betty.blocks import FullBatch
from betty.memory import MemoryEstimate
from betty.micro_batch_train.computation_trees import tree_sizes
from betty.micro_batch_train.cutting import SLOTS_IN_CACHE, MicroBatchCutter
from betty.micro_batch_train.plan import Estimate


@dataclass(frozen=True)
class LargestSingle:
    """What micro-batches of one output node take at most.

    Args:
        estimate: of the one with the highest peak.
        loaded: bytes of the largest one itself, which another may have to bear beside it.
    """

    estimate: MemoryEstimate
    loaded: int

    @property
    def need(self) -> int:
        """Bytes in which every output node fits, whichever is loaded beside it."""
        return self.estimate.peak + self.loaded


def largest_single(full_batch: FullBatch, estimate: Estimate) -> LargestSingle:
    """Find what micro-batches of one output node take at most.

    In the order of the trees that compute them, until what remains has trees of fewer nodes than a micro-batch that was
    seen has inputs: a micro-batch is its tree with what is in it several times merged, and so at most as large.

    Args:
        full_batch: in host memory, with two output nodes or more.
        estimate: what training on a micro-batch takes.
    """
    sizes, order = tree_sizes(full_batch).sort(descending=True, stable=True)
    at_once = max(1, SLOTS_IN_CACHE // full_batch.input_ids.numel())
    cutter = MicroBatchCutter(full_batch, at_once)
    estimates, most_inputs = [], 0
    for largest_tree, positions in zip(sizes[::at_once].tolist(), order.split(at_once), strict=True):
        if largest_tree <= most_inputs:
            break
        micro_batches = cutter.cut(positions.split(1))
        estimates += map(estimate, micro_batches)
        most_inputs = max(most_inputs, *(micro_batch.input_ids.numel() for micro_batch in micro_batches))
    highest = max(estimates, key=lambda single: single.peak)
    return LargestSingle(highest, max(single.loaded for single in estimates))
