import itertools

import pytest
import torch

from betty import Block
from betty.models.neighbour_reduction import max_neighbours, sum_neighbours, transpose_by_counting, transpose_by_sorting
from betty.models.neighbour_sequences import neighbour_sequences
from tests.random_blocks import random_block

BLOCKS = {
    "hub and isolated": random_block(num_dst=30, num_src=90, max_degree=7, seed=0),
    "all sources are destinations": random_block(num_dst=40, num_src=40, max_degree=5, seed=1),
    "no edges": Block(torch.zeros(4, dtype=torch.int64), torch.empty(0, dtype=torch.int32), torch.arange(6)),
    "no destinations": Block(torch.zeros(1, dtype=torch.int64), torch.empty(0, dtype=torch.int32), torch.arange(6)),
    "duplicate edges": Block(torch.tensor([0, 3, 3, 5]), torch.tensor([4, 4, 0, 2, 2]), torch.arange(5)),
}


def rows(block: Block) -> list[list[int]]:
    indptr, indices = block.indptr.tolist(), block.indices.tolist()
    return [indices[start:stop] for start, stop in itertools.pairwise(indptr)]


@pytest.fixture(params=BLOCKS)
def block(request) -> Block:
    return BLOCKS[request.param]


@pytest.fixture
def x(block) -> torch.Tensor:
    """Values far enough apart for a finite difference not to change a maximum."""
    values = torch.randperm(block.num_src * 5, generator=torch.Generator().manual_seed(2)).double()
    return (values / 10 - 3).view(block.num_src, 5).requires_grad_()


@pytest.mark.parametrize(
    ("reduce_neighbours", "reduce_rows"),
    [(sum_neighbours, lambda neighbours: neighbours.sum(0)), (max_neighbours, lambda neighbours: neighbours.amax(0))],
)
def test_reduction_and_its_gradient_equal_a_loop_over_destinations(block, x, reduce_neighbours, reduce_rows):
    expected = torch.stack(
        [reduce_rows(x[row]) if row else torch.zeros(5, dtype=x.dtype) for row in rows(block)]
        or [torch.zeros(0, 5, dtype=x.dtype)]
    ).view(block.num_dst, 5)
    result = reduce_neighbours(block, x)
    torch.testing.assert_close(result, expected)
    if block.num_edges:
        weights = torch.randn(result.shape, dtype=x.dtype, generator=torch.Generator().manual_seed(3))
        # A view with strides, as gradients may be.
        (gradient,) = torch.autograd.grad(result, x, weights.T.contiguous().T)
        (expected_gradient,) = torch.autograd.grad(expected, x, weights)
        torch.testing.assert_close(gradient, expected_gradient)


def test_gradcheck_of_the_sum(block, x):
    assert torch.autograd.gradcheck(lambda features: sum_neighbours(block, features), x)


def test_gradcheck_of_the_maximum(block, x):
    assert torch.autograd.gradcheck(lambda features: max_neighbours(block, features), x)


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
@pytest.mark.parametrize("transpose", [transpose_by_counting, transpose_by_sorting])
def test_transpose_lists_the_destinations_of_every_source(block, dtype, transpose):
    indptr, indices = transpose(block.indptr.to(dtype), block.indices.to(dtype), block.num_src)
    expected = [[] for _ in range(block.num_src)]
    for destination, row in enumerate(rows(block)):
        for source in row:
            expected[source].append(destination)
    bounds = indptr.tolist()
    assert indptr.dtype == indices.dtype
    assert [indices.tolist()[a:b] for a, b in itertools.pairwise(bounds)] == expected


def test_sequences_keep_the_order_of_edges_and_leave_out_nodes_without(block):
    sequences = neighbour_sequences(block)
    lengths = [
        length
        for length, edges in zip(sequences.group_lengths, sequences.group_edges, strict=True)
        for _ in range(edges // length)
    ]
    found = dict(
        zip(sequences.destinations.tolist(), [part.tolist() for part in sequences.sources.split(lengths)], strict=False)
    )
    assert lengths == sorted(lengths)
    assert found == {destination: row for destination, row in enumerate(rows(block)) if row}
