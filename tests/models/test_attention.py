import itertools

import pytest
import torch
from torch.autograd import gradcheck

from betty import Block
from betty.models.attended_sums import attend, attend_and_project
from betty.models.attention import edge_destinations, edge_softmax, edges_by_source, score_nodes
from tests.random_blocks import random_block

HEADS = 3
BLOCKS = {
    "hub and isolated": random_block(num_dst=12, num_src=25, max_degree=4, seed=0),
    "all sources are destinations": random_block(num_dst=10, num_src=10, max_degree=5, seed=1),
    "no edges": Block(torch.zeros(4, dtype=torch.int64), torch.empty(0, dtype=torch.int32), torch.arange(6)),
    "no destinations": Block(torch.zeros(1, dtype=torch.int64), torch.empty(0, dtype=torch.int32), torch.arange(6)),
    "duplicate edges": Block(torch.tensor([0, 3, 3, 5]), torch.tensor([4, 4, 0, 2, 2]), torch.arange(5)),
}


@pytest.fixture(params=BLOCKS)
def block(request) -> Block:
    return BLOCKS[request.param]


def numbers(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed)).requires_grad_()


def edges(block: Block) -> list[tuple[int, int, int]]:
    """Edge, source and destination."""
    bounds, sources = block.indptr.tolist(), block.indices.tolist()
    return [
        (edge, sources[edge], destination)
        for destination, (start, stop) in enumerate(itertools.pairwise(bounds))
        for edge in range(start, stop)
    ]


def test_attention_is_the_softmax_of_every_row(block):
    source_scores, destination_scores = numbers(block.num_src, HEADS), numbers(block.num_dst, HEADS, seed=1)
    attention = edge_softmax(block, source_scores, destination_scores, 0.3)
    expected = torch.zeros(block.num_edges, HEADS, dtype=torch.float64)
    for destination, (start, stop) in enumerate(itertools.pairwise(block.indptr.tolist())):
        scores = source_scores[block.indices[start:stop].long()] + destination_scores[destination]
        expected[start:stop] = torch.nn.functional.leaky_relu(scores, 0.3).softmax(0)
    torch.testing.assert_close(attention, expected)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_attention_of_scores_far_apart_neither_overflows_nor_vanishes(dtype):
    block = Block(torch.tensor([0, 2, 4, 5]), torch.tensor([0, 1, 2, 3, 1]), torch.arange(4))
    scores = torch.tensor([[3e4], [3e4], [-3e4], [-1e5]], dtype=dtype)
    attention = edge_softmax(block, scores, torch.zeros(3, 1, dtype=dtype), 0.2)
    assert attention.flatten().tolist() == [0.5, 0.5, 1, 0, 1]


def test_gradcheck_of_the_attention(block):
    scores = numbers(block.num_src, HEADS), numbers(block.num_dst, HEADS, seed=1)
    assert gradcheck(lambda sources, destinations: edge_softmax(block, sources, destinations, 0.2), scores)


def test_attended_sum_equals_a_loop_over_edges(block):
    values, attention = numbers(block.num_src, HEADS, 4), numbers(block.num_edges, HEADS, seed=1)
    expected = torch.zeros(block.num_dst, HEADS, 4, dtype=torch.float64)
    for edge, source, destination in edges(block):
        expected[destination] += attention[edge, :, None] * values[source]
    torch.testing.assert_close(attend(block, values, attention), expected)


def test_sum_of_projections_is_the_projection_of_the_sum(block):
    x, weight, attention = numbers(block.num_src, 5), numbers(HEADS, 4, 5, seed=1), numbers(block.num_edges, HEADS)
    projections = torch.einsum("hci,si->shc", weight, x)
    torch.testing.assert_close(attend_and_project(block, x, weight, attention), attend(block, projections, attention))


def test_gradcheck_of_the_attended_sum(block):
    arguments = numbers(block.num_src, HEADS, 2), numbers(block.num_edges, HEADS, seed=1)
    assert gradcheck(lambda values, attention: attend(block, values, attention), arguments)


def test_gradcheck_of_the_attended_and_projected_sum(block):
    arguments = numbers(block.num_src, 3), numbers(HEADS, 2, 3, seed=1), numbers(block.num_edges, HEADS, seed=2)
    assert gradcheck(lambda x, weight, attention: attend_and_project(block, x, weight, attention), arguments)


def test_columns_in_pieces_give_the_gradient_of_all_at_once(block):
    """70 columns are more than two pieces."""
    x, weight, attention = numbers(block.num_src, 70), numbers(HEADS, 2, 70, seed=1), numbers(block.num_edges, HEADS)
    expected = attend(block, torch.einsum("hci,si->shc", weight, x), attention)
    (gradient,) = torch.autograd.grad(attend_and_project(block, x, weight, attention).square().sum(), x)
    (expected_gradient,) = torch.autograd.grad(expected.square().sum(), x)
    torch.testing.assert_close(gradient, expected_gradient)


def test_features_that_go_through_the_scores_get_both_gradients():
    x, vectors, weight = numbers(7, 5), numbers(2, 5, seed=1), numbers(3, 5, seed=2)

    def both(x: torch.Tensor, vectors: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        scores, x = score_nodes(x, vectors)
        return scores, x @ weight.detach().T

    assert torch.equal(both(x, vectors)[0], torch.nn.functional.linear(x, vectors))
    assert gradcheck(both, (x, vectors))


def test_features_without_a_gradient_stay_without():
    scores, x = score_nodes(numbers(7, 5).detach(), numbers(2, 5, seed=1))
    assert scores.requires_grad
    assert not x.requires_grad


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
def test_every_edge_is_found_at_both_ends(block, dtype):
    indices = block.indices.to(dtype)
    offsets, by_source = edges_by_source(indices, block.num_src)
    destinations = edge_destinations(block.indptr.to(dtype), indices)
    found = [
        (edge, source, int(destinations[edge]))
        for source, (start, stop) in enumerate(itertools.pairwise(offsets.tolist()))
        for edge in by_source[start:stop].tolist()
    ]
    assert sorted(found) == edges(block)
