"""Layers through which the nodes of a batch depend on each other, with which micro-batches are not the whole batch."""

from __future__ import annotations

from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from betty.errors import BettyError

OF_PYG = ("GraphNorm", "GraphSizeNorm", "InstanceNorm", "LayerNorm", "MeanSubtractionNorm", "PairNorm")
"""PyG's layers that normalize over all nodes of a graph; a layer norm may be told not to. Its batch norms hold
PyTorch's.

PyTorch's own instance norm is not among them: it keeps instances apart, which nodes are.
"""


def mixes_nodes(model: nn.Module, *, starts_training: bool) -> str | None:
    """The first layer by which a node's result depends on the other nodes that are computed with it.

    Args:
        model: any module. Found are PyTorch's batch norms that take statistics of the batch, and PyG's layers in
            :data:`OF_PYG`; what a ``forward`` does by itself is not seen.
        starts_training: whether a model in evaluation mode as a whole is yet to be put in training mode.

    Returns:
        Its name and type, or ``None`` where there is none.
    """
    starts_training = starts_training and not model.training
    layers = (
        f"{name or 'the model'} ({type(module).__name__})"
        for name, module in model.named_modules()
        if _layer_mixes_nodes(module, module.training or starts_training)
    )
    return next(layers, None)


def inexact_by(layer: str) -> BettyError:
    """Says that micro-batches are not the whole batch with a layer that :func:`mixes_nodes` found, and what to do."""
    return BettyError(
        f"{layer} normalizes by all nodes that are computed together, so that micro-batches do not give the whole "
        "batch's gradient; take a norm of single nodes such as torch.nn.LayerNorm, put batch norm itself into .eval() "
        "after model.train(), train in one micro-batch, or pass allow_inexact=True"
    )


def _layer_mixes_nodes(module: nn.Module, is_training: bool) -> bool:
    if isinstance(module, _BatchNorm):
        return is_training or module.running_mean is None
    kind = type(module)
    is_of_pyg = kind.__module__.startswith("torch_geometric.nn.norm") and kind.__name__ in OF_PYG
    return is_of_pyg and getattr(module, "mode", "graph") == "graph"
