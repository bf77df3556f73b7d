"""What accumulating the gradient of a full batch did."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from betty.run_folder import BatchRecord


@dataclass(frozen=True)
class StepRecord:
    """What was done; times in seconds.

    Args:
        loss: of the output nodes that were trained on, divided by the number of those of the full batch.
        split_s: that cutting micro-batches took.
        transfer_s: that bringing them to the device took.
        batches: what was trained on.
        num_shortages: how often a micro-batch was split because it ran out of memory.
        computed_edges: edges of all micro-batches, as often as they went forward.
        offloaded_bytes: the most that activations and their gradients took outside of the device.
    """

    loss: float
    split_s: float
    transfer_s: float
    batches: list[BatchRecord]
    num_shortages: int = 0
    computed_edges: int = 0
    offloaded_bytes: int = 0

    @classmethod
    def of_all(cls, steps: Sequence[StepRecord]) -> StepRecord:
        """What several of them are together."""
        return cls(
            loss=sum(step.loss for step in steps),
            split_s=sum(step.split_s for step in steps),
            transfer_s=sum(step.transfer_s for step in steps),
            batches=[record for step in steps for record in step.batches],
            num_shortages=sum(step.num_shortages for step in steps),
            computed_edges=sum(step.computed_edges for step in steps),
            offloaded_bytes=max((step.offloaded_bytes for step in steps), default=0),
        )
