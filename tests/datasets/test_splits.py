import numpy as np
import pytest
import torch

from betty.datasets.splits import random_split, split_by_counts, split_from_masks


def test_random_split_is_60_20_20_of_labelled_nodes():
    labels = torch.zeros(130, dtype=torch.int64)
    labels[::4] = -1
    split = random_split(labels, seed=3)
    labelled = np.flatnonzero(labels.numpy() >= 0)
    assert [part.numel() for part in split] == [58, 19, 20]
    assert torch.cat(split).sort().values.tolist() == labelled.tolist()
    assert all((part.diff() > 0).all() for part in split)


def test_random_split_follows_its_seed():
    labels = torch.zeros(100, dtype=torch.int64)
    first, again, other = (random_split(labels, seed) for seed in (1, 1, 2))
    assert all(torch.equal(a, b) for a, b in zip(first, again, strict=True))
    assert not torch.equal(first.train_ids, other.train_ids)


@pytest.mark.parametrize(("count", "sizes"), [(0, [0, 0, 0]), (1, [1, 0, 0]), (2, [1, 0, 1]), (3, [2, 1, 0])])
def test_random_split_of_few_nodes_trains_on_one_at_least(count, sizes):
    split = random_split(torch.zeros(count, dtype=torch.int64), seed=0)
    assert [part.numel() for part in split] == sizes


def test_split_by_counts_has_those_counts():
    split = split_by_counts(torch.arange(10), (5, 0, 5), seed=0)
    assert [part.numel() for part in split] == [5, 0, 5]
    assert torch.cat(split).sort().values.tolist() == list(range(10))


def test_masks_become_ids():
    train, val, test = np.array([[1, 0, 0, 1], [0, 1, 0, 0], [0, 0, 0, 0]], dtype=bool)
    split = split_from_masks(train, val, test)
    assert [part.tolist() for part in split] == [[0, 3], [1], []]
    assert all(part.dtype == torch.int64 for part in split)
