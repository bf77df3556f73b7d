"""The work of a layer of any model."""

from __future__ import annotations

from torch import nn

from betty.blocks import Block
from betty.cost.work import Operations, Work, new_tensor


def work_of(model: nn.Module, layer_index: int, block: Block, in_channels: int, out_channels: int) -> Work:
    """What a layer computes: what the model states, or else a guess.

    Args:
        model: whose ``layer_work(layer_index, block)`` is asked if it has one. Else a layer is taken for one that
            multiplies all its sources by a matrix and sums up what it got over the edges.
        layer_index: 0 is the input layer, whose input needs no gradient.
        block: of that layer; of it only the sizes count.
        in_channels: of a source.
        out_channels: of a destination.
    """
    if states_its_work(model):
        return model.layer_work(layer_index, block)
    product = 2 * block.num_src * in_channels * out_channels
    gathered = block.num_edges * in_channels
    needs_gradient = layer_index > 0
    results, gradients = new_tensor(block.num_dst, out_channels), new_tensor(block.num_src, in_channels)
    forward = Operations(call=3, multiply=product, sum=gathered) + results
    backward = Operations(call=3, multiply=(1 + needs_gradient) * product)
    if needs_gradient:
        backward += Operations(transpose=block.num_edges, sum=gathered) + gradients
    return Work(forward, backward)


def states_its_work(model: nn.Module) -> bool:
    """Whether a model tells what each layer computes: it has a method ``layer_work``, and its layers have ``work``."""
    return hasattr(model, "layer_work") and all(hasattr(layer, "work") for layer in getattr(model, "layers", ()))
