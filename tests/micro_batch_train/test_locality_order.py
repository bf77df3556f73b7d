"""Neighbourhoods are compared with sets; an order is made once and serves any of the nodes."""

import logging
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from betty import load_dataset
from betty.datasets import Dataset, graph_fingerprint
from betty.dgl_compat import dgl
from betty.full_batch import Recipe
from betty.micro_batch_train import locality_order
from betty.micro_batch_train.locality_order import LocalityOrder, neighbourhoods, stored_order


def order_of(dataset: Dataset, root: Path, seed: int) -> LocalityOrder:
    recipe = Recipe.of(dataset.name, graph_fingerprint(dataset.graph), dataset.train_ids, [10, 25], seed)
    return stored_order(dataset, recipe, root)


def odd_graph(num_nodes: int, num_edges: int, seed: int) -> dgl.DGLGraph:
    """Directed, with edges that are there twice, self-loops, and nodes without any edge."""
    draw = torch.Generator().manual_seed(seed)
    sources, destinations = torch.randint(0, num_nodes - 3, (2, num_edges), generator=draw)
    again = torch.randint(0, num_edges, (num_edges // 3,), generator=draw)
    loops = torch.arange(0, num_nodes - 3, 4)
    return dgl.graph(
        (
            torch.cat([sources, sources[again], loops, loops]),
            torch.cat([destinations, destinations[again], loops, loops]),
        ),
        num_nodes=num_nodes,
    )


@pytest.mark.parametrize("seed", range(5))
def test_a_neighbourhood_is_the_node_and_all_its_sources_each_once(seed: int) -> None:
    graph = odd_graph(40, 150, seed)
    node_ids = torch.randperm(40, generator=torch.Generator().manual_seed(seed))[:25]
    found = neighbourhoods(graph, node_ids)
    assert found.shape == (25, 40)
    assert set(found.data.tolist()) == {1.0}
    for row, node in enumerate(node_ids.tolist()):
        sources, _ = graph.in_edges(node)
        columns = found.indices[found.indptr[row] : found.indptr[row + 1]].tolist()
        assert sorted(columns) == sorted({node, *sources.tolist()})


def test_a_graph_without_edges_has_neighbourhoods_of_one() -> None:
    found = neighbourhoods(dgl.graph(([], []), num_nodes=5), torch.tensor([3, 1]))
    assert found.toarray().tolist() == [[0, 0, 0, 1, 0], [0, 1, 0, 0, 0]]


def test_some_of_the_nodes_keep_their_groups_without_gaps_in_the_numbers() -> None:
    order = LocalityOrder(torch.tensor([9, 2, 5, 7]), torch.tensor([3, 0, 3, 8]), num_nodes=12)
    assert order.leaves_of(torch.tensor([9, 2, 5, 7])).tolist() == [1, 0, 1, 2]
    assert order.leaves_of(torch.tensor([7, 9])).tolist() == [1, 0]
    assert order.leaves_of(torch.tensor([5, 7, 9])).tolist() == [0, 1, 0]
    assert order.leaves_of(torch.tensor([], dtype=torch.int64)).tolist() == []


@pytest.fixture
def tiny() -> Dataset:
    return load_dataset("synthetic-tiny")


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The number of nodes of every order that is made."""
    sizes: list[int] = []
    make = locality_order.locality_leaves

    def counted(needs, seed):
        sizes.append(needs.shape[0])
        return make(needs, seed)

    monkeypatch.setattr(locality_order, "locality_leaves", counted)
    return sizes


def test_an_order_is_made_once_and_found_again(
    tiny: Dataset, made: list[int], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    first = order_of(tiny, tmp_path, seed=3).leaves_of(tiny.train_ids)
    assert [record.message.split(" in ")[0] for record in caplog.records] == [
        f"making the locality order of {tiny.train_ids.numel():,} training nodes, once",
        "made the locality order",
    ]
    second = order_of(tiny, tmp_path, seed=3).leaves_of(tiny.train_ids)
    assert made == [tiny.train_ids.numel()]
    assert len(caplog.records) == 2
    assert torch.equal(first, second)
    assert first.unique().numel() > tiny.train_ids.numel() // 10


def test_nodes_that_share_neighbours_stand_near_each_other(tiny: Dataset, tmp_path: Path) -> None:
    leaves = order_of(tiny, tmp_path, seed=3).leaves_of(tiny.train_ids)
    needs = neighbourhoods(tiny.graph, tiny.train_ids)
    shared = (needs @ needs.T).toarray()
    leaves = leaves.numpy()
    same = leaves[:, None] == leaves[None, :]
    others = ~torch.eye(leaves.size, dtype=torch.bool).numpy()
    assert shared[same & others].mean() > 3 * shared[others].mean()


def test_another_seed_graph_or_set_of_nodes_has_an_order_of_its_own(
    tiny: Dataset, made: list[int], tmp_path: Path
) -> None:
    order_of(tiny, tmp_path, seed=3)
    order_of(tiny, tmp_path, seed=4)
    order_of(replace(tiny, graph=dgl.add_edges(tiny.graph, [0], [1])), tmp_path, seed=3)
    order_of(replace(tiny, train_ids=tiny.train_ids[1:]), tmp_path, seed=3)
    assert len(made) == 4
    order_of(tiny, tmp_path, seed=3)
    assert len(made) == 4


def test_a_folder_that_cannot_be_written_costs_a_warning_and_not_the_order(
    tiny: Dataset, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    expected = order_of(tiny, tmp_path / "root", seed=3).leaves_of(tiny.train_ids)
    (tmp_path / "file").write_text("no folder")
    caplog.clear()
    found = order_of(tiny, tmp_path / "file", seed=3).leaves_of(tiny.train_ids)
    assert torch.equal(found, expected)
    assert [record.levelname for record in caplog.records] == ["WARNING"]
