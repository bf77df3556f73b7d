import itertools
import logging
from collections import Counter

import numpy as np
import pytest
import torch
from scipy.sparse import csr_array

from betty import BettyError, Block, FullBatch
from betty.dgl_compat import dgl
from betty.full_batch.sampling import sample_full_batch
from betty.micro_batch_train import graph_partitioner
from betty.micro_batch_train.graph_partitioner import (
    METHODS,
    Partitioner,
    PartitionProblem,
    halves,
    partition,
    re_partition,
)
from betty.micro_batch_train.metis import minimum_cut
from betty.micro_batch_train.output_graphs import induced_graph, redundancy_graph
from betty.micro_batch_train.redundancy import input_nodes, redundancy
from tests.neighbour_lists import full_batch_of, neighbours_of
from tests.random_blocks import random_block, random_full_batch


def one_layer(neighbours: list[list[int]], num_src: int) -> FullBatch:
    return full_batch_of(neighbours, num_inputs=num_src)


def block_of(neighbours: list[list[int]], num_src: int) -> Block:
    return one_layer(neighbours, num_src).blocks[0]


def weights_of(graph: csr_array) -> dict[tuple[int, int], int]:
    edges = graph.tocoo()
    assert edges.nnz == graph.nnz
    return dict(zip(zip(edges.row.tolist(), edges.col.tolist(), strict=True), edges.data.tolist(), strict=True))


def brute_force_shared_neighbours(block: Block, left_out: frozenset[int] = frozenset()) -> dict[tuple[int, int], int]:
    needed = [{node, *row} for node, row in enumerate(neighbours_of(block))]
    shared = {(u, v): len((needed[u] & needed[v]) - left_out) for u, v in itertools.permutations(range(len(needed)), 2)}
    return {pair: count for pair, count in shared.items() if count}


def brute_force_input_nodes(full_batch: FullBatch, part: torch.Tensor) -> int:
    nodes = set(part.tolist())
    for block in reversed(full_batch.blocks):
        rows = neighbours_of(block)
        nodes |= {source for node in nodes for source in rows[node]}
    return len(nodes)


def as_sets(parts: list[torch.Tensor]) -> set[frozenset[int]]:
    return {frozenset(part.tolist()) for part in parts}


def clique_pair(size: int) -> FullBatch:
    """Two cliques of output nodes, interleaved and joined by one edge."""
    num_nodes = 2 * size
    rows = [[v for v in range(num_nodes) if v % 2 == u % 2 and v != u] for u in range(num_nodes)]
    rows[0].append(1)
    return one_layer(rows, num_nodes)


FULL_BATCHES = {
    "random": random_full_batch([120, 80, 50], max_degree=6, seed=1),
    "sparse": random_full_batch([300, 200, 100], max_degree=1, seed=2),
    "no edges": one_layer([[]] * 40, 40),
    "disconnected": one_layer([[40 + node // 4] for node in range(40)], 50),
    "source hub": one_layer([[40] for _ in range(40)], 41),
    "output hub": one_layer([[], *[[0]] * 39], 40),
    "complete": one_layer([list(range(40))] * 40, 40),
    "parallel edges": one_layer([[40, 40, 41, node] for node in range(40)], 42),
    "single output": one_layer([[1, 2]], 3),
    "two outputs": one_layer([[2], [2]], 3),
    "no outputs": one_layer([], 0),
}


@pytest.mark.parametrize("full_batch", FULL_BATCHES.values(), ids=FULL_BATCHES.keys())
@pytest.mark.parametrize("method", METHODS)
def test_parts_are_ascending_and_hold_every_output_once(full_batch, method, capfd):
    num_outputs = full_batch.output_ids.numel()
    for num_parts in (1, 2, 7, 16, 39, num_outputs + 1, 1000):
        parts = partition(full_batch, num_parts, method, seed=5)
        assert len(parts) <= min(num_parts, num_outputs)
        assert all(part.dtype == torch.int64 and part.numel() > 0 for part in parts)
        assert all((part.diff() > 0).all() for part in parts)
        assert sorted(position for part in parts for position in part.tolist()) == list(range(num_outputs))
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize("method", ["range", "random"])
def test_range_and_random_sizes_differ_by_one_at_most(method):
    full_batch = FULL_BATCHES["random"]
    for num_parts in (2, 7, 16, 49):
        sizes = [part.numel() for part in partition(full_batch, num_parts, method)]
        assert len(sizes) == num_parts
        assert max(sizes) - min(sizes) <= 1


def test_range_parts_are_contiguous():
    parts = partition(FULL_BATCHES["random"], 7, "range")
    assert torch.cat(parts).tolist() == list(range(50))


@pytest.mark.parametrize("method", ["metis", "REG"])
def test_cut_parts_are_of_even_size_and_none_is_missing(method):
    full_batch = random_full_batch([3000, 2000], max_degree=8, seed=3)
    sizes = [part.numel() for part in partition(full_batch, 16, method)]
    assert len(sizes) == 16
    assert max(sizes) <= 1.02 * 2000 / 16


@pytest.mark.parametrize("method", METHODS)
def test_same_seed_gives_same_parts_on_any_thread_count(method):
    full_batch = random_full_batch([900, 600, 400], max_degree=6, seed=4)
    threads = torch.get_num_threads()
    torch.manual_seed(1)
    first = partition(full_batch, 8, method, seed=9)
    torch.manual_seed(2)
    torch.set_num_threads(threads % 2 + 1)
    try:
        second = partition(full_batch, 8, method, seed=9)
    finally:
        torch.set_num_threads(threads)
    assert [part.tolist() for part in first] == [part.tolist() for part in second]


@pytest.mark.parametrize("method", ["random", "metis", "REG"])
def test_another_seed_gives_other_parts(method):
    full_batch = random_full_batch([900, 600, 400], max_degree=6, seed=4)
    assert as_sets(partition(full_batch, 8, method, seed=0)) != as_sets(partition(full_batch, 8, method, seed=1))


@pytest.mark.parametrize("method", ["metis", "REG"])
def test_two_cliques_are_cut_at_the_edge_between_them(method):
    evens, odds = frozenset(range(0, 20, 2)), frozenset(range(1, 20, 2))
    for seed in range(5):
        assert as_sets(partition(clique_pair(10), 2, method, seed)) == {evens, odds}


def test_reg_joins_outputs_that_share_sources_though_no_edge_joins_them():
    full_batch = one_layer([[24 + node % 3] for node in range(24)], 27)
    expected = {frozenset(range(first, 24, 3)) for first in range(3)}
    assert as_sets(partition(full_batch, 3, "REG")) == expected
    assert redundancy(full_batch, partition(full_batch, 3, "REG")) == 1.0


def test_reg_cuts_where_fewest_sources_are_shared_not_fewest_pairs():
    # A ring of four pairs: 0-1 and 2-3 share five sources, 1-2 and 3-0 share one.
    strong_a, strong_b, weak_a, weak_b = list(range(4, 9)), list(range(9, 14)), [14], [15]
    rows = [strong_a + weak_b, strong_a + weak_a, strong_b + weak_a, strong_b + weak_b]
    for seed in range(10):
        assert as_sets(partition(one_layer(rows, 16), 2, "REG", seed)) == {frozenset({0, 1}), frozenset({2, 3})}


@pytest.mark.parametrize("seed", range(5))
def test_redundancy_graph_equals_brute_force(seed):
    block = random_block(num_dst=30, num_src=45, max_degree=7, seed=seed)
    assert weights_of(redundancy_graph(block)) == brute_force_shared_neighbours(block)


def test_redundancy_graph_counts_the_outputs_themselves():
    # Node 1 needs node 0, and both need node 2, which is an output too.
    assert weights_of(redundancy_graph(block_of([[2], [0, 2], []], 3))) == {
        **{(0, 1): 2, (1, 0): 2},
        **{(0, 2): 1, (2, 0): 1},
        **{(1, 2): 1, (2, 1): 1},
    }


def test_redundancy_graph_counts_parallel_edges_and_self_loops_once():
    block = block_of([[0, 2, 2, 3], [2, 3, 3, 3]], 4)
    assert weights_of(redundancy_graph(block)) == {(0, 1): 2, (1, 0): 2}


def test_redundancy_graph_leaves_out_the_hubs_that_too_many_outputs_share():
    block = random_block(num_dst=30, num_src=45, max_degree=7, seed=6)
    degrees = Counter(source for row in neighbours_of(block) for source in row)
    sharing = [degrees[source] + (source < block.num_dst) for source in range(block.num_src)]
    hubs = frozenset(source for source, count in enumerate(sharing) if count > 4)
    assert 0 < len(hubs) < block.num_src
    assert weights_of(redundancy_graph(block, max_sharing=4)) == brute_force_shared_neighbours(block, hubs)


def test_induced_graph_equals_brute_force():
    block = random_block(num_dst=30, num_src=45, max_degree=9, seed=7)
    directed = {(u, v) for u, row in enumerate(neighbours_of(block)) for v in row if v < block.num_dst and v != u}
    both_ways = directed | {(v, u) for u, v in directed}
    assert weights_of(induced_graph(block)) == dict.fromkeys(both_ways, 1)


def test_minimum_cut_takes_any_width_of_integers():
    graph = redundancy_graph(random_block(num_dst=60, num_src=80, max_degree=5, seed=8))
    narrow = csr_array((graph.data.astype(np.int32), graph.indices.astype(np.int32), graph.indptr.astype(np.int32)))
    assert torch.equal(minimum_cut(graph, 4, seed=1), minimum_cut(narrow, 4, seed=1))


@pytest.mark.parametrize("name", ["reg", "Metis", "RANGE"])
def test_method_names_may_be_in_any_case(name):
    assert partition(FULL_BATCHES["random"], 4, name)


def test_unknown_method_is_refused_with_the_known_ones():
    with pytest.raises(BettyError, match=r"'louvain'.*range, random, metis, REG"):
        partition(FULL_BATCHES["random"], 4, "louvain")
    with pytest.raises(BettyError, match="'louvain'"):
        re_partition(FULL_BATCHES["random"], [], 0, "louvain")


def test_fewer_than_one_part_is_refused():
    with pytest.raises(BettyError, match="0 parts"):
        partition(FULL_BATCHES["random"], 0)


def test_empty_parts_of_a_method_are_left_out(monkeypatch):
    monkeypatch.setitem(METHODS, "gaps", lambda problem: lambda num_parts: torch.arange(50) % 2 * (num_parts - 1))
    assert as_sets(partition(FULL_BATCHES["random"], 7, "gaps")) == {
        frozenset(range(0, 50, 2)),
        frozenset(range(1, 50, 2)),
    }


@pytest.mark.parametrize("num_parts", [1, 2, 7, 50])
@pytest.mark.parametrize("method", METHODS)
def test_input_nodes_and_redundancy_equal_brute_force(method, num_parts):
    full_batch = random_full_batch([150, 100, 70, 50], max_degree=3, seed=10)
    parts = partition(full_batch, num_parts, method)
    expected = [brute_force_input_nodes(full_batch, part) for part in parts]
    assert input_nodes(full_batch, parts).tolist() == expected
    assert redundancy(full_batch, parts) == sum(expected) / 150


def test_input_nodes_of_more_parts_than_bits_in_a_word():
    full_batch = random_full_batch([400, 300, 200], max_degree=2, seed=11)
    parts = partition(full_batch, 131, "random")
    assert input_nodes(full_batch, parts).tolist() == [brute_force_input_nodes(full_batch, part) for part in parts]


def test_input_nodes_of_no_parts():
    assert input_nodes(FULL_BATCHES["random"], []).tolist() == []


def cora_full_batch(real_graphs, fan_outs):
    with np.load(real_graphs / "cora.npz") as arrays:
        sources = np.repeat(np.arange(arrays["adj_indptr"].size - 1), np.diff(arrays["adj_indptr"]))
        graph = dgl.graph((sources, arrays["adj_indices"]), num_nodes=arrays["adj_indptr"].size - 1)
    outputs = torch.randperm(graph.num_nodes(), generator=torch.Generator().manual_seed(0))[:1600]
    return sample_full_batch(dgl.to_bidirected(graph), outputs, fan_outs, seed=0)


@pytest.mark.parametrize("fan_outs", [[-1], [-1, -1]], ids=["one layer", "two layers"])
@pytest.mark.parametrize("num_parts", [4, 16])
def test_cuts_have_far_less_redundancy_than_random_on_a_real_graph(real_graphs, fan_outs, num_parts):
    full_batch = cora_full_batch(real_graphs, fan_outs)
    of = {method: redundancy(full_batch, partition(full_batch, num_parts, method)) for method in METHODS}
    assert of["metis"] < 0.75 * of["random"]
    assert of["REG"] < 0.6 * of["random"]


@pytest.mark.parametrize("num_parts", [4, 16])
def test_reg_has_less_redundancy_than_metis_on_a_real_graph_of_two_layers(real_graphs, num_parts):
    # With one layer the two are too close on this graph to tell them apart at every seed.
    full_batch = cora_full_batch(real_graphs, [-1, -1])
    reg, metis = (redundancy(full_batch, partition(full_batch, num_parts, method)) for method in ("REG", "metis"))
    assert reg < 0.9 * metis


@pytest.mark.parametrize("method", METHODS)
def test_re_partition_splits_the_part_with_most_input_nodes_each_time(method):
    full_batch = random_full_batch([300, 200, 100], max_degree=3, seed=12)
    parts = partition(full_batch, 4, "random")
    for times in range(1, 6):
        before = re_partition(full_batch, parts, times - 1, method)
        after = re_partition(full_batch, parts, times, method)
        divisible = [index for index, part in enumerate(before) if part.numel() > 1]
        largest = max(divisible, key=lambda index, parts=before: brute_force_input_nodes(full_batch, parts[index]))
        split = after[largest : largest + 2]
        assert as_sets(after[:largest] + after[largest + 2 :]) == as_sets(before[:largest] + before[largest + 1 :])
        assert sorted(torch.cat(split).tolist()) == before[largest].tolist()
        assert all((half.diff() > 0).all() for half in split)


def test_re_partition_cuts_the_part_along_its_own_structure():
    full_batch = clique_pair(10)
    split = re_partition(full_batch, [torch.arange(20)], 1, "REG")
    assert as_sets(split) == {frozenset(range(0, 20, 2)), frozenset(range(1, 20, 2))}


def test_halves_are_two_also_where_the_method_leaves_one_empty(monkeypatch):
    all_in_one = torch.zeros(5, dtype=torch.int64)
    monkeypatch.setitem(METHODS, "all in one", lambda problem: lambda num_parts: all_in_one)
    split = halves(FULL_BATCHES["random"], torch.tensor([2, 3, 5, 7, 11]), "all in one")
    assert [half.tolist() for half in split] == [[2, 3, 5], [7, 11]]


def test_re_partition_passes_over_a_part_of_one_output():
    full_batch = one_layer([[3, 4, 5, 6, 7], [], []], 8)
    parts = [torch.tensor([0]), torch.tensor([1, 2])]
    assert as_sets(re_partition(full_batch, parts, 1, "range")) == {frozenset({0}), frozenset({1}), frozenset({2})}


def test_re_partition_ends_with_a_log_line_where_nothing_is_left_to_split(caplog):
    full_batch = FULL_BATCHES["two outputs"]
    with caplog.at_level(logging.INFO, logger=graph_partitioner.__name__):
        parts = re_partition(full_batch, [torch.arange(2)], 5, "REG")
    assert [part.tolist() for part in parts] == [[0], [1]]
    assert "re-partitioned 1 of 5 times" in caplog.text


def test_re_partition_no_times_changes_nothing():
    parts = partition(FULL_BATCHES["random"], 3)
    assert [part.tolist() for part in re_partition(FULL_BATCHES["random"], parts, 0)] == [
        part.tolist() for part in parts
    ]


@pytest.mark.parametrize("method", METHODS)
def test_one_partitioner_makes_the_parts_of_every_number(method):
    full_batch = FULL_BATCHES["random"]
    partitioner = Partitioner(PartitionProblem(full_batch, seed=2), method)
    for num_parts in (7, 2, 50, 1, 7):
        expected = partition(full_batch, num_parts, method, seed=2)
        assert [part.tolist() for part in partitioner.parts(num_parts)] == [part.tolist() for part in expected]


def test_a_partitioner_halves_parts_by_its_own_bound_on_hubs(monkeypatch):
    bounds = []

    def noted_graph(block, max_sharing):
        bounds.append(max_sharing)
        return redundancy_graph(block, max_sharing)

    monkeypatch.setattr(graph_partitioner, "redundancy_graph", noted_graph)
    problem = PartitionProblem(FULL_BATCHES["random"], reg_max_degree=3)
    assert len(Partitioner(problem, "REG").halves(torch.arange(20))) == 2
    assert bounds == [3]
