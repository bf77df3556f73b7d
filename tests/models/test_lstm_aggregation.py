import copy
import itertools

import pytest
import torch
from torch import nn
from torch.profiler import ProfilerActivity, profile

from betty import Block, GraphSAGE, PeakMemory
from betty.dgl_compat import dgl
from betty.memory import estimate_inference
from betty.models import SAGEConv, lstm_aggregation, lstm_kernel, matrix_products
from betty.models.lstm_aggregation import last_lstm_states
from betty.models.neighbour_sequences import neighbour_sequences
from tests.random_blocks import random_block

BLOCKS = {
    "hub and isolated": random_block(num_dst=30, num_src=90, max_degree=7, seed=0),
    "all sources are destinations": random_block(num_dst=40, num_src=40, max_degree=5, seed=1),
    "one destination": Block(torch.tensor([0, 3]), torch.tensor([2, 0, 1]), torch.arange(3)),
    "one neighbour each": Block(torch.arange(5), torch.tensor([4, 2, 2, 0]), torch.arange(5)),
    "duplicate neighbours": Block(torch.tensor([0, 3, 3, 5]), torch.tensor([4, 4, 0, 2, 2]), torch.arange(5)),
    "no edges": Block(torch.zeros(4, dtype=torch.int64), torch.empty(0, dtype=torch.int32), torch.arange(6)),
    "no destinations": Block(torch.zeros(1, dtype=torch.int64), torch.empty(0, dtype=torch.int32), torch.arange(6)),
}
CHANNELS = 5


@pytest.fixture(params=BLOCKS)
def block(request) -> Block:
    return BLOCKS[request.param]


@pytest.fixture(params=[1, 3, None], ids=["chunks of one", "chunks of three", "one chunk"])
def chunks(request, monkeypatch) -> None:
    """How many sequences are read together."""
    if request.param is not None:
        monkeypatch.setattr(lstm_aggregation, "CPU_STATES", request.param * CHANNELS)


@pytest.fixture(params=[0, 1 << 40], ids=["gates per source", "gates per edge"])
def gates(request, monkeypatch) -> None:
    """Where what features contribute to the gates is computed."""
    monkeypatch.setattr(lstm_aggregation, "EDGES_PER_PROJECTED_SOURCE", request.param)


@pytest.fixture(autouse=True)
def _one_thread():
    """Thousands of tiny steps take far longer on threads that other processes get in the way of."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def block_of_degrees(degrees: list[int], num_src: int) -> Block:
    indptr = torch.tensor([0, *degrees]).cumsum(0)
    neighbours = torch.randint(num_src, (sum(degrees),), generator=torch.Generator().manual_seed(3))
    return Block(indptr, neighbours.int(), torch.arange(num_src))


def new_lstm(channels: int = CHANNELS, dtype: torch.dtype = torch.float64) -> nn.LSTM:
    torch.manual_seed(0)
    return nn.LSTM(channels, channels, batch_first=True).to(dtype)


def features(block: Block, channels: int = CHANNELS, dtype: torch.dtype = torch.float64) -> torch.Tensor:
    values = torch.randn(block.num_src, channels, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    return values.to(dtype).requires_grad_()


def read_one_by_one(block: Block, x: torch.Tensor, lstm: nn.LSTM) -> torch.Tensor:
    """The definition: an LSTM of PyTorch's for every destination."""
    states = [x.new_zeros(0, x.shape[1])]
    for start, stop in itertools.pairwise(block.indptr.tolist()):
        neighbours = x.index_select(0, block.indices[start:stop])
        states.append(lstm(neighbours)[0][-1:] if stop > start else x.new_zeros(1, x.shape[1]))
    return torch.cat(states)


def gradients(result: torch.Tensor, x: torch.Tensor, lstm: nn.LSTM) -> list[torch.Tensor]:
    weights = torch.randn(result.shape, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    wanted = [x, *lstm.parameters()]
    found = torch.autograd.grad((result * weights.to(result.dtype)).sum(), wanted, allow_unused=True)
    return [torch.zeros_like(w) if g is None else g for w, g in zip(wanted, found, strict=True)]


@pytest.mark.usefixtures("chunks", "gates")
def test_states_and_gradients_equal_a_loop_over_destinations(block):
    lstm, x = new_lstm(), features(block)
    expected = read_one_by_one(block, x, lstm)
    result = last_lstm_states(block, x, lstm)
    torch.testing.assert_close(result, expected, rtol=1e-12, atol=1e-13)
    if block.num_edges:
        expected_gradients = gradients(expected, x, lstm)
        torch.testing.assert_close(gradients(result, x, lstm), expected_gradients, rtol=1e-11, atol=1e-12)


@pytest.mark.usefixtures("chunks", "gates")
@pytest.mark.parametrize("num_steps", [1, 3])
@pytest.mark.parametrize("num_narrow", [2, 1000])
def test_states_without_gradients_equal_a_loop_over_destinations(block, num_steps, num_narrow, monkeypatch):
    monkeypatch.setattr(lstm_kernel, "KERNEL_STEPS", num_steps)
    monkeypatch.setattr(lstm_kernel, "NARROW_STATES", num_narrow * CHANNELS)
    lstm, x = new_lstm(), features(block)
    with torch.no_grad():
        expected, result = read_one_by_one(block, x, lstm), last_lstm_states(block, x, lstm)
    torch.testing.assert_close(result, expected, rtol=1e-12, atol=1e-13)


@pytest.mark.usefixtures("gates")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_long_sequences_without_gradients_are_exact_but_for_rounding(dtype):
    block = block_of_degrees([500, 300, 299, 70, 3], num_src=700)
    lstm, x = new_lstm(16, dtype), features(block, 16, dtype)
    with torch.no_grad():
        result = last_lstm_states(block, x, lstm)
        expected = read_one_by_one(block, x.double(), copy.deepcopy(lstm).double())
    assert result.dtype == dtype
    torch.testing.assert_close(result.double(), expected, rtol=torch.finfo(dtype).eps, atol=1e-6)


def test_without_gradients_pytorch_makes_nearly_all_steps_of_a_hub(monkeypatch):
    calls, kernel = [], torch.lstm
    monkeypatch.setattr(lstm_kernel.torch, "lstm", lambda *arguments: calls.append(1) or kernel(*arguments))
    block = block_of_degrees([2000], num_src=3000)
    lstm, x = new_lstm(16), features(block, 16)
    with torch.no_grad():
        last_lstm_states(block, x, lstm)
    assert len(calls) == 2000 // lstm_kernel.KERNEL_STEPS


def test_autocast_leaves_long_sequences_as_they_are():
    block = block_of_degrees([200, 100], num_src=300)
    lstm, x = new_lstm(16, torch.float32), features(block, 16, torch.float32)
    with torch.no_grad():
        expected = last_lstm_states(block, x, lstm)
        with torch.autocast("cpu", torch.bfloat16):
            result = last_lstm_states(block, x, lstm)
    assert torch.equal(result, expected)


DEGREES = {
    "hub": ([3000], 3001),
    "hub of few sources": ([8000], 500),
    "long": (list(range(100, 900, 40)), 1000),
    "short": ([7] * 3000, 9000),
    "hub and short": ([3000] + [10] * 2000, 5000),
    "all": ([1500, 1200, 900] + [80] * 800 + [300] * 100, 3000),
}


@pytest.mark.parametrize("name", DEGREES)
@pytest.mark.parametrize(
    ("channels", "dtype"), [(16, torch.float32), (64, torch.float32), (64, torch.float64), (64, torch.bfloat16)]
)
def test_inference_takes_what_is_estimated(name, channels, dtype):
    block = block_of_degrees(*DEGREES[name])
    model, x = GraphSAGE(channels, 32, 5, 2, "lstm").to(dtype).eval(), features(block, channels, dtype)
    tensors = block.indptr, block.indices, block.src_ids, torch.empty(block.num_dst, dtype=torch.int64), x
    parameters = sum(parameter.nbytes for parameter in model.parameters())
    loaded = 4 * parameters + sum(tensor.nbytes for tensor in tensors)
    with torch.no_grad(), PeakMemory("cpu") as meter:
        model.layer_forward(0, block, x)
    assert estimate_inference(model, 0, block) - loaded == pytest.approx(meter.peak_bytes, rel=0.05)


def test_gradients_are_zero_where_there_are_no_edges():
    block, lstm = BLOCKS["no edges"], new_lstm()
    x = features(block)
    assert not any(gradient.any() for gradient in gradients(last_lstm_states(block, x, lstm), x, lstm))


class Reader(nn.Module):
    """The function as a module, whose parameters can be exchanged."""

    def __init__(self, block: Block) -> None:
        super().__init__()
        self.block = block
        self.lstm = new_lstm()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return last_lstm_states(self.block, x, self.lstm)


@pytest.mark.usefixtures("chunks", "gates")
@pytest.mark.parametrize("name", ["duplicate neighbours", "one neighbour each", "one destination", "no edges"])
def test_gradcheck(name):
    reader = Reader(BLOCKS[name])
    names, parameters = zip(*reader.named_parameters(), strict=True)

    def states(x: torch.Tensor, *parameters: torch.Tensor) -> torch.Tensor:
        return torch.func.functional_call(reader, dict(zip(names, parameters, strict=True)), x)

    assert torch.autograd.gradcheck(states, (features(reader.block), *parameters))


@pytest.mark.usefixtures("gates")
@pytest.mark.parametrize("has_onednn", [matrix_products.HAS_ONEDNN, False])
def test_float32_equals_dgl(has_onednn, monkeypatch):
    monkeypatch.setattr(matrix_products, "HAS_ONEDNN", has_onednn)
    block = random_block(num_dst=300, num_src=700, max_degree=12, seed=3)
    conv, reference = SAGEConv(32, 16, "lstm"), dgl.nn.SAGEConv(32, 16, "lstm")
    reference.load_state_dict(conv.state_dict())
    x = features(block, 32, torch.float32)
    result, expected = conv(block, x), reference(block.to_dgl(), x)
    torch.testing.assert_close(result, expected, rtol=1e-4, atol=1e-5)
    weights = torch.randn(result.shape, generator=torch.Generator().manual_seed(2))
    for (name, parameter), other in zip(
        [("x", x), *conv.named_parameters()], [x, *dict(reference.named_parameters()).values()], strict=True
    ):
        (gradient,) = torch.autograd.grad((result * weights).sum(), parameter, retain_graph=True)
        (expected_gradient,) = torch.autograd.grad((expected * weights).sum(), other, retain_graph=True)
        scale = float(expected_gradient.abs().max())
        assert float((gradient - expected_gradient).abs().max()) < 1e-5 * scale, name


@pytest.mark.usefixtures("gates")
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_is_exact_but_for_its_inputs_and_outputs(dtype):
    block = BLOCKS["hub and isolated"]
    lstm, x = new_lstm(dtype=dtype), features(block, dtype=dtype)
    exact_lstm, exact_x = copy.deepcopy(lstm).double(), x.detach().double().requires_grad_()
    result, expected = last_lstm_states(block, x, lstm), last_lstm_states(block, exact_x, exact_lstm)
    assert result.dtype == dtype
    epsilon = torch.finfo(dtype).eps
    torch.testing.assert_close(result.double(), expected, rtol=epsilon, atol=1e-6)
    found, exact = gradients(result, x, lstm), gradients(expected, exact_x, exact_lstm)
    for gradient, other in zip(found, exact, strict=True):
        assert gradient.dtype == dtype
        torch.testing.assert_close(
            gradient.double(), other, rtol=4 * epsilon, atol=2 * epsilon * float(other.abs().max())
        )


@pytest.mark.usefixtures("gates")
def test_gradients_can_be_computed_twice():
    block, lstm = BLOCKS["hub and isolated"], new_lstm()
    x = features(block)
    result = last_lstm_states(block, x, lstm).square().sum()
    first = torch.autograd.grad(result, [x, *lstm.parameters()], retain_graph=True)
    second = torch.autograd.grad(result, [x, *lstm.parameters()])
    assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))


@pytest.mark.usefixtures("gates")
def test_features_without_gradient_leave_those_of_the_weights_as_they_are():
    block, lstm = BLOCKS["hub and isolated"], new_lstm()
    x = features(block)
    expected = gradients(last_lstm_states(block, x, lstm), x, lstm)[1:]
    result = last_lstm_states(block, x.detach(), lstm)
    found = torch.autograd.grad(
        (result * torch.randn(result.shape, generator=torch.Generator().manual_seed(2), dtype=x.dtype)).sum(),
        list(lstm.parameters()),
    )
    assert all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))


def kept_bytes(block: Block, x: torch.Tensor, lstm: nn.LSTM) -> int:
    """Bytes that are alive after the forward and were not before, the result's included."""
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as recorded:
        result = last_lstm_states(block, x, lstm)
    del result
    return sum(event.nbytes() for event in recorded.profiler.kineto_results.events() if event.name() == "[memory]")


def test_one_number_per_edge_and_channel_is_kept():
    block = random_block(num_dst=600, num_src=4000, max_degree=30, seed=4)
    lstm, x = new_lstm(64, torch.float32), features(block, 64, torch.float32)
    kept = kept_bytes(block, x, lstm) - block.num_dst * 64 * 4
    one_per_edge = block.num_edges * 64 * 4
    assert 0.9 * one_per_edge < kept < 1.3 * one_per_edge


@pytest.mark.usefixtures("gates")
@pytest.mark.parametrize("frozen", [True, False], ids=["frozen weights", "no_grad"])
def test_nothing_is_kept_where_no_gradient_is_wanted(frozen):
    block = random_block(num_dst=600, num_src=900, max_degree=30, seed=4)
    lstm, x = new_lstm(64, torch.float32).requires_grad_(not frozen), features(block, 64, torch.float32)
    with torch.set_grad_enabled(frozen):
        kept = kept_bytes(block, x.detach() if frozen else x, lstm)
    assert kept < 2 * block.num_dst * 64 * 4


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_cuda_equals_cpu(block):
    lstm, x = new_lstm(), features(block)
    result = last_lstm_states(block, x, lstm)
    on_device, x_on_device = copy.deepcopy(lstm).cuda(), x.detach().cuda().requires_grad_()
    found = last_lstm_states(block.to("cuda"), x_on_device, on_device)
    torch.testing.assert_close(found.cpu(), result)
    if block.num_edges:
        for gradient, expected in zip(
            torch.autograd.grad(found.square().sum(), [x_on_device, *on_device.parameters()]),
            torch.autograd.grad(result.square().sum(), [x, *lstm.parameters()]),
            strict=True,
        ):
            torch.testing.assert_close(gradient.cpu(), expected)


@pytest.mark.parametrize(("max_sequences", "max_edges"), [(1, 1), (3, 1000), (4, 12), (1000, 1000)])
def test_sequences_keep_the_order_of_edges_and_leave_out_nodes_without(block, max_sequences, max_edges):
    found: dict[int, list[int]] = {}
    later_edges = 0
    for chunk in neighbour_sequences(block, max_sequences, max_edges):
        assert chunk.num_sequences <= max_sequences
        assert chunk.num_edges <= max_edges or chunk.num_sequences == 1
        assert chunk.later_edges.start == later_edges
        later_edges = chunk.later_edges.stop
        rows: list[list[int]] = [[] for _ in range(chunk.num_sequences)]
        for edges in chunk.steps():
            for row, source in zip(rows, chunk.sources[edges].tolist(), strict=False):
                row.append(source)
        found |= dict(zip(chunk.destinations.tolist(), rows, strict=True))
    indptr, indices = block.indptr.tolist(), block.indices.tolist()
    lists = [indices[start:stop] for start, stop in itertools.pairwise(indptr)]
    assert found == {destination: row for destination, row in enumerate(lists) if row}
    lengths = [len(row) for row in found.values()]
    assert lengths == sorted(lengths, reverse=True)
    assert later_edges == block.num_edges - len(found)
