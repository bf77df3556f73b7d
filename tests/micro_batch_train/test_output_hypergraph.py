import dataclasses
from collections import Counter, defaultdict

import numpy as np
import pytest
import torch

from betty import FullBatch, split
from betty.micro_batch_train import output_hypergraph as module
from betty.micro_batch_train.memory_weights import MemoryWeights, counts
from betty.micro_batch_train.output_hypergraph import OutputHypergraph, output_hypergraph, sources_of
from tests.neighbour_lists import full_batch_of, needed_nodes, neighbours_of, with_parallel_edges
from tests.random_blocks import random_full_batch

FULL_BATCHES = {
    "one block": random_full_batch([60, 40], max_degree=4, seed=1),
    "two blocks": random_full_batch([90, 60, 40], max_degree=3, seed=2),
    "three blocks": random_full_batch([120, 90, 60, 30], max_degree=2, seed=3),
    "parallel edges": with_parallel_edges([50, 40, 30], max_degree=4, seed=4),
    "sparse": with_parallel_edges([200, 150, 100], max_degree=1, seed=5),
    "no edges": full_batch_of([[]] * 12, [[]] * 9, num_inputs=15),
    "hub of all": full_batch_of([[20]] * 20, num_inputs=21),
    "complete": full_batch_of([list(range(12))] * 12, num_inputs=12),
    "two outputs": full_batch_of([[2], [2, 2, 0]], num_inputs=3),
}


def whole_numbers(num_blocks: int) -> MemoryWeights:
    """Weights whose sums are exact, all of them different."""
    return MemoryWeights(tuple(range(3, 3 + num_blocks)), tuple(range(11, 11 + num_blocks)), 101)


def hypergraph_of(full_batch: FullBatch, seed: int = 0) -> OutputHypergraph:
    return output_hypergraph(full_batch, whole_numbers(len(full_batch.blocks)), seed)


def outputs_by_node(full_batch: FullBatch) -> dict[tuple[int, int], set[int]]:
    """The output nodes that need each node of each block."""
    outputs = defaultdict(set)
    for output in range(full_batch.output_ids.numel()):
        for layer, nodes in enumerate(needed_nodes(full_batch, output)):
            for node in nodes:
                outputs[layer, node].add(output)
    return outputs


def load_of(full_batch: FullBatch, weights: MemoryWeights, layer: int, node: int) -> float:
    """What a node takes in a block, with the edges that lead to it in the block before."""
    if layer == 0:
        return weights.of_source[0]
    return weights.of_source[layer] + weights.of_edge[layer - 1] * len(
        neighbours_of(full_batch.blocks[layer - 1])[node]
    )


def nets_of(hypergraph: OutputHypergraph) -> list[frozenset[int]]:
    columns = hypergraph.nets.tocsc()
    return [frozenset(column.tolist()) for column in np.split(columns.indices, columns.indptr[1:-1])]


@pytest.mark.parametrize("full_batch", FULL_BATCHES.values(), ids=FULL_BATCHES)
def test_nets_are_the_nodes_that_several_outputs_need(full_batch: FullBatch) -> None:
    weights = whole_numbers(len(full_batch.blocks))
    expected = Counter(
        (frozenset(outputs), float(load_of(full_batch, weights, layer, node)), float(layer == 0))
        for (layer, node), outputs in outputs_by_node(full_batch).items()
        if len(outputs) > 1
    )
    hypergraph = hypergraph_of(full_batch)
    loads, counts_of_nets = hypergraph.loads.tolist(), hypergraph.counts.tolist()
    assert len(loads) == expected.total() == hypergraph.nets.shape[1]
    if loads:
        assert Counter(zip(nets_of(hypergraph), loads, counts_of_nets, strict=True)) == expected
    assert set(hypergraph.nets.data.tolist()) <= {1.0}


@pytest.mark.parametrize("full_batch", FULL_BATCHES.values(), ids=FULL_BATCHES)
def test_an_output_takes_alone_itself_its_edges_and_the_nodes_that_no_other_needs(full_batch: FullBatch) -> None:
    weights = whole_numbers(len(full_batch.blocks))
    expected = [weights.of_output + weights.of_edge[-1] * len(row) for row in neighbours_of(full_batch.blocks[-1])]
    for (layer, node), outputs in outputs_by_node(full_batch).items():
        if len(outputs) == 1:
            expected[outputs.pop()] += load_of(full_batch, weights, layer, node)
    assert hypergraph_of(full_batch).own_loads.tolist() == expected


@pytest.mark.parametrize("num_parts", [1, 2, 3, 7])
@pytest.mark.parametrize("full_batch", FULL_BATCHES.values(), ids=FULL_BATCHES)
def test_the_load_of_a_part_is_the_weighted_sum_of_what_its_micro_batch_holds(
    full_batch: FullBatch, num_parts: int
) -> None:
    weights = whole_numbers(len(full_batch.blocks))
    in_order = [weight for pair in zip(weights.of_source, weights.of_edge, strict=True) for weight in pair]
    part = np.random.default_rng(num_parts).integers(num_parts, size=full_batch.output_ids.numel())
    positions = [torch.from_numpy(np.flatnonzero(part == number)) for number in range(num_parts)]
    filled = [number for number in range(num_parts) if positions[number].numel()]
    micro_batches = split(full_batch, [positions[number] for number in filled])
    expected = np.zeros(num_parts)
    expected[filled] = [counts(micro_batch) @ [*in_order, weights.of_output] for micro_batch in micro_batches]
    assert hypergraph_of(full_batch).part_loads(part, num_parts).tolist() == expected.tolist()


@pytest.mark.parametrize("full_batch", FULL_BATCHES.values(), ids=FULL_BATCHES)
def test_clusters_take_what_their_outputs_take_together(full_batch: FullBatch) -> None:
    hypergraph, num_outputs = hypergraph_of(full_batch), full_batch.output_ids.numel()
    draw = np.random.default_rng(0)
    cluster = draw.integers(num_outputs // 2 + 1, size=num_outputs)
    part_of_cluster = draw.integers(3, size=num_outputs // 2 + 1)
    contracted = hypergraph.contracted(cluster, num_outputs // 2 + 1)
    assert contracted.nets.shape == (num_outputs // 2 + 1, hypergraph.nets.shape[1])
    assert (contracted.nets.data == 1).all()
    expected = hypergraph.part_loads(part_of_cluster[cluster], 3)
    assert contracted.part_loads(part_of_cluster, 3).tolist() == expected.tolist()


@pytest.mark.parametrize("full_batch", FULL_BATCHES.values(), ids=FULL_BATCHES)
def test_some_of_the_outputs_take_what_they_took_among_all(full_batch: FullBatch) -> None:
    hypergraph, num_outputs = hypergraph_of(full_batch), full_batch.output_ids.numel()
    draw = np.random.default_rng(1)
    part = draw.integers(5, size=num_outputs)
    some = np.flatnonzero(part < 3)
    assert hypergraph.of(some).part_loads(part[some], 3).tolist() == hypergraph.part_loads(part, 5)[:3].tolist()


def test_no_outputs_at_all_take_nothing() -> None:
    nobody = np.zeros(0, dtype=np.int64)
    assert hypergraph_of(FULL_BATCHES["two blocks"]).of(nobody).part_loads(nobody, 2).tolist() == [0, 0]


def test_nets_come_from_no_further_than_the_pins_of_a_layer_allow(monkeypatch) -> None:
    full_batch = FULL_BATCHES["three blocks"]
    last_block, last_two = (FullBatch(full_batch.blocks[-count:]) for count in (1, 2))
    paths = sum(
        len({node, *neighbours_of(last_two.blocks[0])[node]})
        for output in range(30)
        for node in needed_nodes(last_block, output)[0]
    )
    weights = dataclasses.replace(whole_numbers(3), of_edge=(0, 12, 13))
    expected = output_hypergraph(last_two, MemoryWeights(weights.of_source[1:], weights.of_edge[1:], 101), 0)
    for most, stops_here in ((paths - 1, True), (paths, False)):
        monkeypatch.setattr(module, "MAX_PINS_ON_THE_WAY", most)
        found = output_hypergraph(full_batch, weights, 0)
        assert (found.loads.size == expected.loads.size) == stops_here
        if stops_here:
            assert found.loads.tolist() == expected.loads.tolist()
            assert found.counts.tolist() == expected.counts.tolist()
            assert found.own_loads.tolist() == expected.own_loads.tolist()


def test_nets_taken_at_random_stand_for_all_of_them_on_average(monkeypatch) -> None:
    full_batch = random_full_batch([400, 200, 100], max_degree=5, seed=6)
    part = np.arange(100) % 4
    exact = hypergraph_of(full_batch)

    def copies(hypergraph: OutputHypergraph) -> np.ndarray:
        ones = OutputHypergraph(hypergraph.nets, hypergraph.counts, hypergraph.counts, np.zeros(100))
        return ones.part_loads(part, 4)

    monkeypatch.setattr(module, "MAX_PINS", 500)
    sampled = [hypergraph_of(full_batch, seed) for seed in range(300)]
    assert max(hypergraph.nets.shape[1] for hypergraph in sampled) < 0.9 * exact.nets.shape[1]
    found = np.array([[copies(each), each.part_loads(part, 4)] for each in sampled])
    expected = np.array([copies(exact), exact.part_loads(part, 4)])
    standard_error = found.std(axis=0) / np.sqrt(len(sampled))
    assert (np.abs(found.mean(axis=0) - expected) < 4 * standard_error).all()
    assert (standard_error < 0.02 * expected).all()


def test_the_same_seed_takes_the_same_nets(monkeypatch) -> None:
    full_batch = FULL_BATCHES["three blocks"]
    monkeypatch.setattr(module, "MAX_PINS", 100)
    first, second, other = (hypergraph_of(full_batch, seed) for seed in (1, 1, 2))
    assert nets_of(first) == nets_of(second)
    assert nets_of(first) != nets_of(other)


def test_so_few_pins_that_no_net_is_left_leave_what_outputs_take_alone(monkeypatch) -> None:
    monkeypatch.setattr(module, "MAX_PINS", 1e-6)
    full_batch = FULL_BATCHES["one block"]
    hypergraph = hypergraph_of(full_batch)
    assert hypergraph.nets.shape == (40, 0)
    assert hypergraph.own_loads.tolist() == [101 + 11 * len(row) for row in neighbours_of(full_batch.blocks[0])]


def test_sources_of_a_block_are_its_neighbours_once_and_the_node_itself() -> None:
    block = FULL_BATCHES["parallel edges"].blocks[0]
    before = block.indices.clone()
    sources = sources_of(block)
    rows = [set(row.tolist()) for row in np.split(sources.indices, sources.indptr[1:-1])]
    assert rows == [{node, *row} for node, row in enumerate(neighbours_of(block))]
    assert sources.nnz == sum(map(len, rows))
    assert (sources.data == 1).all()
    assert torch.equal(block.indices, before)
