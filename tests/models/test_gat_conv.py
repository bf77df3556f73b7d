import copy

import pytest
import torch
from torch.profiler import ProfilerActivity, profile

from betty import BettyError, Block
from betty.dgl_compat import dgl
from betty.models import GATConv
from tests.random_blocks import random_block

BLOCKS = {
    "hub and isolated": random_block(num_dst=30, num_src=90, max_degree=7, seed=0),
    "all sources are destinations": random_block(num_dst=40, num_src=40, max_degree=5, seed=1),
    "one destination": random_block(num_dst=1, num_src=8, max_degree=5, seed=2),
    "no edges": Block(torch.zeros(4, dtype=torch.int64), torch.empty(0, dtype=torch.int32), torch.arange(6)),
    "duplicate edges": Block(torch.tensor([0, 3, 3, 5]), torch.tensor([4, 4, 0, 2, 2]), torch.arange(5)),
}
# Input and output channels, heads: sums before projections, then projections before sums, with a residual connection
# that is linear, and one that is not.
SIZES = {
    "sums first": (6, 4, 3),
    "projects first": (13, 3, 4),
    "identity": (12, 4, 3),
    "identity, projects": (12, 2, 6),
}


def features(block: Block, channels: int, dtype: torch.dtype = torch.float64) -> torch.Tensor:
    generator = torch.Generator().manual_seed(7)
    return torch.randn(block.num_src, channels, generator=generator, dtype=torch.float64).to(dtype).requires_grad_()


def random_conv(*sizes: int, **settings: object) -> GATConv:
    """In float64, with a bias that is not zero."""
    torch.manual_seed(0)
    conv = GATConv(*sizes, **settings).double()
    for name, parameter in conv.named_parameters():
        if name.endswith("bias"):
            torch.nn.init.normal_(parameter)
    return conv


def of_dgl(*sizes: int, **settings: object) -> torch.nn.Module:
    return dgl.nn.GATConv(*sizes, **settings, allow_zero_in_degree=True).double()


def gradients(result: torch.Tensor, conv: torch.nn.Module, x: torch.Tensor) -> dict[str, torch.Tensor]:
    """Gradients of a weighted sum of the result."""
    weights = torch.randn(result.shape, generator=torch.Generator().manual_seed(8), dtype=torch.float64)
    wanted = {"x": x, **dict(conv.named_parameters())}
    return dict(zip(wanted, torch.autograd.grad((result * weights).sum(), list(wanted.values())), strict=True))


@pytest.mark.parametrize("residual", [False, True], ids=["plain", "residual"])
@pytest.mark.parametrize("sizes", SIZES.values(), ids=SIZES.keys())
@pytest.mark.parametrize("block", BLOCKS.values(), ids=BLOCKS.keys())
def test_result_and_gradients_equal_dgl(block, sizes, residual):
    conv = random_conv(*sizes, negative_slope=0.3, residual=residual)
    reference = of_dgl(*sizes, negative_slope=0.3, residual=residual)
    reference.load_state_dict(conv.state_dict())
    x = features(block, sizes[0])

    result = conv(block, x)
    expected = reference(block.to_dgl(), x)

    assert result.shape == (block.num_dst, sizes[2], sizes[1])
    torch.testing.assert_close(result, expected, rtol=1e-10, atol=1e-12)
    torch.testing.assert_close(gradients(result, conv, x), gradients(expected, reference, x), rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("residual", [False, True], ids=["plain", "residual"])
@pytest.mark.parametrize("sizes", SIZES.values(), ids=SIZES.keys())
def test_no_destinations_give_no_result_and_no_gradient(sizes, residual):
    block = Block(torch.zeros(1, dtype=torch.int64), torch.empty(0, dtype=torch.int32), torch.arange(6))
    conv = random_conv(*sizes, residual=residual)
    x = features(block, sizes[0])
    result = conv(block, x)
    assert result.shape == (0, sizes[2], sizes[1])
    assert all((gradient == 0).all() for gradient in gradients(result, conv, x).values())


def test_sizes_go_both_ways():
    assert [random_conv(*sizes).projects_first for sizes in SIZES.values()] == [False, True, False, True]


@pytest.mark.parametrize("sizes", [(3, 2, 2), (5, 1, 2)], ids=["sums first", "projects first"])
def test_gradcheck(sizes):
    block = random_block(num_dst=3, num_src=4, max_degree=3, seed=3)
    conv = random_conv(*sizes)
    assert torch.autograd.gradcheck(
        lambda x, *parameters: torch.func.functional_call(
            conv, dict(zip(dict(conv.named_parameters()), parameters, strict=True)), (block, x)
        ),
        (features(block, sizes[0]), *conv.parameters()),
    )


@pytest.mark.parametrize("sizes", SIZES.values(), ids=SIZES.keys())
def test_gradients_of_weights_do_not_need_those_of_features(sizes):
    block = BLOCKS["hub and isolated"]
    conv = random_conv(*sizes)
    x = features(block, sizes[0])
    found, expected = (
        torch.autograd.grad(conv(block, given).square().sum(), list(conv.parameters())) for given in (x.detach(), x)
    )
    torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("residual", [False, True], ids=["plain", "residual"])
@pytest.mark.parametrize("sizes", SIZES.values(), ids=SIZES.keys())
def test_weights_go_to_dgl_and_back(sizes, residual):
    conv, reference = random_conv(*sizes, residual=residual), of_dgl(*sizes, residual=residual)
    assert {name: weight.shape for name, weight in conv.named_parameters()} == {
        name: weight.shape for name, weight in reference.named_parameters()
    }
    conv.load_state_dict(reference.state_dict(), strict=True)
    reference.load_state_dict(conv.state_dict(), strict=True)


def test_initial_weights_have_dgl_distribution():
    torch.manual_seed(0)
    conv, reference = GATConv(64, 48, 8, residual=True), dgl.nn.GATConv(64, 48, 8, residual=True)
    for name, expected in reference.state_dict().items():
        weight = conv.state_dict()[name]
        assert weight.std(correction=0).item() == pytest.approx(expected.std(correction=0).item(), rel=0.2)


@pytest.mark.parametrize("sizes", SIZES.values(), ids=SIZES.keys())
def test_a_destination_without_neighbours_gets_the_bias(sizes):
    block = BLOCKS["hub and isolated"]
    conv = random_conv(*sizes)
    assert int(block.in_degrees()[0]) == 0
    torch.testing.assert_close(conv(block, features(block, sizes[0]))[0].flatten(), conv.bias)


@pytest.mark.parametrize("sizes", SIZES.values(), ids=SIZES.keys())
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-5), (torch.bfloat16, 0.1)])
def test_lower_precision_is_near_float64(sizes, dtype, tolerance):
    block = BLOCKS["all sources are destinations"]
    conv = random_conv(*sizes).to(dtype)
    exact = copy.deepcopy(conv).double()
    x = features(block, sizes[0], dtype)
    double_x = x.detach().double().requires_grad_()
    result, expected = conv(block, x), exact(block, double_x)
    result.square().sum().backward()
    expected.square().sum().backward()
    assert result.dtype == x.grad.dtype == dtype
    for found, wanted in ((result, expected), (x.grad, double_x.grad), (conv.fc.weight.grad, exact.fc.weight.grad)):
        error = (found.double() - wanted).norm() / wanted.norm()
        assert error < tolerance


def attention_of(conv: GATConv, block: Block) -> torch.Tensor:
    """``[num_edges, num_heads]``, read from a result in which every source has a channel of its own."""
    destinations = torch.arange(block.num_dst).repeat_interleave(block.in_degrees())
    return conv(block, torch.eye(block.num_src))[destinations, :, block.indices.long()].detach()


def test_dropout_of_attention_drops_edges_by_head_and_scales_the_others():
    block = random_block(num_dst=40, num_src=60, max_degree=60, seed=5)
    conv = GATConv(60, 60, 2, attn_drop=0.25)
    with torch.no_grad():
        conv.fc.weight.copy_(torch.eye(60).repeat(2, 1))
    expected = attention_of(conv.eval(), block)
    shares = attention_of(conv.train(), block) / expected
    assert ((shares == 0) | ((shares - 4 / 3).abs() < 1e-3)).all()
    assert (shares == 0).float().mean().item() == pytest.approx(0.25, abs=0.03)
    assert (shares == 0).any(1).float().mean().item() == pytest.approx(1 - 0.75**2, abs=0.05)


@pytest.mark.parametrize("mode", ["exact", "torch"])
def test_dropout_of_features_is_the_same_for_scores_and_sums(mode):
    """One neighbour each: attention is 1, and the result is the neighbour's features after dropout."""
    block = Block(torch.arange(51), torch.arange(50), torch.arange(50))
    conv = GATConv(40, 40, 1, feat_drop=0.5, dropout_mode=mode)
    with torch.no_grad():
        conv.fc.weight.copy_(torch.eye(40))
    result = conv(block, torch.ones(50, 40)).detach()
    assert result.unique().tolist() == [0, 2]
    assert result.mean().item() == pytest.approx(1, abs=0.1)
    assert conv.eval()(block, torch.ones(50, 40)).detach().unique().tolist() == [1]


def largest_allocation(conv: torch.nn.Module, block: Block, graph: object) -> int:
    """Bytes of the largest single allocation on the way forward and back."""
    x = features(block, conv.fc.in_features, torch.float32)
    conv(graph, x).sum().backward()
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as recorded:
        conv(graph, x).sum().backward()
    events = recorded.profiler.kineto_results.events()
    return max(event.nbytes() for event in events if event.name() == "[memory]")


@pytest.mark.parametrize("sizes", [(32, 16, 4), (80, 16, 4)], ids=["sums first", "projects first"])
def test_there_is_no_row_of_features_per_edge(sizes):
    indices = torch.randint(0, 300, (200 * 100,), generator=torch.Generator().manual_seed(0))
    block = Block(torch.arange(0, 200 * 100 + 1, 100), indices.int(), torch.arange(300))
    of_attention = block.num_edges * sizes[2] * 4
    assert largest_allocation(GATConv(*sizes), block, block) <= of_attention


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("sizes", SIZES.values(), ids=SIZES.keys())
@pytest.mark.parametrize("block", BLOCKS.values(), ids=BLOCKS.keys())
def test_result_and_gradients_on_cuda_equal_the_cpu(block, sizes):
    conv = random_conv(*sizes)
    x = features(block, sizes[0])
    expected = gradients(conv(block, x), conv, x)
    on_cuda, cuda_x = copy.deepcopy(conv).cuda(), x.detach().cuda().requires_grad_()
    result = on_cuda(block.to("cuda"), cuda_x).cpu()
    found = {name: gradient.cpu() for name, gradient in gradients(result, on_cuda, cuda_x).items()}
    torch.testing.assert_close(found, expected, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"num_heads": 0}, "at least 1 head, not 0"),
        ({"attn_drop": 1.0}, "dropout 1.0"),
        ({"feat_drop": -0.5}, "dropout -0.5"),
        ({"dropout_mode": "none"}, "unknown dropout mode 'none'"),
    ],
)
def test_settings_out_of_range_are_refused(wrong, message):
    with pytest.raises(BettyError, match=message):
        GATConv(**{"in_feats": 3, "out_feats": 2, "num_heads": 2, **wrong})
