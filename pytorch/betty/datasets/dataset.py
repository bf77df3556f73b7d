"""What every loader returns, and the checks that it has to pass."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field
from functools import cached_property
from itertools import combinations
from typing import TYPE_CHECKING, Generic, TypeVar

import torch
from torch import Tensor

from betty.datasets.graph import fingerprint_of, graph_fingerprint
from betty.datasets.splits import Split
from betty.envelope import tensor_digest
from betty.errors import BettyError

if TYPE_CHECKING:
    from betty.dgl_compat import dgl

logger = logging.getLogger(__name__)

NO_LABEL = -1

CLASSES_OF_ANY_GRAPH = 1_000
"""So many classes are fine on a graph of any size; more need as many nodes."""


Value = TypeVar("Value")


@dataclass(frozen=True, eq=False)
class Pending(Generic[Value]):
    """A part of a data set whose bytes are still being checked.

    Args:
        future: gives it, once it is known to be as it was stored, or has been made again.
        shape: of the tensor, or of the graph's adjacency matrix.
    """

    future: Future[Value]
    shape: tuple[int, ...]


def checked_value(value: Value | Pending[Value]) -> Value:
    """A part of a data set, waiting for the end of its check where need be."""
    return value.future.result() if isinstance(value, Pending) else value


class _CheckedField:
    """A field that may be given as :class:`Pending`: who reads it waits until it is checked."""

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = f"_{name}"

    def __get__(self, dataset: Dataset | None, owner: type) -> object:
        if dataset is None:
            # So that the field has no default.
            raise AttributeError(self._name)
        return checked_value(vars(dataset)[self._name])

    def __set__(self, dataset: Dataset, value: object) -> None:
        vars(dataset)[self._name] = value


@dataclass(frozen=True, eq=False, repr=False)
class Dataset:
    """A graph with features and labels on its nodes, in host memory.

    The graph and the features of a stored data set are checked in the background; reading them waits for that.

    Args:
        name: what it was loaded by; for a file its name without ``.npz``.
        graph: node ids are int64; the in-edges are what is sampled. Undirected data sets have both directions, and
            no self-loops.
        features: float32 ``[num_nodes, num_features]``; may be memory-mapped.
        labels: int64 ``[num_nodes]``, a class in ``[0, num_classes)`` or -1 for a node without a label.
        train_ids: int64, nodes to train on; every one has a label, as in the other two.
        val_ids: int64, nodes to validate on.
        test_ids: int64, nodes to test on.
        num_classes: number of classes, at least 1.
        evaluator_name: the name of OGB's ``Evaluator``, where there is one.
        digests: checksums of tensors that are known already, by their names: ``indptr`` and ``indices`` of the graph,
            ``features``.
        split_origin: how the split came about, in words.
    """

    name: str
    graph: dgl.DGLGraph = _CheckedField()
    features: Tensor = _CheckedField()
    labels: Tensor
    train_ids: Tensor
    val_ids: Tensor
    test_ids: Tensor
    num_classes: int
    evaluator_name: str | None = None
    digests: Mapping[str, str] = field(default_factory=dict)
    split_origin: str = "the data set's own"

    @property
    def num_nodes(self) -> int:
        return self.labels.numel()

    @property
    def num_features(self) -> int:
        return self.unchecked_features.shape[1]

    @property
    def unchecked_features(self) -> Tensor | Pending[Tensor]:
        """The features, or what their check will give: for those who need not wait for it yet."""
        return vars(self)["_features"]

    @cached_property
    def graph_fingerprint(self) -> str:
        """What tells the graph from others, see :func:`~betty.datasets.graph_fingerprint`; known at once if stored."""
        if "indptr" in self.digests:
            return fingerprint_of(self.digests["indptr"], self.digests["indices"])
        return graph_fingerprint(self.graph)

    def fingerprints(self) -> dict[str, str]:
        """What tells the data set from others, part by part, without waiting for checks that run."""
        features = self.digests.get("features") or tensor_digest(self.features)
        names = ("labels", "train_ids", "val_ids", "test_ids")
        parts = {name: tensor_digest(getattr(self, name)) for name in names}
        return {"graph": self.graph_fingerprint, "features": features, **parts}

    def __getstate__(self) -> dict[str, object]:
        """For copies and other processes: with what the checks gave."""
        return {name: checked_value(value) for name, value in vars(self).items()}

    def __repr__(self) -> str:
        return (
            f"Dataset({self.name!r}, num_nodes={self.num_nodes}, num_edges={self.graph.num_edges()}, "
            f"num_features={self.num_features}, num_classes={self.num_classes}, train={self.train_ids.numel()}, "
            f"val={self.val_ids.numel()}, test={self.test_ids.numel()})"
        )


def checked(dataset: Dataset, origin: object) -> Dataset:
    """The data set with nodes without a label taken out of its splits, once it is known to be consistent.

    Feature values are not read: they may be memory-mapped and far larger than memory.

    Args:
        dataset: as a loader made it.
        origin: the file or the name to blame in an error.

    Raises:
        BettyError: shapes that disagree, a label or an id out of range, more classes than nodes, a node in two
            splits, no node to train on.
    """
    num_nodes = dataset.graph.num_nodes()
    for what, rows in (("features", dataset.features.shape[0]), ("labels", dataset.labels.shape[0])):
        if rows != num_nodes:
            raise BettyError(f"{origin}: the graph has {num_nodes} nodes, but {what} has {rows} rows")
    split = Split(dataset.train_ids, dataset.val_ids, dataset.test_ids)
    return dataclasses.replace(dataset, **checked_split(split, dataset.labels, dataset.num_classes, origin)._asdict())


def checked_split(split: Split, labels: Tensor, num_classes: int, origin: object) -> Split:
    """The split without the nodes that have no label, once it and the labels are known to be consistent.

    Raises:
        BettyError: as for :func:`checked`.
    """
    _require_labels(labels, num_classes, origin)
    parts = ("train", "val", "test")
    labelled = {
        part: _labelled_only(ids, labels, f"{origin}: {part} split") for part, ids in zip(parts, split, strict=True)
    }
    if labelled["train"].numel() == 0:
        raise BettyError(f"{origin}: no node to train on; the training split needs at least one node with a label")
    _require_disjoint(labelled, labels.numel(), origin)
    return Split(*labelled.values())


def _require_labels(labels: Tensor, num_classes: int, origin: object) -> None:
    if labels.numel() == 0:
        raise BettyError(f"{origin}: the graph has no nodes")
    low, high = (int(value) for value in labels.aminmax())
    if low < NO_LABEL or high >= num_classes:
        raise BettyError(
            f"{origin}: labels range from {low} to {high}; they have to be classes in [0, {num_classes}), "
            f"or {NO_LABEL} for a node without a label"
        )
    most = max(labels.numel(), CLASSES_OF_ANY_GRAPH)
    if num_classes > most:
        raise BettyError(
            f"{origin}: the labels make {num_classes} classes (the largest is {high}), but {labels.numel()} nodes can "
            f"have at most {most}; number the classes from 0 without gaps, by numpy.unique(labels, "
            "return_inverse=True)[1]; numbers to predict, as in regression, are no classes"
        )


def _labelled_only(node_ids: Tensor, labels: Tensor, origin: str) -> Tensor:
    if node_ids.numel() == 0:
        return node_ids
    low, high = (int(value) for value in node_ids.aminmax())
    if low < 0 or high >= labels.numel():
        raise BettyError(f"{origin} has node ids from {low} to {high}, but the graph has {labels.numel()} nodes")
    has_label = labels.index_select(0, node_ids) != NO_LABEL
    kept = node_ids[has_label]
    dropped = node_ids.numel() - kept.numel()
    if dropped:
        logger.info("%s: %d of %d nodes have no label and are left out", origin, dropped, node_ids.numel())
    return kept


def _require_disjoint(ids_of_part: Mapping[str, Tensor], num_nodes: int, origin: object) -> None:
    """A node in two splits makes scores meaningless."""
    overlaps = []
    for (first, first_ids), (second, second_ids) in combinations(ids_of_part.items(), 2):
        in_first = torch.zeros(num_nodes, dtype=torch.bool)
        in_first[first_ids] = True
        count = int(in_first.index_select(0, second_ids).sum())
        if count:
            overlaps.append(f"{count} nodes are in both the {first} and the {second} split")
    if overlaps:
        raise BettyError(f"{origin}: {', '.join(overlaps)}; a node has to be in one split at most")


def require_finite(features: Tensor, origin: object) -> None:
    """For features in memory: refuse NaN and infinity.

    Raises:
        BettyError: a feature is not finite.
    """
    if not torch.isfinite(features).all():
        raise BettyError(f"{origin}: node features hold NaN or infinity; replace them")
