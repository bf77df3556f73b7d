import itertools

import numpy as np
import pytest
from scipy.sparse import csr_array

from betty.micro_batch_train import locality as module
from betty.micro_batch_train.locality import WEIGHT_OF_NODE, _largest_sharing, _shared_needs, locality_leaves
from betty.micro_batch_train.output_hypergraph import sources_of
from tests.neighbour_lists import full_batch_of, with_parallel_edges


def needs_of(rows: list[list[int]], num_inputs: int) -> csr_array:
    return sources_of(full_batch_of(rows, num_inputs=num_inputs).blocks[0])


def random_needs(seed: int) -> csr_array:
    return sources_of(with_parallel_edges([80, 60], max_degree=5, seed=seed).blocks[0])


def pair_weights(needs: csr_array, most: int) -> dict[tuple[int, int], int]:
    """Of every node that 2 to ``most`` output nodes need, what its edges weigh, spread over its pairs."""
    wanted = needs.toarray() > 0
    weights = {}
    for node in np.flatnonzero((wanted.sum(axis=0) > 1) & (wanted.sum(axis=0) <= most)):
        sharing = np.flatnonzero(wanted[:, node]).tolist()
        for pair in itertools.permutations(sharing, 2):
            weights[pair] = weights.get(pair, 0) + round(WEIGHT_OF_NODE / (len(sharing) - 1))
    return weights


def assert_weights_are(graph: csr_array, expected: dict[tuple[int, int], int]) -> None:
    edges = graph.tocoo()
    pairs = list(zip(edges.row.tolist(), edges.col.tolist(), strict=True))
    found = dict(zip(pairs, edges.data.tolist(), strict=True))
    assert len(found) == len(pairs)
    assert found.keys() == expected.keys()
    for pair, weight in found.items():
        assert weight == expected[pair] == found[pair[::-1]] >= 1


@pytest.mark.parametrize("seed", range(4))
def test_output_nodes_are_joined_by_every_node_that_both_need(seed: int) -> None:
    needs = random_needs(seed)
    assert_weights_are(_shared_needs(needs), pair_weights(needs, most=64))


def test_nodes_that_many_need_are_left_out(monkeypatch) -> None:
    needs = random_needs(5)
    monkeypatch.setattr(module, "MAX_SHARING", 3)
    assert 0 < len(pair_weights(needs, most=3)) < len(pair_weights(needs, most=64))
    assert_weights_are(_shared_needs(needs), pair_weights(needs, most=3))


@pytest.mark.parametrize("max_pairs", [0, 10, 60, 300, 10**6])
@pytest.mark.parametrize("seed", range(3))
def test_no_more_pairs_are_looked_at_than_allowed(monkeypatch, max_pairs: int, seed: int) -> None:
    monkeypatch.setattr(module, "MAX_PAIRS", max_pairs)
    num_sharing = np.random.default_rng(seed).integers(0, 12, size=50)

    def pairs(most: int) -> int:
        return sum(sharing**2 for sharing in num_sharing.tolist() if 2 <= sharing <= most)

    bound = _largest_sharing(num_sharing)
    assert bound == max(2, *(most for most in range(1, num_sharing.max() + 1) if pairs(most) <= max_pairs))


def test_where_nobody_shares_anything_there_is_a_bound() -> None:
    assert _largest_sharing(np.zeros(0, dtype=np.int64)) == 2
    assert _largest_sharing(np.ones(5, dtype=np.int64)) == 2


@pytest.mark.parametrize("size", [12, 48, 96])
@pytest.mark.parametrize("seed", range(4))
def test_two_groups_that_share_nothing_are_two_runs_of_leaves(size: int, seed: int) -> None:
    group = np.random.default_rng(seed).permutation(2 * size) % 2
    rows = [
        np.random.default_rng(output).integers(0, 20, size=5) + 2 * size + 20 * group[output]
        for output in range(2 * size)
    ]
    leaves = locality_leaves(needs_of([row.tolist() for row in rows], 2 * size + 40), seed)
    first, second = (set(leaves[group == number].tolist()) for number in (0, 1))
    assert max(first) < min(second) or max(second) < min(first)


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize(
    ("rows", "num_inputs"),
    [
        ([[]] * 2, 2),
        ([[3], [3], [3]], 4),
        ([[]] * 40, 40),
        ([[200]] * 200, 201),
        ([[40]] * 40, 41),
        ([list(range(40))] * 40, 40),
        ([[], *[[0]] * 99], 100),
    ],
    ids=["two", "three", "no edges", "hub that is left out", "hub", "complete", "output hub"],
)
def test_leaves_are_small_and_numbered_from_0_whatever_is_shared(rows, num_inputs, capfd) -> None:
    leaves = locality_leaves(needs_of(rows, num_inputs), seed=1)
    assert leaves.dtype == np.int64
    assert leaves.shape == (len(rows),)
    assert 0 <= leaves.min() <= leaves.max() < max(1, len(rows) // 3)
    assert np.bincount(leaves).max() <= 8
    assert capfd.readouterr() == ("", "")


def test_there_are_no_more_leaves_than_allowed(monkeypatch) -> None:
    monkeypatch.setattr(module, "MAX_LEAVES", 5)
    assert locality_leaves(random_needs(1), seed=1).max() < 5


def test_the_same_seed_gives_the_same_leaves_and_another_one_others() -> None:
    first, second, other = (locality_leaves(random_needs(2), seed).tolist() for seed in (1, 1, 2))
    assert first == second
    assert first != other
