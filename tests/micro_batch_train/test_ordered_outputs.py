import numpy as np
import pytest

from betty.micro_batch_train.memory_weights import MemoryWeights
from betty.micro_batch_train.ordered_outputs import OrderedOutputs, shares_within
from betty.micro_batch_train.output_hypergraph import output_hypergraph
from tests.micro_batch_train.test_graph_partitioner import brute_force_input_nodes
from tests.random_blocks import random_full_batch

FULL_BATCH = random_full_batch([150, 100, 70, 50], max_degree=3, seed=10)


def test_shares_within_parts_sum_to_what_the_parts_take() -> None:
    hypergraph = OrderedOutputs(FULL_BATCH, seed=0).hypergraph
    part = np.random.default_rng(0).integers(0, 4, 50)
    sums = np.bincount(part, weights=shares_within(hypergraph, part), minlength=4)
    np.testing.assert_allclose(sums, hypergraph.part_loads(part, 4))


@pytest.mark.parametrize("num_parts", [2, 7])
def test_copies_differ_between_partitions_as_their_input_nodes_do(num_parts: int) -> None:
    hypergraph = output_hypergraph(FULL_BATCH, MemoryWeights((1.0,) * 3, (1.0,) * 3, 1.0), seed=0)

    def loaded(part: np.ndarray) -> int:
        positions = [np.flatnonzero(part == number) for number in range(num_parts)]
        return sum(brute_force_input_nodes(FULL_BATCH, members) for members in positions)

    one, other = np.arange(50) % num_parts, np.arange(50) * num_parts // 50
    assert hypergraph.copies(one, num_parts) - hypergraph.copies(other, num_parts) == loaded(one) - loaded(other)


def test_without_an_estimate_no_part_takes_more_than_the_hypergraph_says() -> None:
    assert OrderedOutputs(FULL_BATCH, seed=0).factors(np.arange(50) % 4, 4).tolist() == [1.0] * 4
