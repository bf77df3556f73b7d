import itertools
from collections.abc import Callable, Iterator

import pytest
import torch

from betty import Block
from betty.models import neighbour_maximum
from betty.models.neighbour_maximum import MaximumByBags, MaximumByPooling, max_neighbours
from betty.models.neighbour_reduction import (
    destination_rows,
    sum_neighbours,
    transpose_by_counting,
    transpose_by_sorting,
)
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
def one_thread() -> Iterator[None]:
    """For tests of thousands of tiny steps, which take far longer on threads that other processes are in the way of."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture
def x(block) -> torch.Tensor:
    """Values far enough apart for a finite difference not to change a maximum."""
    values = torch.randperm(block.num_src * 5, generator=torch.Generator().manual_seed(2)).double()
    return (values / 10 - 3).view(block.num_src, 5).requires_grad_()


def maximum_by(method: type[torch.autograd.Function]) -> Callable[[Block, torch.Tensor], torch.Tensor]:
    return lambda block, x: method.apply(x, block.indptr.to(block.indices.dtype), block.indices)


@pytest.mark.parametrize(
    ("reduce_neighbours", "reduce_rows"),
    [
        (sum_neighbours, lambda neighbours: neighbours.sum(0)),
        (max_neighbours, lambda neighbours: neighbours.amax(0)),
        (maximum_by(MaximumByBags), lambda neighbours: neighbours.amax(0)),
        (maximum_by(MaximumByPooling), lambda neighbours: neighbours.amax(0)),
    ],
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


@pytest.mark.parametrize("method", [MaximumByBags, MaximumByPooling])
@pytest.mark.usefixtures("one_thread")
def test_gradcheck_of_the_maximum(block, x, method):
    assert torch.autograd.gradcheck(lambda features: maximum_by(method)(block, features), x)


@pytest.mark.parametrize("chunk_elements", [1, 10, 75, 1000])
def test_lists_longer_than_a_chunk_are_reduced_piece_by_piece(block, x, chunk_elements, monkeypatch):
    expected = max_neighbours(block, x)
    weights = torch.randn(expected.shape, dtype=x.dtype, generator=torch.Generator().manual_seed(3))
    (expected_gradient,) = torch.autograd.grad(expected, x, weights)
    monkeypatch.setattr(neighbour_maximum, "POOLED_ELEMENTS", chunk_elements)
    monkeypatch.setattr(neighbour_maximum, "SERIAL_ELEMENTS", chunk_elements)
    result = maximum_by(MaximumByPooling)(block, x)
    (gradient,) = torch.autograd.grad(result, x, weights)
    assert torch.equal(result, expected)
    torch.testing.assert_close(gradient, expected_gradient)


@pytest.mark.parametrize("method", [MaximumByBags, MaximumByPooling])
@pytest.mark.parametrize("chunk_elements", [2, 1000])
def test_the_first_of_equals_gets_the_gradient(method, chunk_elements, monkeypatch):
    monkeypatch.setattr(neighbour_maximum, "POOLED_ELEMENTS", chunk_elements)
    equals = Block(torch.tensor([0, 4]), torch.tensor([3, 1, 2, 1]), torch.arange(4))
    x = torch.tensor([9.0, 5.0, 5.0, 4.0]).unsqueeze(1).requires_grad_()
    maximum_by(method)(equals, x).backward()
    assert x.grad.flatten().tolist() == [0, 1, 0, 0]


@pytest.mark.parametrize("method", [MaximumByBags, MaximumByPooling])
def test_maxima_below_zero_and_infinite_ones_are_kept(method):
    block = Block(torch.tensor([0, 2, 3, 3]), torch.tensor([3, 1, 2]), torch.arange(4))
    x = torch.tensor([[1.0, 1.0], [-5.0, torch.inf], [-torch.inf, 2.0], [-4.0, 0.0]])
    assert maximum_by(method)(block, x).tolist() == [[-4.0, torch.inf], [-torch.inf, 2.0], [0.0, 0.0]]


def test_destination_rows_are_a_slice_with_its_gradient(block, x):
    rows = destination_rows(block, x * 1)
    assert torch.equal(rows, x[: block.num_dst])
    # As in a layer, where a gradient comes from the neighbours, too.
    weights = torch.randn(rows.shape, dtype=x.dtype, generator=torch.Generator().manual_seed(3))
    (gradient,) = torch.autograd.grad([rows, sum_neighbours(block, x)], x, [weights, torch.zeros_like(rows)])
    assert gradient.layout == torch.strided
    assert torch.equal(gradient[: block.num_dst], weights)
    assert not gradient[block.num_dst :].any()


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
