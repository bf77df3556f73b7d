"""Which nodes are for training, for validation and for testing."""

from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from betty.seeds import generator

TRAIN_SHARE, VAL_SHARE = 0.6, 0.2


class Split(NamedTuple):
    """Node ids, int64, ascending."""

    train_ids: Tensor
    val_ids: Tensor
    test_ids: Tensor


def random_split_origin(seed: int) -> str:
    """What to tell of :func:`random_split`."""
    return f"at random by seed {seed}: 60 % for training, 20 % for validation, 20 % for testing"


def random_split(labels: Tensor, seed: int) -> Split:
    """Labelled nodes at random into 60 % for training, 20 % for validation and the rest for testing.

    Args:
        labels: int64 ``[num_nodes]``, -1 for nodes without a label, which are in no part.
        seed: the same seed gives the same split.
    """
    labelled = torch.from_numpy(np.flatnonzero(labels.numpy() >= 0))
    count = labelled.numel()
    # A graph with a single labelled node can be trained on, if not evaluated.
    num_train = max(round(TRAIN_SHARE * count), min(count, 1))
    num_val = round(VAL_SHARE * count)
    return split_by_counts(labelled, (num_train, num_val, count - num_train - num_val), seed)


def split_by_counts(node_ids: Tensor, counts: tuple[int, int, int], seed: int) -> Split:
    """The given nodes at random into parts of the given sizes, which sum to their number."""
    shuffled = node_ids[torch.randperm(node_ids.numel(), generator=generator(seed, "split"))]
    return Split(*(part.sort().values for part in shuffled.split(counts)))


def split_from_masks(train: NDArray[np.bool_], val: NDArray[np.bool_], test: NDArray[np.bool_]) -> Split:
    """Masks ``[num_nodes]`` as ids."""
    return Split(*(torch.from_numpy(np.flatnonzero(mask)) for mask in (train, val, test)))
