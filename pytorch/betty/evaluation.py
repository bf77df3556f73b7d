"""Evaluation: layer by layer over all nodes with their full neighbourhoods, nothing sampled; and scores."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
import torch
from sklearn.metrics import roc_auc_score
from torch import Tensor, nn

from betty.blocks import Block, index_dtype
from betty.errors import BettyError
from betty.models import LayeredModel
from betty.ogb_compat import import_ogb
from betty.progress import progress_bar

if TYPE_CHECKING:
    from ogb.nodeproppred import Evaluator


@dataclass(frozen=True)
class Scores:
    """Accuracies from 0 to 1 of the three splits; ``None`` where there was nothing to score."""

    train_acc: float | None
    val_acc: float | None
    test_acc: float | None


@torch.no_grad()
def layerwise_inference(
    model: LayeredModel,
    indptr: Tensor,
    indices: Tensor,
    features: Tensor,
    device: torch.device | str,
    max_edges: int = 1 << 19,
    max_nodes: int = 1 << 17,
) -> Tensor:
    """Compute the logits of all nodes, one layer after the other.

    The graph, the states that a layer reads and those that it writes are in host memory; the device holds one batch
    of nodes with all their neighbours. The model computes in its own dtype, without dropout, and is left in the mode
    that it was in.

    Args:
        model: on ``device``.
        indptr: int64 ``[num_nodes + 1]``, the graph's in-edges in CSC form, in host memory.
        indices: int32 or int64 ``[num_edges]``, the sources.
        features: floating ``[num_nodes, in_feats]``, in host memory or memory-mapped.
        device: where the model computes.
        max_edges: of a batch; a node with more of them gets a batch of its own.
        max_nodes: destination nodes of a batch.

    Returns:
        float32 ``[num_nodes, num_classes]``, in host memory.

    Raises:
        BettyError: the features do not fit the graph, or a bound is below 1.
    """
    num_nodes = indptr.numel() - 1
    if features.shape[0] != num_nodes:
        raise BettyError(f"features of {features.shape[0]} nodes for a graph of {num_nodes}")
    dtype = next(model.parameters()).dtype
    batches = list(_row_batches(indptr, max_edges, max_nodes))
    cutter = RowCutter(indptr, indices)
    states = features
    progress = progress_bar(description="evaluating", total=model.num_layers * num_nodes, unit=" nodes")
    with _evaluation_mode(model), progress:
        for layer_index in range(model.num_layers):
            next_states = torch.empty(num_nodes, model.widths[layer_index + 1], dtype=dtype)
            for start, stop in batches:
                block = cutter.cut(start, stop)
                h = states.index_select(0, block.src_ids).to(device, dtype)
                next_states[start:stop].copy_(model.layer_forward(layer_index, block.to(device), h))
                progress.update(stop - start)
            states = next_states
    return states.float()


class RowCutter:
    """Cuts the blocks of consecutive nodes out of a graph, with all their neighbours.

    Args:
        indptr: int64 ``[num_nodes + 1]``, the graph's in-edges in CSC form, in host memory.
        indices: int32 or int64 ``[num_edges]``, the sources.
    """

    def __init__(self, indptr: Tensor, indices: Tensor) -> None:
        num_nodes = indptr.numel() - 1
        self._indptr = indptr
        self._indices = indices
        self._is_source = np.zeros(num_nodes, dtype=bool)
        # Written before it is read, for the nodes of one block at a time; never cleared.
        self._local_ids = torch.empty(num_nodes, dtype=index_dtype(num_nodes))

    def cut(self, start: int, stop: int) -> Block:
        """The block whose destinations are the nodes from ``start`` to below ``stop``.

        Its other sources are in ascending order. The time goes with the edges, and a scan of one byte per node.
        """
        indptr = self._indptr[start : stop + 1]
        neighbours = self._indices[indptr[0] : indptr[-1]]
        self._is_source[neighbours.numpy()] = True
        self._is_source[start:stop] = False
        others = np.flatnonzero(self._is_source)
        self._is_source[others] = False
        src_ids = torch.cat([torch.arange(start, stop), torch.from_numpy(others)])
        self._local_ids[src_ids] = torch.arange(src_ids.numel(), dtype=self._local_ids.dtype)
        return Block(indptr - indptr[0], self._local_ids.index_select(0, neighbours), src_ids)


def _row_batches(indptr: Tensor, max_edges: int, max_nodes: int) -> Iterator[tuple[int, int]]:
    """Consecutive ranges ``(start, stop)`` of nodes within both bounds, but for single nodes of more edges."""
    if max_edges < 1 or max_nodes < 1:
        raise BettyError(f"a batch of at most {max_edges} edges and {max_nodes} nodes; both have to be at least 1")
    num_nodes = indptr.numel() - 1
    start = 0
    while start < num_nodes:
        within_edges = int(torch.searchsorted(indptr, indptr[start] + max_edges, right=True)) - 1
        stop = min(max(within_edges, start + 1), start + max_nodes)
        yield start, stop
        start = stop


@contextmanager
def _evaluation_mode(model: nn.Module) -> Iterator[None]:
    in_training = [module for module in model.modules() if module.training]
    model.eval()
    try:
        yield
    finally:
        for module in in_training:
            module.training = True


def evaluate(
    logits: Tensor,
    labels: Tensor,
    train_ids: Tensor,
    val_ids: Tensor,
    test_ids: Tensor,
    evaluator_name: str | None = None,
) -> Scores:
    """Score all three splits.

    Args:
        logits: floating ``[num_nodes, num_classes]``.
        labels: int64 ``[num_nodes]``, -1 for none.
        train_ids: int64, nodes.
        val_ids: int64, nodes.
        test_ids: int64, nodes.
        evaluator_name: the OGB data set by whose ``Evaluator`` to score, e.g. ``ogbn-arxiv``.

    Raises:
        BettyError: OGB has no accuracy for that name.
    """
    score = accuracy if evaluator_name is None else partial(_ogb_accuracy, _ogb_evaluator(evaluator_name))
    return Scores(*(score(logits, labels, ids) for ids in (train_ids, val_ids, test_ids)))


def accuracy(logits: Tensor, labels: Tensor, ids: Tensor) -> float | None:
    """The share of nodes whose largest logit is their label's.

    Args:
        logits: floating ``[num_nodes, num_classes]``.
        labels: int64 ``[num_nodes]``, -1 for none.
        ids: int64, the nodes to score; those without a label are left out.

    Returns:
        A number from 0 to 1, or ``None`` where no node is left.
    """
    ids = _labelled(labels, ids)
    if ids.numel() == 0:
        return None
    correct = logits.index_select(0, ids).argmax(dim=1) == labels.index_select(0, ids)
    return int(correct.count_nonzero()) / ids.numel()


def roc_auc(logits: Tensor, labels: Tensor, ids: Tensor) -> float | None:
    """The area under the ROC curve, for two classes; class 1 is the positive one.

    Args:
        logits: floating ``[num_nodes, 2]``.
        labels: int64 ``[num_nodes]``, -1 for none.
        ids: int64, the nodes to score; those without a label are left out.

    Returns:
        A number from 0 to 1, or ``None`` where not both classes are there.

    Raises:
        BettyError: there are not two classes.
    """
    if logits.shape[1] != 2:
        raise BettyError(f"ROC-AUC is for 2 classes, and these logits have {logits.shape[1]}")
    ids = _labelled(labels, ids)
    expected = labels.index_select(0, ids)
    if expected.unique().numel() < 2:
        return None
    selected = logits.index_select(0, ids)
    return float(roc_auc_score(expected.numpy(), (selected[:, 1] - selected[:, 0]).numpy()))


def _labelled(labels: Tensor, ids: Tensor) -> Tensor:
    return ids[labels.index_select(0, ids) >= 0]


def _ogb_evaluator(name: str) -> Evaluator:
    try:
        evaluator = import_ogb("ogb.nodeproppred").Evaluator(name)
    except ValueError:
        raise BettyError(f"OGB has no evaluator {name!r}; leave the name out to score by plain accuracy") from None
    if evaluator.eval_metric != "acc":
        raise BettyError(f"OGB scores {name} by {evaluator.eval_metric}, and here only accuracy is known")
    return evaluator


def _ogb_accuracy(evaluator: Evaluator, logits: Tensor, labels: Tensor, ids: Tensor) -> float | None:
    ids = _labelled(labels, ids)
    if ids.numel() == 0:
        return None
    predicted = logits.index_select(0, ids).argmax(dim=1, keepdim=True)
    return evaluator.eval({"y_true": labels.index_select(0, ids).unsqueeze(1), "y_pred": predicted})["acc"]
