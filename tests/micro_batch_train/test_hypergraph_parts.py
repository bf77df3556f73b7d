"""Parts by connectivity are compared with parts at random and by locality, node by node."""

import numpy as np
import pytest
import torch

from betty import FullBatch, MemoryEstimate, MicroBatch, partition, split
from betty.micro_batch_train.graph_partitioner import Partitioner, PartitionProblem
from tests.micro_batch_train.test_graph_partitioner import FULL_BATCHES, brute_force_input_nodes
from tests.micro_batch_train.test_planner import neighbourhoods

RING = neighbourhoods([900, 500, 250], max_degree=6, seed=4)


def estimate(micro_batch: MicroBatch) -> MemoryEstimate:
    """Memory that goes with input nodes and edges, beside a model of 1000 bytes."""
    return MemoryEstimate(
        parameters=1000,
        gradients=0,
        optimizer=0,
        input_features=40 * micro_batch.input_ids.numel(),
        labels=0,
        blocks=4 * micro_batch.num_edges,
        hidden=0,
        aggregator=0,
        backward=0,
    )


def copies(full_batch: FullBatch, parts: list[torch.Tensor]) -> int:
    return sum(brute_force_input_nodes(full_batch, part) for part in parts)


@pytest.mark.parametrize("num_parts", [2, 8])
def test_far_fewer_input_nodes_are_loaded_than_at_random(num_parts: int) -> None:
    by_connectivity = copies(RING, partition(RING, num_parts, "hypergraph"))
    assert by_connectivity < 0.7 * copies(RING, partition(RING, num_parts, "random"))


@pytest.mark.parametrize("num_parts", [4, 8])
def test_no_more_input_nodes_are_loaded_than_by_locality(num_parts: int) -> None:
    by_locality = copies(RING, partition(RING, num_parts, "locality", estimate=estimate))
    assert copies(RING, partition(RING, num_parts, "hypergraph", estimate=estimate)) <= by_locality


@pytest.mark.parametrize("num_parts", [2, 4, 8])
def test_parts_take_the_same_memory_by_the_estimate(num_parts: int) -> None:
    parts = partition(RING, num_parts, "hypergraph", estimate=estimate)
    takes = np.array([estimate(micro_batch).peak - 1000 for micro_batch in split(RING, parts)])
    assert len(parts) == num_parts
    assert takes.max() <= 1.08 * takes.mean()


def test_segments_follow_the_locality_order() -> None:
    problem = PartitionProblem(RING, seed=2)
    segments = Partitioner(problem, "hypergraph").segments(16)
    assert [segment.tolist() for segment in segments] == [
        segment.tolist() for segment in Partitioner(problem, "locality").segments(16)
    ]


@pytest.mark.parametrize("name", ["no edges", "two outputs"])
def test_where_nothing_can_be_saved_parts_are_those_by_locality(name: str) -> None:
    by_connectivity, by_locality = (partition(FULL_BATCHES[name], 2, method) for method in ("hypergraph", "locality"))
    assert [part.tolist() for part in by_connectivity] == [part.tolist() for part in by_locality]
