import itertools

import numpy as np
import pytest
import torch

from betty import FullBatch, GraphSAGE, MemoryEstimate, MicroBatch, estimate_memory, partition, redundancy, split
from betty.micro_batch_train import ordered_outputs, refinement
from betty.micro_batch_train.graph_partitioner import positions_by_part
from betty.micro_batch_train.locality_parts import LocalityParts
from betty.micro_batch_train.ordered_outputs import OrderedOutputs
from tests.neighbour_lists import full_batch_of, with_parallel_edges
from tests.random_blocks import random_full_batch


def locality(*problem, **known) -> LocalityParts:
    return LocalityParts(OrderedOutputs(*problem, **known))


MODEL = GraphSAGE(20, 8, 3, 2, "lstm")


def lstm_estimate(micro_batch: MicroBatch) -> MemoryEstimate:
    return estimate_memory(MODEL, micro_batch.blocks)


def counting_estimate(micro_batch: MicroBatch, per_edge: int = 40) -> MemoryEstimate:
    """A simple one for any number of blocks, with as much again for every model."""
    return MemoryEstimate(
        parameters=1000,
        gradients=1000,
        optimizer=2000,
        input_features=80 * micro_batch.input_ids.numel(),
        labels=8 * micro_batch.output_ids.numel(),
        blocks=4 * micro_batch.num_edges,
        hidden=per_edge * micro_batch.num_edges,
        aggregator=0,
        backward=0,
    )


def no_estimate_at_all(micro_batch: MicroBatch) -> MemoryEstimate:
    return MemoryEstimate(*[0] * 9)


ESTIMATES = {"none": None, "counts": counting_estimate, "zeros": no_estimate_at_all}


def ring(num_nodes: list[int], degree: int, seed: int) -> FullBatch:
    """Every destination has as many sources, near its place: all output nodes take about the same."""
    draw = np.random.default_rng(seed)
    layers = []
    for num_src, num_dst in itertools.pairwise(num_nodes):
        place = np.arange(num_dst)[:, None] * num_src // num_dst
        layers.append(((place + draw.integers(0, 3 * degree, size=(num_dst, degree))) % num_src).tolist())
    return full_batch_of(*layers, num_inputs=num_nodes[0])


HOMOGENEOUS = ring([3500, 2000, 1200], degree=5, seed=1)

ODD_FULL_BATCHES = {
    "two outputs": full_batch_of([[2], [2]], num_inputs=3),
    "two alone": full_batch_of([[], []], num_inputs=2),
    "three outputs": full_batch_of([[3], [3, 2], []], num_inputs=4),
    "no edges": full_batch_of([[]] * 40, num_inputs=40),
    "hub of all": full_batch_of([[70]] * 70, num_inputs=71),
    "output hub": full_batch_of([[], *[[0]] * 39], num_inputs=40),
    "complete": full_batch_of([list(range(30))] * 30, num_inputs=30),
    "one takes nearly all": full_batch_of(
        [[*range(41, 1000)] if node == 20 else [] for node in range(41)], num_inputs=1000
    ),
    "three blocks": random_full_batch([200, 150, 100, 50], max_degree=3, seed=5),
    "parallel edges": with_parallel_edges([120, 90, 60], max_degree=4, seed=6),
}


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("parts_at_once", [2, 32])
@pytest.mark.parametrize("estimate", ESTIMATES.values(), ids=ESTIMATES)
@pytest.mark.parametrize("full_batch", ODD_FULL_BATCHES.values(), ids=ODD_FULL_BATCHES)
def test_every_output_has_a_part_in_range_for_any_number(
    full_batch, estimate, parts_at_once, monkeypatch, capfd
) -> None:
    monkeypatch.setattr(refinement, "PARTS_AT_ONCE", parts_at_once)
    num_outputs = full_batch.output_ids.numel()
    for num_parts in sorted({2, 3, num_outputs // 2, num_outputs - 1}):
        if 2 <= num_parts < num_outputs or num_parts == 2:
            parts = locality(full_batch, 0, estimate)
            for assigned in (parts(num_parts), parts.segments(num_parts)):
                assert assigned.dtype == torch.int64
                assert assigned.shape == (num_outputs,)
                assert 0 <= int(assigned.min()) <= int(assigned.max()) < num_parts
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize("num_parts", range(2, 41))
def test_output_nodes_that_are_all_alike_leave_no_part_empty(num_parts: int) -> None:
    full_batch = ODD_FULL_BATCHES["no edges"]
    sizes = locality(full_batch, 0)(num_parts).bincount(minlength=num_parts)
    assert 40 // num_parts <= sizes.min()
    assert sizes.max() <= -(-40 // num_parts)


def memory_beyond_static(full_batch: FullBatch, part: torch.Tensor, estimate) -> np.ndarray:
    estimates = [estimate(micro_batch) for micro_batch in split(full_batch, positions_by_part(part))]
    return np.array([each.peak - each.static for each in estimates])


@pytest.mark.parametrize("num_parts", [2, 4, 8, 16])
@pytest.mark.parametrize("estimate", [lstm_estimate, counting_estimate])
def test_parts_of_a_homogeneous_graph_take_nearly_the_same(estimate, num_parts: int) -> None:
    takes = memory_beyond_static(HOMOGENEOUS, locality(HOMOGENEOUS, 0, estimate)(num_parts), estimate)
    assert len(takes) == num_parts
    assert takes.max() <= 1.06 * takes.mean()


def test_parts_are_even_by_the_estimate_that_is_given() -> None:
    # Half of the output nodes have three times the edges of the others.
    rows = [[node + 400 + step for step in range(12 if node < 200 else 4)] for node in range(400)]
    full_batch = full_batch_of(rows, num_inputs=820)

    def of_edges(micro_batch: MicroBatch) -> MemoryEstimate:
        return counting_estimate(micro_batch, per_edge=10**6)

    def of_nodes(micro_batch: MicroBatch) -> MemoryEstimate:
        return counting_estimate(micro_batch, per_edge=0)

    for estimate, other in ((of_edges, of_nodes), (of_nodes, of_edges)):
        part = locality(full_batch, 0, estimate)(8)
        own, others = (memory_beyond_static(full_batch, part, each) for each in (estimate, other))
        assert own.max() <= 1.06 * own.mean()
        assert others.max() >= 1.2 * others.mean()


@pytest.mark.parametrize("num_parts", [2, 4, 8, 16])
@pytest.mark.parametrize("estimate", [None, lstm_estimate], ids=["none", "lstm"])
@pytest.mark.parametrize(
    "full_batch",
    [
        HOMOGENEOUS,
        ring([900, 500, 250], degree=4, seed=2),
        with_parallel_edges([900, 600, 400], max_degree=5, seed=1),
        with_parallel_edges([2000, 700, 300], max_degree=3, seed=3),
    ],
    ids=["large ring", "ring", "random", "sparse"],
)
def test_parts_have_less_redundancy_than_of_other_methods(full_batch, estimate, num_parts: int) -> None:
    found = redundancy(full_batch, positions_by_part(locality(full_batch, 0, estimate)(num_parts)))
    of = {
        method: redundancy(full_batch, partition(full_batch, num_parts, method))
        for method in ("range", "random", "REG")
    }
    assert found < 0.98 * min(of["range"], of["random"])
    assert found <= 1.02 * of["REG"]


def test_groups_of_parts_that_are_refined_apart_are_nearly_as_good(monkeypatch) -> None:
    together = locality(HOMOGENEOUS, 0, lstm_estimate)(16)
    monkeypatch.setattr(refinement, "PARTS_AT_ONCE", 4)
    apart = locality(HOMOGENEOUS, 0, lstm_estimate)(16)
    assert not torch.equal(together, apart)
    takes = memory_beyond_static(HOMOGENEOUS, apart, lstm_estimate)
    assert takes.max() <= 1.06 * takes.mean()
    of_together, of_apart = (redundancy(HOMOGENEOUS, positions_by_part(part)) for part in (together, apart))
    assert of_apart <= 1.1 * of_together


def test_segments_are_runs_of_the_order_that_take_about_the_same() -> None:
    outputs = OrderedOutputs(HOMOGENEOUS, 0, lstm_estimate)
    parts = LocalityParts(outputs)
    segments = parts.segments(30)[torch.from_numpy(outputs.order)]
    assert (segments.diff() >= 0).all()
    assert segments.unique().tolist() == list(range(30))
    takes = memory_beyond_static(HOMOGENEOUS, parts.segments(30), lstm_estimate)
    assert takes.max() <= 1.2 * takes.mean()


def test_known_leaves_are_taken_as_they_are() -> None:
    found = OrderedOutputs(HOMOGENEOUS, 3, lstm_estimate)
    given = OrderedOutputs(HOMOGENEOUS, 3, lstm_estimate, torch.from_numpy(found.leaves))
    assert torch.equal(LocalityParts(given)(8), LocalityParts(found)(8))
    reverse = torch.from_numpy(found.leaves.max() - found.leaves)
    assert OrderedOutputs(HOMOGENEOUS, 3, leaves=reverse).order[0] in np.flatnonzero(reverse == 0)


def test_the_order_and_the_hypergraph_are_made_once_for_all_numbers(monkeypatch) -> None:
    made = []
    locality_leaves, output_hypergraph = ordered_outputs.locality_leaves, ordered_outputs.output_hypergraph

    def counted_leaves(*args):
        made.append("leaves")
        return locality_leaves(*args)

    def counted_hypergraph(*args):
        made.append("hypergraph")
        return output_hypergraph(*args)

    monkeypatch.setattr(ordered_outputs, "locality_leaves", counted_leaves)
    monkeypatch.setattr(ordered_outputs, "output_hypergraph", counted_hypergraph)
    parts = locality(HOMOGENEOUS, 0, lstm_estimate)
    for num_parts in (3, 4, 9):
        parts(num_parts)
        parts.segments(num_parts)
    assert sorted(made) == ["hypergraph", "leaves"]


@pytest.mark.parametrize("estimate", [None, lstm_estimate], ids=["none", "lstm"])
def test_the_same_seed_gives_the_same_parts_and_another_one_others(estimate) -> None:
    first, second, other = (locality(HOMOGENEOUS, seed, estimate)(8) for seed in (1, 1, 2))
    assert torch.equal(first, second)
    assert not torch.equal(first, other)


def test_parts_do_not_depend_on_what_was_asked_before() -> None:
    parts = locality(HOMOGENEOUS, 0)
    parts(3)
    parts.segments(50)
    assert torch.equal(parts(8), locality(HOMOGENEOUS, 0)(8))
