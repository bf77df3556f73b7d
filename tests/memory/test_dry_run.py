import copy
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from betty import BettyError, Block, PeakMemory
from betty.memory import dry_run
from tests.random_blocks import random_full_batch

NUM_FEATURES, NUM_HIDDEN, NUM_CLASSES = 96, 48, 7


class MeanLayer(nn.Module):
    """The mean of the neighbours by index_select and index_add, and the node itself."""

    def __init__(self, in_feats: int, out_feats: int) -> None:
        super().__init__()
        self.neighbours, self.itself = nn.Linear(in_feats, out_feats), nn.Linear(in_feats, out_feats)

    def forward(self, block: Block, x: Tensor) -> Tensor:
        degrees = block.in_degrees()
        destinations = torch.arange(block.num_dst).repeat_interleave(degrees, output_size=block.num_edges)
        messages = x.index_select(0, block.indices)
        sums = torch.zeros(block.num_dst, x.shape[1]).index_add(0, destinations, messages)
        return self.neighbours(sums / degrees.clamp(min=1)[:, None]) + self.itself(x[: block.num_dst])


class ScatterLayer(MeanLayer):
    """The same by scatter_add."""

    def forward(self, block: Block, x: Tensor) -> Tensor:
        destinations = torch.arange(block.num_dst).repeat_interleave(block.in_degrees(), output_size=block.num_edges)
        messages = self.neighbours(x)[block.indices.long()]
        sums = torch.zeros(block.num_dst, messages.shape[1])
        sums = sums.scatter_add(0, destinations[:, None].expand_as(messages), messages)
        return sums + self.itself(x[: block.num_dst])


class GraphNetwork(nn.Module):
    def __init__(self, layer: Callable[[int, int], nn.Module]) -> None:
        super().__init__()
        self.layers = nn.ModuleList([layer(NUM_FEATURES, NUM_HIDDEN), layer(NUM_HIDDEN, NUM_CLASSES)])
        self.norm, self.dropout = nn.BatchNorm1d(NUM_HIDDEN), nn.Dropout(0.5)

    def forward(self, blocks: list[Block], x: Tensor) -> Tensor:
        x = self.dropout(self.norm(self.layers[0](blocks[0], x)).relu())
        return self.layers[1](blocks[1], x)


class FeaturesOnly(nn.Module):
    def __init__(self, *layers: nn.Module) -> None:
        super().__init__()
        self.layers = nn.Sequential(*layers)

    def forward(self, blocks: list[Block], x: Tensor) -> Tensor:
        return self.layers(x[: blocks[-1].num_dst])


def mlp() -> nn.Module:
    hidden = (nn.Linear(NUM_FEATURES, 512), nn.GELU(), nn.Dropout(0.3), nn.Linear(512, 256), nn.LayerNorm(256))
    return FeaturesOnly(*hidden, nn.ReLU(), nn.Linear(256, NUM_CLASSES))


class Applied(nn.Module):
    """A linear model with something done to its input before."""

    def __init__(self, change: Callable[[list[Block], Tensor], Tensor]) -> None:
        super().__init__()
        self.change, self.linear = change, nn.Linear(NUM_FEATURES, NUM_CLASSES)

    def forward(self, blocks: list[Block], x: Tensor) -> Tensor:
        return self.linear(self.change(blocks, x))[: blocks[-1].num_dst]


@pytest.fixture(scope="module")
def blocks() -> tuple[Block, ...]:
    return random_full_batch([3000, 1200, 400], 20, seed=3).blocks


def measured_peak(model: nn.Module, blocks: tuple[Block, ...]) -> int:
    """Of the second of two real steps, which adds to the gradients of the first, beside all that lasts."""
    x, labels = torch.randn(blocks[0].num_src, NUM_FEATURES), torch.zeros(blocks[-1].num_dst, dtype=torch.int64)

    def step() -> None:
        nn.functional.cross_entropy(model(blocks, x), labels, reduction="sum").backward()

    step()
    with PeakMemory("cpu") as meter:
        step()
    block_tensors = [tensor for block in blocks for tensor in (block.indptr, block.indices)]
    parameters = sum(parameter.nbytes for parameter in model.parameters())
    buffers = sum(buffer.nbytes for buffer in model.buffers())
    lasting = [x, labels, blocks[0].src_ids, *block_tensors]
    return meter.peak_bytes + 2 * parameters + buffers + sum(tensor.nbytes for tensor in lasting)


@pytest.mark.parametrize(
    "make_model",
    [
        lambda: GraphNetwork(MeanLayer),
        lambda: GraphNetwork(ScatterLayer),
        mlp,
        lambda: FeaturesOnly(nn.Linear(NUM_FEATURES, NUM_CLASSES)),
    ],
    ids=["index_add", "scatter_add", "mlp", "linear"],
)
def test_peak_is_that_of_a_real_step(make_model: Callable[[], nn.Module], blocks: tuple[Block, ...]) -> None:
    model = make_model()
    assert dry_run(model, blocks, NUM_FEATURES).peak == pytest.approx(measured_peak(model, blocks), rel=0.02)


def test_what_lasts_is_counted_exactly_and_each_storage_once(blocks: tuple[Block, ...]) -> None:
    model = GraphNetwork(MeanLayer)
    model.layers[0].itself.weight = model.layers[0].neighbours.weight
    found = dry_run(model, blocks, NUM_FEATURES)
    parameters = sum(parameter.nbytes for parameter in model.parameters())
    assert found.parameters == parameters + 4 * 2 * NUM_HIDDEN + 8
    assert found.gradients == parameters
    assert found.input_features == 4 * 3000 * NUM_FEATURES
    assert found.labels == 8 * 400
    assert found.blocks == 8 * 3000 + sum(block.indptr.nbytes + block.indices.nbytes for block in blocks)
    assert found.peak == sum(vars(found).values())


def test_hidden_and_backward_of_a_model_that_can_be_counted_by_hand(blocks: tuple[Block, ...]) -> None:
    model = FeaturesOnly(nn.Linear(NUM_FEATURES, 5000, bias=False), nn.Tanh(), nn.Linear(5000, NUM_CLASSES, bias=False))
    found = dry_run(model, blocks, NUM_FEATURES)
    # The peak is when the gradient of what tanh takes is made: tanh has its result, and the gradient of that.
    assert found.hidden == pytest.approx(4 * 400 * 5000, rel=0.01)
    assert found.backward == pytest.approx(2 * 4 * 400 * 5000, rel=0.1)


def test_frozen_parameters_have_no_gradients(blocks: tuple[Block, ...]) -> None:
    model = FeaturesOnly(nn.Linear(NUM_FEATURES, 10), nn.Linear(10, NUM_CLASSES))
    model.layers[0].requires_grad_(False)
    assert dry_run(model, blocks, NUM_FEATURES).gradients == 4 * 11 * NUM_CLASSES


def test_features_have_the_dtype_of_the_model(blocks: tuple[Block, ...]) -> None:
    single, double = mlp(), mlp().double()
    assert dry_run(double, blocks, NUM_FEATURES).hidden > 1.9 * dry_run(single, blocks, NUM_FEATURES).hidden


def test_model_blocks_and_random_numbers_stay_as_they_are(blocks: tuple[Block, ...]) -> None:
    model = GraphNetwork(MeanLayer).eval()
    before, state = copy.deepcopy(model.state_dict()), torch.get_rng_state()
    dry_run(model, blocks, NUM_FEATURES)
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())
    assert all(type(parameter) is nn.Parameter and parameter.grad is None for parameter in model.parameters())
    assert not model.training
    assert torch.equal(torch.get_rng_state(), state)


def test_nothing_of_the_size_of_the_data_is_allocated(blocks: tuple[Block, ...]) -> None:
    model = GraphNetwork(MeanLayer)
    with PeakMemory("cpu") as meter:
        dry_run(model, blocks, NUM_FEATURES)
    assert meter.peak_bytes < 10_000


@pytest.mark.parametrize(
    ("change", "operation"),
    [
        (lambda blocks, x: x[: blocks[-1].indptr.max().item()], "aten._local_scalar_dense"),
        (lambda blocks, x: x[blocks[0].in_degrees() > 0], "aten.nonzero"),
        (lambda blocks, x: x[torch.repeat_interleave(blocks[0].in_degrees())], "aten.repeat_interleave"),
        (lambda blocks, x: torch.from_numpy(x.numpy()), "numpy"),
        (lambda blocks, x: blocks[0].to_dgl().srcdata and x, "to_dgl"),
        (lambda blocks, x: x @ torch.ones(3, 3), "3"),
        (lambda blocks, x: x.not_there, "not_there"),
        (lambda blocks, x: nn.LSTM(NUM_FEATURES, NUM_FEATURES)(x[None])[0][0], "aten.mkldnn_rnn_layer"),
    ],
)
def test_one_line_names_what_cannot_be_followed(change, operation: str, blocks: tuple[Block, ...]) -> None:
    with pytest.raises(BettyError, match=operation) as caught:
        dry_run(Applied(change), blocks, NUM_FEATURES)
    assert "--num-batch" in str(caught.value)
    assert "memory method" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_constant_tensor_that_is_no_parameter_is_followed(blocks: tuple[Block, ...]) -> None:
    model = FeaturesOnly(nn.Linear(NUM_FEATURES, NUM_CLASSES))
    model.scale = torch.ones(NUM_CLASSES)
    model.register_forward_hook(lambda module, inputs, logits: logits * module.scale)
    assert dry_run(model, blocks, NUM_FEATURES).peak > 0
    assert type(model.scale) is Tensor
