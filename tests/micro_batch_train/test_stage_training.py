"""Stages give the gradient of the whole batch, computed at once by plain autograd in float64."""

import copy
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from betty import GAT, BettyError, Block, FullBatch, GraphSAGE, dropout_key
from betty.device_loader import DeviceLoader
from betty.micro_batch_train import stage_training
from betty.micro_batch_train.resting import OFFLOADS, Offload, RestingPlaces
from betty.micro_batch_train.stage_training import Stage, accumulate_in_stages
from betty.micro_batch_train.stages import stages_of
from betty.models import AGGREGATORS
from tests.random_blocks import random_full_batch

NUM_FEATURES, NUM_CLASSES = 6, 4
FULL_BATCH = random_full_batch([90, 60, 40, 30], 6, seed=0)
CPU = torch.device("cpu")
KEY = 5


def make_model(kind: str, **settings: object) -> nn.Module:
    torch.manual_seed(0)
    make, own = (GAT, {"num_heads": 2}) if kind == "gat" else (GraphSAGE, {"aggre": kind})
    return make(NUM_FEATURES, 8, NUM_CLASSES, num_layers=3, **own, **settings).double()


def data() -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1)
    num_nodes = int(FULL_BATCH.input_ids.max()) + 1
    features = torch.randn(num_nodes, NUM_FEATURES, dtype=torch.float64, generator=generator)
    return features, torch.randint(NUM_CLASSES, (num_nodes,), generator=generator)


def at_random(num_rows: int, num_parts: int) -> list[Tensor]:
    order = torch.randperm(num_rows, generator=torch.Generator().manual_seed(num_parts))
    return [part.sort().values for part in order.chunk(num_parts)]


def stages(text: str, num_parts: int, offload: Offload = "host") -> list[Stage]:
    return [
        Stage(layers, at_random(FULL_BATCH.blocks[layers[-1]].num_dst, num_parts), offload=offload)
        for layers in stages_of(text, 3)
    ]


def expected(model: nn.Module) -> tuple[float, nn.Module]:
    """The loss of the whole batch, and a copy of the model that went through it."""
    model = copy.deepcopy(model)
    features, labels = data()
    with dropout_key(model, KEY):
        logits = model(FULL_BATCH.blocks, features[FULL_BATCH.input_ids])
        loss = cross_entropy(logits, labels[FULL_BATCH.output_ids])
        loss.backward()
    return loss.item(), model


def accumulate(model: nn.Module, to_do: Sequence[Stage], places: RestingPlaces | None = None):
    with dropout_key(model, KEY):
        return accumulate_in_stages(model, FULL_BATCH, to_do, DeviceLoader(*data(), CPU), places)


def assert_same_training(model: nn.Module, whole: nn.Module) -> None:
    for (name, parameter), other in zip(model.named_parameters(), whole.parameters(), strict=True):
        assert parameter.grad is not None, name
        torch.testing.assert_close(parameter.grad, other.grad, rtol=1e-10, atol=1e-10, msg=name)
    for (name, buffer), other in zip(model.named_buffers(), whole.buffers(), strict=True):
        torch.testing.assert_close(buffer, other, rtol=1e-10, atol=1e-10, msg=name)


@pytest.mark.parametrize("num_parts", [1, 2, 7, 16])
@pytest.mark.parametrize("text", ["1", "layers", "2,1", "1,2"])
@pytest.mark.parametrize("dropout", [0.0, 0.5])
@pytest.mark.parametrize("norm", ["none", "layer"])
@pytest.mark.parametrize("kind", [*AGGREGATORS, "gat"])
def test_loss_and_gradient_are_those_of_the_whole_batch(
    kind: str, norm: str, dropout: float, text: str, num_parts: int
) -> None:
    model = make_model(kind, norm=norm, dropout=dropout, residual=norm == "layer")
    loss, whole = expected(model)
    assert accumulate(model, stages(text, num_parts)).loss == pytest.approx(loss, rel=1e-10)
    assert_same_training(model, whole)


@pytest.mark.parametrize(("text", "num_parts"), [("1", 1), ("layers", 1), ("layers", 2), ("layers", 7), ("layers", 16)])
@pytest.mark.parametrize("dropout", [0.0, 0.5])
@pytest.mark.parametrize("kind", [*AGGREGATORS, "gat"])
def test_batch_norm_and_what_it_remembers_are_those_of_the_whole_batch(
    kind: str, dropout: float, text: str, num_parts: int
) -> None:
    model = make_model(kind, norm="batch", dropout=dropout)
    loss, whole = expected(model)
    assert accumulate(model, stages(text, num_parts)).loss == pytest.approx(loss, rel=1e-10)
    assert_same_training(model, whole)


@pytest.mark.parametrize(("text", "num_parts"), [("1", 2), ("2,1", 1)])
def test_batch_norm_within_a_stage_is_refused_where_it_would_not_see_all_nodes(text: str, num_parts: int) -> None:
    with pytest.raises(BettyError, match="normalizes by all nodes that are computed together"):
        accumulate(make_model("mean", norm="batch"), stages(text, num_parts))


def test_activations_give_the_same_bits_wherever_they_rest(tmp_path: Path) -> None:
    def gradients(offload: Offload) -> list[Tensor]:
        model = make_model("mean", norm="batch", dropout=0.5)
        accumulate(model, stages("layers", 3, offload), RestingPlaces(CPU, tmp_path))
        assert not list(tmp_path.iterdir())
        return [parameter.grad for parameter in model.parameters()]

    on_device, *others = map(gradients, OFFLOADS)
    for gradients_there in others:
        assert all(map(torch.equal, gradients_there, on_device))


def test_random_numbers_of_a_micro_batch_are_the_same_when_it_is_computed_again() -> None:
    model = make_model("mean", dropout=0.5, dropout_mode="torch")
    torch.manual_seed(7)
    loss, whole = expected(model)
    # One micro-batch a stage draws in the order in which the whole batch does.
    torch.manual_seed(7)
    assert accumulate(model, stages("layers", 1)).loss == pytest.approx(loss, rel=1e-10)
    assert_same_training(model, whole)


def test_edges_are_counted_as_often_as_they_go_forward_and_bytes_where_they_rest() -> None:
    model = make_model("mean")
    step = accumulate(model, stages("layers", 5))
    inner, last = FULL_BATCH.blocks[:2], FULL_BATCH.blocks[2]
    assert step.computed_edges == 2 * sum(block.num_edges for block in inner) + last.num_edges
    first, second, channels = inner[0].num_dst, inner[1].num_dst, 8
    # At the most, when the second stage goes backward: what it reads, and the gradients of that and of its results.
    assert step.offloaded_bytes == (2 * first + second) * channels * torch.float64.itemsize
    assert accumulate(model, stages("layers", 5, "device")).offloaded_bytes == 0
    assert accumulate(model, stages("1", 5)).offloaded_bytes == 0


@pytest.mark.parametrize("failing", [2, 7, 12])
@pytest.mark.parametrize("after_its_computation", [False, True])
def test_a_micro_batch_that_runs_out_of_memory_leaves_nothing_behind(
    monkeypatch: pytest.MonkeyPatch, failing: int, after_its_computation: bool
) -> None:
    """Of 15 micro-batches, five a pass: in the forward, in the last stage, and when the first is computed again."""
    compute_layers, computed = stage_training.compute_layers, [0]

    def short_of_memory_once(*arguments: object, **settings: object) -> Tensor:
        computed[0] += 1
        is_to_fail = computed[0] == failing
        if is_to_fail and not after_its_computation:
            raise MemoryError
        results = compute_layers(*arguments, **settings)
        if is_to_fail and results.requires_grad:
            results.register_hook(lambda gradient: torch.empty(1 << 58))
        elif is_to_fail:
            raise MemoryError
        return results

    monkeypatch.setattr(stage_training, "compute_layers", short_of_memory_once)
    model = make_model("mean", dropout=0.5)
    loss, whole = expected(model)
    step = accumulate(model, stages("2,1", 5))
    assert step.num_shortages == 1
    assert step.loss == pytest.approx(loss, rel=1e-10)
    assert_same_training(model, whole)


class OwnModel(nn.Module):
    """Nothing but what stages ask for."""

    num_layers = 3

    def __init__(self) -> None:
        super().__init__()
        widths = [NUM_FEATURES, 8, 8, NUM_CLASSES]
        layers = [nn.Linear(*pair) for pair in pairwise(widths)]
        self.linears = nn.ModuleList(layers).double()

    def layer_forward(self, i: int, block: Block, h: Tensor) -> Tensor:
        degrees = block.in_degrees()
        rows = torch.arange(block.num_dst).repeat_interleave(degrees)
        summed = torch.zeros(block.num_dst, h.shape[1], dtype=h.dtype).index_add(0, rows, h[block.indices.long()])
        return self.linears[i](summed + h[: block.num_dst]).tanh()

    def forward(self, blocks: Sequence[Block], x: Tensor) -> Tensor:
        for i, block in enumerate(blocks):
            x = self.layer_forward(i, block, x)
        return x


@pytest.mark.parametrize("text", ["1", "layers", "1,2"])
def test_a_model_of_ones_own_takes_part_by_its_layers(text: str) -> None:
    torch.manual_seed(0)
    model = OwnModel()
    loss, whole = expected(model)
    assert accumulate(model, stages(text, 4)).loss == pytest.approx(loss, rel=1e-10)
    assert_same_training(model, whole)


def test_a_full_disk_ends_in_one_line(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def no_room(*arguments: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.posix_fallocate", no_room)
    with pytest.raises(BettyError, match=r"No space left on device.*--host-memory") as error:
        accumulate(make_model("mean"), stages("layers", 2, "disk"), RestingPlaces(CPU, tmp_path))
    assert "\n" not in str(error.value)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("text", ["3,1", "0,3", "x", "", "2"])
def test_stages_that_are_not_all_layers_are_refused(text: str) -> None:
    with pytest.raises(BettyError, match=r"stages .* of a model of 3 layers: give 1"):
        stages_of(text, 3)


def test_stages_of_a_batch_hold_its_blocks() -> None:
    batch = FULL_BATCH.of_layers(range(1, 3))
    assert isinstance(batch, FullBatch)
    assert batch.blocks == FULL_BATCH.blocks[1:]
