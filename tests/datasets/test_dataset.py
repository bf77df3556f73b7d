import dataclasses
import logging

import pytest
import torch

from betty.datasets.dataset import Dataset, checked, require_finite
from betty.datasets.graph import build_graph
from betty.errors import BettyError


def path_of_four() -> Dataset:
    graph = build_graph(torch.tensor([0, 1, 3, 5, 6]), torch.tensor([1, 0, 2, 1, 3, 2]))
    return Dataset(
        name="path",
        graph=graph,
        features=torch.zeros(4, 2),
        labels=torch.tensor([0, 1, -1, 1]),
        train_ids=torch.tensor([0, 2]),
        val_ids=torch.tensor([1]),
        test_ids=torch.tensor([3]),
        num_classes=2,
    )


def test_nodes_without_label_leave_the_splits_and_the_log_says_so(caplog):
    with caplog.at_level(logging.INFO, logger="betty"):
        dataset = checked(path_of_four(), "here.npz")
    assert dataset.train_ids.tolist() == [0]
    assert dataset.val_ids.tolist() == [1]
    assert "here.npz: train split: 1 of 2 nodes have no label" in caplog.text
    assert "val split" not in caplog.text


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"features": torch.zeros(3, 2)}, "4 nodes, but features has 3 rows"),
        ({"labels": torch.zeros(5, dtype=torch.int64)}, "4 nodes, but labels has 5 rows"),
        ({"labels": torch.tensor([0, 1, 2, 1])}, r"labels range from 0 to 2; .* \[0, 2\)"),
        ({"labels": torch.tensor([0, -2, 1, 1])}, "labels range from -2 to 1"),
        ({"val_ids": torch.tensor([4])}, "val split has node ids from 4 to 4, but the graph has 4 nodes"),
        ({"test_ids": torch.tensor([-1, 0])}, "test split has node ids from -1"),
        ({"val_ids": torch.tensor([0, 1])}, "1 nodes are in both the train and the val split"),
        ({"val_ids": torch.tensor([1, 3])}, "1 nodes are in both the val and the test split"),
        ({"num_classes": 1001}, "the labels make 1001 classes .* 4 nodes can have at most 1000"),
        ({"train_ids": torch.tensor([2])}, "no node to train on"),
        ({"train_ids": torch.empty(0, dtype=torch.int64)}, "no node to train on"),
    ],
)
def test_what_does_not_fit_is_refused_by_name(change, message):
    with pytest.raises(BettyError, match=message) as error:
        checked(dataclasses.replace(path_of_four(), **change), "here.npz")
    assert str(error.value).startswith("here.npz")


def test_node_without_label_may_be_in_two_splits_since_it_leaves_both():
    dataset = checked(dataclasses.replace(path_of_four(), val_ids=torch.tensor([1, 2])), "here.npz")
    assert dataset.val_ids.tolist() == [1]


def test_empty_validation_and_test_splits_are_fine():
    none = torch.empty(0, dtype=torch.int64)
    dataset = checked(dataclasses.replace(path_of_four(), val_ids=none, test_ids=none), "here.npz")
    assert dataset.test_ids.numel() == 0


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_features_that_are_not_finite_are_refused(value):
    features = torch.zeros(3, 2)
    require_finite(features, "here.npz")
    features[1, 1] = value
    with pytest.raises(BettyError, match=r"here\.npz: node features hold NaN or infinity"):
        require_finite(features, "here.npz")


def test_repr_tells_the_sizes():
    assert "num_nodes=4, num_edges=6, num_features=2, num_classes=2, train=2" in repr(path_of_four())
