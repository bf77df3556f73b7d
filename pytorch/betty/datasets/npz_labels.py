"""The labels in a user's ``.npz`` file."""

import logging

import numpy as np
import torch
from torch import Tensor

from betty.datasets.dataset import CLASSES_OF_ANY_GRAPH, NO_LABEL
from betty.datasets.npz_file import NpzFile, named

logger = logging.getLogger(__name__)


def labels_key(file: NpzFile) -> str:
    """The key that the labels have.

    Raises:
        BettyError: there are none.
    """
    for key in ("node_labels", "labels"):
        if key in file:
            return key
    raise file.lacks("labels", "node_labels or labels")


def read_labels(file: NpzFile) -> Tensor:
    """Labels as int64 ``[N]``; how large they are is not looked at.

    Raises:
        BettyError: they are no whole numbers, or negative ones other than -1, or none.
    """
    key = labels_key(file)
    dtype, shape = file.form(key)
    if len(shape) != 1 or dtype.kind not in "iub":
        raise file.misshapen(key, f"integer [N], with {NO_LABEL} for a node without a label", _remedy(file, key))
    labels = file.read(key).astype(np.int64) if dtype.kind == "b" else file.integers(key, "[N]").astype(np.int64)
    if labels.size == 0:
        raise file.error(f"{key} is empty; the graph has no nodes")
    if labels.min() < NO_LABEL:
        raise file.error(
            f"labels range from {labels.min()} to {labels.max()}; classes are numbered from 0, and the only negative "
            f"label is {NO_LABEL}, for a node without one"
        )
    return torch.from_numpy(labels)


def _remedy(file: NpzFile, key: str) -> str:
    dtype, shape = file.form(key)
    if len(shape) == 2 and shape[1] == 1:
        return f"save {key}.reshape(-1)"
    if len(shape) == 2:
        return f"one class a node, from one-hot rows {key}.argmax(1); several labels of one node are not possible"
    if dtype.kind in "US":
        return f"number the classes, by numpy.unique({key}, return_inverse=True)[1]"
    if len(shape) == 1 and dtype.kind == "f":
        if np.isnan(file.read(key)).any():
            return f"put {NO_LABEL} in place of NaN, by numpy.where(numpy.isnan({key}), -1, {key}).astype(int)"
        return f"if they are classes, save {key}.astype(int); numbers to predict are not possible"
    return ""


def warn_of_unused_classes(file: NpzFile, labels: Tensor, num_classes: int) -> None:
    """Say which classes the model will have that no node is of, where there are any."""
    if num_classes > max(labels.numel(), CLASSES_OF_ANY_GRAPH):
        return
    unused = np.flatnonzero(np.bincount(labels[labels >= 0].numpy(), minlength=num_classes) == 0)
    if unused.size:
        logger.warning(
            "%s: no node is of class %s; there are %d classes all the same, up to the largest label",
            file.path,
            named([str(number) for number in unused]),
            num_classes,
        )
