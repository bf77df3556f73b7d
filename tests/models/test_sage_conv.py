import copy

import pytest
import torch
from torch.profiler import ProfilerActivity, profile

from betty import BettyError, Block
from betty.dgl_compat import dgl
from betty.models import AGGREGATORS, SAGEConv
from tests.random_blocks import random_block

OF_DGL = ["mean", "gcn", "pool", "lstm"]
BLOCKS = {
    "hub and isolated": random_block(num_dst=30, num_src=90, max_degree=7, seed=0),
    "all sources are destinations": random_block(num_dst=40, num_src=40, max_degree=5, seed=1),
    "one destination": random_block(num_dst=1, num_src=8, max_degree=5, seed=2),
    "no edges": Block(torch.zeros(4, dtype=torch.int64), torch.empty(0, dtype=torch.int32), torch.arange(6)),
    "duplicate edges": Block(torch.tensor([0, 3, 3, 5]), torch.tensor([4, 4, 0, 2, 2]), torch.arange(5)),
}


def features(block: Block, channels: int, dtype: torch.dtype = torch.float64) -> torch.Tensor:
    generator = torch.Generator().manual_seed(7)
    return torch.randn(block.num_src, channels, generator=generator, dtype=torch.float64).to(dtype).requires_grad_()


def output_weights(result: torch.Tensor) -> torch.Tensor:
    return torch.randn(result.shape, generator=torch.Generator().manual_seed(8), dtype=torch.float64)


def gradients(result: torch.Tensor, conv: torch.nn.Module, x: torch.Tensor) -> dict[str, torch.Tensor]:
    """Gradients of a weighted sum of the result; of a weight that is not used, zeros."""
    wanted = {"x": x, **dict(conv.named_parameters())}
    found = torch.autograd.grad((result * output_weights(result)).sum(), list(wanted.values()), allow_unused=True)
    return {
        name: torch.zeros_like(wanted[name]) if gradient is None else gradient
        for name, gradient in zip(wanted, found, strict=True)
    }


@pytest.mark.parametrize("widths", [(6, 4), (4, 6), (5, 5)], ids=["narrowing", "widening", "equal"])
@pytest.mark.parametrize("block", BLOCKS.values(), ids=BLOCKS.keys())
@pytest.mark.parametrize("aggregator", OF_DGL)
def test_result_and_gradients_equal_dgl(aggregator, block, widths):
    conv = SAGEConv(*widths, aggregator).double()
    reference = dgl.nn.SAGEConv(*widths, aggregator).double()
    reference.load_state_dict(conv.state_dict())
    x = features(block, widths[0])

    result = conv(block, x)
    expected = reference(block.to_dgl(), x)

    torch.testing.assert_close(result, expected, rtol=1e-10, atol=1e-12)
    expected_gradients = gradients(expected, reference, x)
    if aggregator == "pool" and block.num_edges == 0:
        # DGL sends the gradient of maxima over nothing into source 0; there is nothing that it could depend on.
        expected_gradients["fc_pool.weight"].zero_()
        expected_gradients["fc_pool.bias"].zero_()
        expected_gradients["x"] = torch.zeros_like(x).index_add(
            0, torch.arange(block.num_dst), output_weights(expected) @ conv.fc_self.weight
        )
    torch.testing.assert_close(gradients(result, conv, x), expected_gradients, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("widths", [(6, 4), (4, 6)], ids=["narrowing", "widening"])
@pytest.mark.parametrize("block", BLOCKS.values(), ids=BLOCKS.keys())
def test_sum_and_its_gradients_equal_dgl_message_passing(block, widths):
    conv = SAGEConv(*widths, "sum").double()
    x = features(block, widths[0])
    graph = block.to_dgl()
    graph.srcdata["h"] = x
    graph.update_all(dgl.function.copy_u("h", "m"), dgl.function.sum("m", "sum"))
    neighbours = graph.dstdata["sum"] if block.num_edges else torch.zeros(block.num_dst, widths[0], dtype=x.dtype)
    expected = conv.fc_neigh(neighbours) + conv.fc_self(x[: block.num_dst])

    result = conv(block, x)

    torch.testing.assert_close(result, expected, rtol=1e-10, atol=1e-12)
    torch.testing.assert_close(gradients(result, conv, x), gradients(expected, conv, x), rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("aggregator", OF_DGL)
def test_weights_go_to_dgl_and_back(aggregator):
    conv = SAGEConv(6, 4, aggregator)
    reference = dgl.nn.SAGEConv(6, 4, aggregator)
    assert {name: weight.shape for name, weight in conv.named_parameters()} == {
        name: weight.shape for name, weight in reference.named_parameters()
    }
    conv.load_state_dict(reference.state_dict(), strict=True)
    reference.load_state_dict(conv.state_dict(), strict=True)


@pytest.mark.parametrize("aggregator", OF_DGL)
def test_initial_weights_have_dgl_distribution(aggregator):
    torch.manual_seed(0)
    conv = SAGEConv(64, 48, aggregator)
    reference = dgl.nn.SAGEConv(64, 48, aggregator)
    for name, expected in reference.state_dict().items():
        weight = conv.state_dict()[name]
        assert weight.std(correction=0).item() == pytest.approx(expected.std(correction=0).item(), rel=0.3)


def test_lstm_reads_neighbours_in_the_order_of_edges():
    conv = SAGEConv(3, 2, "lstm").double()
    x = features(Block(torch.tensor([0, 3]), torch.tensor([1, 2, 3]), torch.arange(4)), 3)
    _, (last_state, _) = conv.lstm(x[[3, 1, 2]].unsqueeze(0))
    expected = conv.fc_neigh(last_state[0]) + conv.fc_self(x[:1])
    result = conv(Block(torch.tensor([0, 3]), torch.tensor([3, 1, 2]), torch.arange(4)), x)
    torch.testing.assert_close(result, expected)


@pytest.mark.parametrize("aggregator", AGGREGATORS)
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-5), (torch.bfloat16, 0.1)])
def test_lower_precision_is_near_float64(aggregator, dtype, tolerance):
    block = BLOCKS["all sources are destinations"]
    conv = SAGEConv(6, 4, aggregator).to(dtype)
    exact = copy.deepcopy(conv).double()
    x = features(block, 6, dtype)
    result = conv(block, x)
    result.sum().backward()
    assert result.dtype == x.grad.dtype == dtype
    expected = exact(block, x.detach().double()).detach()
    torch.testing.assert_close(result.double(), expected, rtol=tolerance, atol=tolerance * float(expected.abs().max()))


def largest_allocation(aggregator: str, block: Block, channels: int) -> int:
    """Bytes of the largest single allocation on the way forward and back."""
    conv = SAGEConv(channels, channels, aggregator)
    x = features(block, channels, torch.float32)
    conv(block, x).sum().backward()
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as recorded:
        conv(block, x).sum().backward()
    events = recorded.profiler.kineto_results.events()
    return max(event.nbytes() for event in events if event.name() == "[memory]")


def dense_block(num_src: int, num_dst: int, degree: int) -> Block:
    indices = torch.randint(0, num_src, (num_dst * degree,), generator=torch.Generator().manual_seed(0))
    return Block(torch.arange(0, num_dst * degree + 1, degree), indices.int(), torch.arange(num_src))


@pytest.mark.parametrize("aggregator", ["mean", "sum", "gcn", "pool"])
def test_there_is_no_row_per_edge(aggregator):
    # Pieces that stay in the cache are a small part of so many edges.
    block, channels = dense_block(num_src=4000, num_dst=4000, degree=100), 32
    assert largest_allocation(aggregator, block, channels) < block.num_edges * channels * 4 / 4


def test_the_measure_of_allocations_sees_a_row_per_edge():
    block, channels = dense_block(num_src=300, num_dst=200, degree=100), 32
    assert largest_allocation("lstm", block, channels) >= block.num_edges * channels * 4


def test_unknown_aggregator_is_refused_with_the_known_ones():
    with pytest.raises(BettyError, match="unknown aggregator 'median'; choose one of mean, sum, gcn, pool, lstm"):
        SAGEConv(3, 2, "median")
