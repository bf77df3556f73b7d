"""A micro-batch's share of the loss of the whole batch, for losses whose mean is not over output nodes."""

from __future__ import annotations

import copy
import inspect
import math
from collections.abc import Callable

from torch import Tensor, nn

from betty.errors import BettyError

PER_ELEMENT = (
    nn.BCELoss,
    nn.BCEWithLogitsLoss,
    nn.HuberLoss,
    nn.L1Loss,
    nn.MSELoss,
    nn.PoissonNLLLoss,
    nn.SmoothL1Loss,
    nn.SoftMarginLoss,
)
"""Losses whose mean is over the elements of the labels, which have the shape of the logits."""

PER_NODE = (nn.MultiLabelMarginLoss, nn.MultiLabelSoftMarginLoss, nn.MultiMarginLoss)
"""Losses whose mean is over nodes."""

PER_CLASS_WEIGHT = (nn.CrossEntropyLoss, nn.NLLLoss)
"""Losses whose mean is over the class weights of the labels that are not ignored."""


class WholeBatchLoss:
    """The sum of a micro-batch's losses, divided by what the whole batch's sum would be divided by.

    The mean of a loss is over more than nodes where there are class weights, or labels that are ignored. Divided by the
    whole batch's number, shares of micro-batches sum to its loss, and their gradients to its gradient, however the
    nodes are divided among them::

        loss = betty.WholeBatchLoss(nn.CrossEntropyLoss(weight=class_weights), labels[full_batch.output_ids])
        for micro_batch in betty.split(full_batch, parts):
            logits = model(micro_batch.blocks, features[micro_batch.input_ids])
            loss(logits, labels[micro_batch.output_ids]).backward()

    Args:
        loss: one of ``torch.nn``'s in :data:`PER_CLASS_WEIGHT`, :data:`PER_ELEMENT` or :data:`PER_NODE`, with the
            reduction "mean". Any other, called as ``loss(logits, labels)``, has to return a sum over nodes.
        labels_of_all_outputs: of the full batch's output nodes, in the form that the loss takes, on any device.
        normalizer: instead, what the whole batch's sum is to be divided by; the loss is a sum then.

    Attributes:
        normalizer: what sums are divided by.

    Raises:
        BettyError: the normalizer cannot be told from the labels, or is not a number above 0.
    """

    def __init__(
        self,
        loss: Callable[[Tensor, Tensor], Tensor],
        labels_of_all_outputs: Tensor | None = None,
        *,
        normalizer: float | None = None,
    ) -> None:
        if (labels_of_all_outputs is None) == (normalizer is None):
            raise BettyError("a WholeBatchLoss takes either the labels of all output nodes or normalizer=, not both")
        if normalizer is not None and _reduction(loss) != "sum":
            raise BettyError(
                f'with normalizer= the loss is to be a sum; give {_name(loss)} reduction="sum", a function by '
                "functools.partial"
            )
        self._sum = loss
        if labels_of_all_outputs is not None:
            normalizer = _normalizer(loss, labels_of_all_outputs)
            self._sum = copy.copy(loss)
            self._sum.reduction = "sum"
        if not (math.isfinite(normalizer) and normalizer > 0):
            raise BettyError(
                f"the whole batch's loss would be divided by {normalizer:g}; some output node has to have a label that "
                "is not ignored and a weight above 0"
            )
        self.normalizer = normalizer

    def __call__(self, logits: Tensor, labels: Tensor) -> Tensor:
        """The micro-batch's share of the whole batch's loss.

        Args:
            logits: ``[num_outputs, ...]``, of the micro-batch's output nodes.
            labels: of the same nodes.

        Returns:
            A scalar.

        Raises:
            BettyError: logits and labels have shapes between which PyTorch would make up nodes, or the loss is not one
                number.
        """
        if type(self._sum) in PER_ELEMENT and logits.shape != labels.shape:
            raise BettyError(
                f"logits of shape {list(logits.shape)} and labels of shape {list(labels.shape)}; {_name(self._sum)} "
                "takes both of one shape"
            )
        total = self._sum(logits, labels)
        if total.numel() != 1:
            raise BettyError(f"{_name(self._sum)} returned {list(total.shape)}; it has to return the sum over nodes")
        return total / self.normalizer


def _reduction(loss: Callable[[Tensor, Tensor], Tensor]) -> str:
    """A module's, or a function's where it has a parameter of that name; of others a sum is asked for."""
    try:
        of_function = inspect.signature(loss).parameters.get("reduction")
    # Of some that are built in.
    except ValueError:
        of_function = None
    return getattr(loss, "reduction", of_function.default if of_function else "sum")


def _normalizer(loss: Callable[[Tensor, Tensor], Tensor], labels: Tensor) -> float:
    """What ``loss`` with the reduction "mean" divides the sum by."""
    kind = type(loss)
    if kind not in (*PER_ELEMENT, *PER_NODE, *PER_CLASS_WEIGHT) or loss.reduction != "mean":
        raise BettyError(
            f"what {_name(loss)} divides a batch's sum by is not known; give a loss of torch.nn with "
            'reduction="mean", or one that returns a sum and normalizer='
        )
    if kind in PER_ELEMENT:
        _refuse_weights_of_nodes(loss, labels)
        return labels.numel()
    return labels.shape[0] if kind in PER_NODE else _sum_of_class_weights(loss, labels)


def _sum_of_class_weights(loss: nn.CrossEntropyLoss | nn.NLLLoss, labels: Tensor) -> float:
    if labels.is_floating_point():
        if labels.dim() < 2:
            raise BettyError(f"{_name(loss)} takes classes as int64, or probabilities [num_outputs, num_classes]")
        # Probabilities of classes: PyTorch divides by nodes, whatever the weights.
        return labels.numel() / labels.shape[1]
    counted = labels[labels != loss.ignore_index]
    if loss.weight is None:
        return counted.numel()
    num_classes = loss.weight.numel()
    if counted.numel() and not (counted.min() >= 0 and counted.max() < num_classes):
        raise BettyError(
            f"labels from {int(counted.min())} to {int(counted.max())} for {num_classes} class weights; number the "
            "classes from 0, or name the label of nodes without one by ignore_index="
        )
    # By the number of each class: in float64, and of the size of the classes.
    return float(counted.flatten().bincount(minlength=num_classes).double() @ loss.weight.to(labels.device).double())


def _refuse_weights_of_nodes(loss: nn.Module, labels: Tensor) -> None:
    """Weights of elements by their position in the whole batch cannot be those of a micro-batch."""
    for name in ("weight", "pos_weight"):
        weight = getattr(loss, name, None)
        if weight is not None and weight.dim() >= labels.dim() and weight.shape[0] > 1:
            raise BettyError(
                f"{_name(loss)} has a {name} for every node of the batch, which a micro-batch would take for its own; "
                "weight the losses of nodes in a function that returns their sum, and give normalizer="
            )


def _name(loss: object) -> str:
    return getattr(loss, "__name__", type(loss).__name__)
