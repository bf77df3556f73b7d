import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from scipy.sparse import csr_array, random_array

from betty import Block
from betty.micro_batch_train import locality_ranks
from betty.micro_batch_train.locality_ranks import distinct_ranks, ranks_of_all, ranks_of_sources
from tests.random_blocks import random_block


def random_needs(num_nodes: int, density: float, seed: int) -> csr_array:
    random = np.random.default_rng(seed)
    needs = csr_array(random_array((num_nodes, num_nodes), density=density, rng=random, format="csr"))
    needs.data.fill(1)
    return needs


def place_by_halving(places: list[int], weights: list[float]) -> int:
    """Where most stand, one half after the other, a neighbour at a time."""
    low, size = 0, 1
    while size <= max(places):
        size *= 2
    standing = list(zip(places, weights, strict=True))
    while size > 1:
        size //= 2
        above = [(place, weight) for place, weight in standing if place >= low + size]
        below = [(place, weight) for place, weight in standing if place < low + size]
        if sum(weight for _, weight in above) > sum(weight for _, weight in below):
            low, standing = low + size, above
        else:
            standing = below
    return low


def test_a_source_stands_where_most_of_the_destinations_do_that_need_it() -> None:
    block = random_block(12, 40, 5, seed=2)
    ranks = np.random.default_rng(0).permutation(12)
    degrees = block.in_degrees().tolist()
    needed_by: list[list[int]] = [[] for _ in range(40)]
    for destination in range(12):
        for source in block.indices[block.indptr[destination] : block.indptr[destination + 1]].tolist():
            needed_by[source].append(destination)
    # A destination stands where it stood, and counts itself among what it needs.
    own = [int(destination not in needed_by[destination]) for destination in range(12)]
    weights = [1 / np.sqrt(max(degree + more, 1)) for degree, more in zip(degrees, own, strict=True)]
    found = [
        place_by_halving([int(ranks[row]) for row in rows], [weights[row] for row in rows]) for rows in needed_by[12:]
    ]
    expected = distinct_ranks(np.array([*ranks.tolist(), *found]))
    assert ranks_of_sources(block, ranks).tolist() == expected.tolist()


def test_ranks_of_sources_keep_the_order_of_destinations() -> None:
    block = random_block(20, 60, 8, seed=1)
    ranks = np.random.default_rng(0).permutation(20)
    of_sources = ranks_of_sources(block, ranks)
    assert sorted(of_sources.tolist()) == list(range(60))
    assert np.argsort(of_sources[:20]).tolist() == np.argsort(ranks).tolist()


@pytest.mark.parametrize("density", [0.0, 0.01, 0.2])
def test_every_rank_is_given_once_and_ordered_nodes_keep_their_order(density: float) -> None:
    needs, node_ids = random_needs(200, density, seed=3), np.arange(0, 200, 4)
    leaves = np.random.default_rng(1).integers(0, 7, node_ids.size)
    ranks = ranks_of_all(needs, node_ids, leaves)
    assert sorted(ranks.tolist()) == list(range(200))
    assert (np.diff(leaves[np.argsort(ranks[node_ids])]) >= 0).all()
    assert (ranks_of_all(needs, node_ids, leaves) == ranks).all()


def chain(first: int, stop: int) -> NDArray[np.int64]:
    """Edges of a path, both ways."""
    nodes = np.arange(first, stop)
    return np.concatenate([np.stack([nodes[:-1], nodes[1:]]), np.stack([nodes[1:], nodes[:-1]])], axis=1)


def test_nodes_stand_with_the_ordered_nodes_that_they_are_connected_with_and_others_come_last() -> None:
    edges = np.concatenate([chain(0, 10), chain(10, 20), chain(20, 30)], axis=1)
    needs = csr_array((np.ones(edges.shape[1]), (edges[0], edges[1])), shape=(30, 30))
    ranks = ranks_of_all(needs, np.array([0, 9, 10, 19]), np.array([1, 1, 0, 0]))
    path_of_rank = (np.argsort(ranks) // 10).tolist()
    assert path_of_rank == [1] * 10 + [0] * 10 + [2] * 10


def test_counting_in_several_rounds_gives_the_same_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    needs, node_ids = random_needs(100, 0.1, seed=5), np.arange(0, 100, 3)
    leaves = np.arange(node_ids.size) // 4
    at_once = ranks_of_all(needs, node_ids, leaves)
    monkeypatch.setattr(locality_ranks, "EDGES_AT_ONCE", 7)
    assert (ranks_of_all(needs, node_ids, leaves) == at_once).all()


def test_a_block_without_edges_keeps_its_destinations_first() -> None:
    block = Block(torch.zeros(3, dtype=torch.int64), torch.zeros(0, dtype=torch.int32), torch.arange(2))
    assert ranks_of_sources(block, np.array([1, 0])).tolist() == [1, 0]
