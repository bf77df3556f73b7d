"""The plan of a full batch: its micro-batches, and what training on them is estimated to take."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from betty.blocks import FullBatch, MicroBatch
from betty.memory import MemoryEstimate, estimate_memory
from betty.micro_batch_train.block_dataloader import split

Estimate = Callable[[MicroBatch], MemoryEstimate]


@dataclass(frozen=True, eq=False)
class MicroBatchPlan:
    """The micro-batches of a full batch, and what training on them is estimated to take.

    Args:
        parts: int64 tensors of positions in the full batch's ``output_ids``.
        micro_batches: one per part, in host memory.
        estimates: one per micro-batch; none where the model's memory cannot be estimated.
        memory_budget: bytes, or ``None`` where the number of micro-batches was given.
    """

    parts: list[Tensor]
    micro_batches: list[MicroBatch]
    estimates: list[MemoryEstimate]
    memory_budget: int | None = None

    @property
    def needs(self) -> list[int]:
        """Bytes while each micro-batch trains, the next one being loaded beside it."""
        loaded = [estimate.loaded for estimate in self.estimates[1:]] + [0]
        return [
            estimate.peak + beside
            for estimate, beside in zip(self.estimates, loaded[: len(self.estimates)], strict=True)
        ]

    @property
    def peak(self) -> int | None:
        """The largest need in bytes; ``None`` where it is not known."""
        return max(self.needs, default=None)


def model_estimate(model: nn.Module, device: torch.device | str, num_features: int | None = None) -> Estimate:
    """What estimates the memory of a model on a micro-batch, see :func:`~betty.estimate_memory`."""
    return lambda micro_batch: estimate_memory(
        model, micro_batch.blocks, accumulates=micro_batch.weight < 1, num_features=num_features, device=device
    )


def estimated(
    full_batch: FullBatch, parts: Sequence[Tensor], estimate: Estimate | None, memory_budget: int | None = None
) -> MicroBatchPlan:
    """The plan of given parts, with what they take where that is known."""
    micro_batches = split(full_batch, parts)
    estimates = [estimate(micro_batch) for micro_batch in micro_batches] if estimate else []
    return MicroBatchPlan(list(parts), micro_batches, estimates, memory_budget)
