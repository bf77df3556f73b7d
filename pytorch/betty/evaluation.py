"""Evaluation: layer by layer over all nodes with their full neighbourhoods, nothing sampled; and scores."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
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
from betty.memory import estimate_inference
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


BlockEstimate = Callable[[int, Block], int]
"""Bytes on the device that computing a layer on a block takes: ``estimate(layer_index, block)``."""


@torch.no_grad()
def layerwise_inference(
    model: LayeredModel,
    indptr: Tensor,
    indices: Tensor,
    features: Tensor,
    device: torch.device | str,
    max_edges: int = 1 << 19,
    max_nodes: int = 1 << 17,
    memory_budget: int | None = None,
    estimate: BlockEstimate | None = None,
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
        memory_budget: bytes on the device; both bounds are lowered in the layers where a batch takes more.
        estimate: what a batch takes; :func:`~betty.memory.estimate_inference` of the model if not given.

    Returns:
        float32 ``[num_nodes, num_classes]``, in host memory.

    Raises:
        BettyError: the features do not fit the graph, a bound is below 1, or a single node does not fit the budget.
    """
    num_nodes = indptr.numel() - 1
    if features.shape[0] != num_nodes:
        raise BettyError(f"features of {features.shape[0]} nodes for a graph of {num_nodes}")
    if max_edges < 1 or max_nodes < 1:
        raise BettyError(f"a batch of at most {max_edges} edges and {max_nodes} nodes; both have to be at least 1")
    dtype = next(model.parameters()).dtype
    if memory_budget is None:
        budget = _Budget(math.inf, _no_bytes)
    else:
        budget = _Budget(memory_budget, estimate or partial(estimate_inference, model, device=device))
    cutter = RowCutter(indptr, indices)
    _require_room_for_the_largest_node(cutter, indptr, model.num_layers, budget)
    states = features
    progress = progress_bar(description="evaluating", total=model.num_layers * num_nodes, unit=" nodes")
    with _evaluation_mode(model), progress:
        for layer_index in range(model.num_layers):
            next_states = torch.empty(num_nodes, model.widths[layer_index + 1], dtype=dtype)
            for start, block in _row_blocks(cutter, indptr, max_edges, max_nodes, partial(budget.fits, layer_index)):
                # Written by a call of its own, after which nothing of this batch is left when the next one comes.
                _compute_rows(model, layer_index, block, states, next_states[start : start + block.num_dst], device)
                progress.update(block.num_dst)
            states = next_states
    return states.float()


def _compute_rows(
    model: LayeredModel, layer_index: int, block: Block, states: Tensor, out: Tensor, device: torch.device | str
) -> None:
    h = states.index_select(0, block.src_ids).to(out.dtype).to(device)
    out.copy_(model.layer_forward(layer_index, block.to(device), h))


@dataclass(frozen=True)
class _Budget:
    """Bytes that a batch may take on the device."""

    limit: float
    estimate: BlockEstimate

    def fits(self, layer_index: int, block: Block) -> bool:
        """Whether a layer may be computed on a block.

        Raises:
            BettyError: it may not, and the block has a single destination.
        """
        cost = self.estimate(layer_index, block)
        if cost > self.limit and block.num_dst == 1:
            raise BettyError(
                f"node {int(block.dst_ids)} with all its {block.num_edges} neighbours takes {cost:,} bytes in layer "
                f"{layer_index}, above the memory budget of {self.limit:,}; evaluation needs {cost:,} bytes at least"
            )
        return cost <= self.limit


def _no_bytes(layer_index: int, block: Block) -> int:
    return 0


def _require_room_for_the_largest_node(cutter: RowCutter, indptr: Tensor, num_layers: int, budget: _Budget) -> None:
    """Refuse, before anything is computed, a budget that the node with the most neighbours does not fit in.

    Raises:
        BettyError: naming the smallest budget that would do, that of the layer which takes the most.
    """
    if indptr.numel() == 1:
        return
    hub = int(indptr.diff().argmax())
    block = cutter.cut(hub, hub + 1)
    budget.fits(max(range(num_layers), key=lambda layer_index: budget.estimate(layer_index, block)), block)


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


def _row_blocks(
    cutter: RowCutter, indptr: Tensor, max_edges: int, max_nodes: int, fits: Callable[[Block], bool]
) -> Iterator[tuple[int, Block]]:
    """Blocks of consecutive nodes, each with its first node, which cover all nodes.

    They are within both bounds, but for single nodes of more edges. Where a block does not fit, both bounds are
    halved until it does, and stay so for those that follow: a hub, which takes the room of many nodes, then does not
    leave batches of single nodes behind.
    """
    num_nodes = indptr.numel() - 1
    start = 0
    while start < num_nodes:
        block = cutter.cut(start, _stop_within(indptr, start, max_edges, max_nodes))
        while not fits(block):
            max_edges, max_nodes = max(1, max_edges // 2), max(1, max_nodes // 2)
            stop = _stop_within(indptr, start, max_edges, max_nodes)
            if stop < start + block.num_dst:
                block = cutter.cut(start, stop)
        yield start, block
        start += block.num_dst


def _stop_within(indptr: Tensor, start: int, max_edges: int, max_nodes: int) -> int:
    """Where a batch from ``start`` has to end for both bounds; after one node at least."""
    within_edges = int(torch.searchsorted(indptr, indptr[start] + max_edges, right=True)) - 1
    return min(max(within_edges, start + 1), start + max_nodes)


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
