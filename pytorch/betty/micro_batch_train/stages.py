"""Stages: runs of consecutive layers, each of which is computed in micro-batches of its own."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import accumulate, pairwise

from torch import Tensor, nn

from betty.blocks import Block
from betty.errors import BettyError
from betty.models.node_mixing import mixes_nodes
from betty.models.norms import BatchNorm

AUTO, LAYERS = "auto", "layers"

Stages = tuple[range, ...]
"""The layers of every stage, input layer first: together all layers."""


def stages_of(text: str, num_layers: int) -> Stages:
    """The stages that a flag names: ``1`` or ``layers``, or so many layers per stage, as in ``2,1``.

    Raises:
        BettyError: it names others.
    """
    if text == "1":
        return (range(num_layers),)
    try:
        sizes = [1] * num_layers if text == LAYERS else [int(size) for size in text.split(",")]
    except ValueError:
        sizes = []
    if sum(sizes) != num_layers or any(size < 1 for size in sizes):
        raise BettyError(
            f"stages {text!r} of a model of {num_layers} layers: give 1 for a single one, layers for one each, or the "
            f"number of layers of each, which sum to {num_layers}, input layer first"
        )
    return tuple(range(*ends) for ends in pairwise([0, *accumulate(sizes)]))


def stages_text(stages: Stages) -> str:
    """What :func:`stages_of` takes for these stages."""
    return ",".join(str(len(layers)) for layers in stages) if len(stages) > 1 else "1"


def all_stages(num_layers: int) -> Iterator[Stages]:
    """Every way to make stages of the layers, from one of them all to one each."""
    if num_layers == 0:
        yield ()
    for first in range(num_layers, 0, -1):
        for others in all_stages(num_layers - first):
            yield (range(first), *(range(layers.start + first, layers.stop + first) for layers in others))


def has_layers(model: nn.Module) -> bool:
    """Whether a model can be computed layer by layer: it has ``num_layers`` and ``layer_forward(i, block, h)``."""
    return hasattr(model, "num_layers") and hasattr(model, "layer_forward")


def compute_layers(
    model: nn.Module, layers: range, blocks: Sequence[Block], x: Tensor, *, splits_at_norms: bool = False
) -> Tensor:
    """Compute some consecutive layers.

    Args:
        model: whose layers they are; where they are all of them, it is called as ``model(blocks, x)``.
        layers: which of them.
        blocks: one per layer.
        x: ``[num_src, channels]``, for the sources of the first block.
        splits_at_norms: whether the last layer ends before its batch norm, unless it is the model's last one, and ``x``
            is what such a norm returned, unless it is the features.

    Returns:
        ``[num_dst, channels]``, for the destinations of the last block.
    """
    if not splits_at_norms and len(blocks) == getattr(model, "num_layers", len(blocks)):
        return model(blocks, x)
    if splits_at_norms and layers.start > 0:
        x = model.activate(layers.start - 1, x, blocks[0].src_ids)
    for layer_index, block in zip(layers, blocks, strict=True):
        ends_here = splits_at_norms and layer_index == layers[-1]
        x = (model.convolve if ends_here else model.layer_forward)(layer_index, block, x)
    return x


def has_batch_norm(model: nn.Module) -> bool:
    """Whether a model has batch norms between its layers that stages can end before."""
    return any(isinstance(norm, BatchNorm) for norm in getattr(model, "norms", ()))


def mixing_layer(model: nn.Module, layers: range, splits_at_norms: bool) -> str | None:
    """The first module within a stage that mixes nodes, see :func:`~betty.models.node_mixing.mixes_nodes`."""
    if not splits_at_norms:
        return mixes_nodes(model, starts_training=False)
    inside = [*model.layers[layers.start : layers.stop], *model.norms[layers.start : layers.stop - 1]]
    return mixes_nodes(nn.ModuleList(inside), starts_training=False)
