import numpy as np
import pytest

from betty.datasets.block_model import BlockModel, proportional_counts, sample_block_model

MODEL = BlockModel(num_nodes=3_000, num_edges=20_000, num_classes=7, num_communities=30, max_degree=600)


@pytest.mark.parametrize(
    "model",
    [
        MODEL,
        BlockModel(num_nodes=200, num_edges=2_000, num_classes=3, num_communities=3, max_degree=190),
        BlockModel(num_nodes=200, num_edges=5, num_classes=1, num_communities=1, max_degree=2),
        BlockModel(num_nodes=50, num_edges=100, num_classes=50, num_communities=50, max_degree=10),
    ],
)
def test_counts_are_exact_without_duplicates_and_self_loops(model):
    graph = sample_block_model(model, seed=0)
    ends = np.stack([graph.first_ends, graph.second_ends], axis=1)
    assert ends.shape == (model.num_edges, 2)
    assert ends.min() >= 0
    assert ends.max() < model.num_nodes
    assert (ends[:, 0] != ends[:, 1]).all()
    assert len({frozenset(edge) for edge in ends.tolist()}) == model.num_edges
    assert len(graph.classes) == model.num_nodes
    assert set(graph.classes.tolist()) == set(range(model.num_classes))


def test_seed_decides():
    first, again, other = (sample_block_model(MODEL, seed) for seed in (0, 0, 1))
    np.testing.assert_array_equal(first.first_ends, again.first_ends)
    np.testing.assert_array_equal(first.classes, again.classes)
    assert (first.first_ends != other.first_ends).any()


def test_degrees_have_a_heavy_tail():
    graph = sample_block_model(MODEL, seed=0)
    degrees = np.bincount(np.concatenate([graph.first_ends, graph.second_ends]), minlength=MODEL.num_nodes)
    mean = 2 * MODEL.num_edges / MODEL.num_nodes
    assert np.median(degrees) < mean
    assert 10 * mean < degrees.max() < 1.2 * MODEL.max_degree
    assert (degrees == 0).mean() < 0.01
    # Hill's estimator of the exponent over the tail, away from where it is cut off.
    tail = degrees[degrees > 2 * mean]
    exponent = 1 + 1 / np.log(tail / (2 * mean)).mean()
    assert 2.0 < exponent < 3.2


def test_most_edges_stay_inside_a_class():
    graph = sample_block_model(MODEL, seed=0)
    share = (graph.classes[graph.first_ends] == graph.classes[graph.second_ends]).mean()
    by_chance = (np.bincount(graph.classes) ** 2).sum() / MODEL.num_nodes**2
    assert by_chance < 0.25
    assert 0.9 < share < 0.96


def test_node_ids_tell_nothing_of_classes():
    graph = sample_block_model(MODEL, seed=0)
    same_as_next = (graph.classes[1:] == graph.classes[:-1]).mean()
    by_chance = (np.bincount(graph.classes) ** 2).sum() / MODEL.num_nodes**2
    assert abs(same_as_next - by_chance) < 0.05


@pytest.mark.parametrize(("total", "minimum"), [(10, 0), (10, 2), (1_000_003, 1), (5, 1)])
def test_proportional_counts(total, minimum):
    weights = np.array([0.5, 3.0, 1.0, 1e-9, 2.2])
    counts = proportional_counts(weights, total, minimum)
    ideal = minimum + (total - 5 * minimum) * weights / weights.sum()
    assert counts.sum() == total
    assert counts.min() >= minimum
    assert np.abs(counts - ideal).max() < 1
