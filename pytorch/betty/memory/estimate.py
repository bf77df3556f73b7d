"""The bytes that a training step takes, out of the shapes of its blocks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields

import torch
from torch import nn

from betty.blocks import Block


@dataclass(frozen=True)
class MemoryEstimate:
    """Bytes alive at the moment of the peak of a training step on one micro-batch, by kind."""

    parameters: int
    input_features: int
    labels: int
    blocks: int
    hidden: int
    aggregator: int
    gradients: int
    optimizer: int
    backward: int

    @property
    def peak(self) -> int:
        """All of it."""
        return sum(getattr(self, field.name) for field in fields(self))

    @property
    def loaded(self) -> int:
        """What a micro-batch takes when it is only loaded."""
        return self.input_features + self.labels + self.blocks


def estimate_memory(
    model: nn.Module,
    blocks: Sequence[Block],
    *,
    num_features: int | None = None,
    optimizer_states: int = 2,
    device: torch.device | str = "cpu",
) -> MemoryEstimate:
    """Estimate the bytes that a training step on one micro-batch takes; a stand-in."""
    item = next(model.parameters()).element_size()
    parameters = sum(parameter.numel() * parameter.element_size() for parameter in model.parameters())
    widths = model.widths
    hidden = sum(block.num_dst * width * item * 3 for block, width in zip(blocks, widths[1:], strict=True))
    aggregated = sum(block.num_dst * width * item for block, width in zip(blocks, widths, strict=False))
    return MemoryEstimate(
        parameters=parameters,
        input_features=blocks[0].num_src * (num_features or widths[0]) * item,
        labels=8 * blocks[-1].num_dst,
        blocks=sum(8 * (block.num_dst + 1) + block.indices.element_size() * block.num_edges for block in blocks)
        + 8 * blocks[0].num_src,
        hidden=hidden,
        aggregator=aggregated,
        gradients=parameters,
        optimizer=optimizer_states * parameters,
        backward=max(block.num_src * width * item for block, width in zip(blocks, widths, strict=False)),
    )
