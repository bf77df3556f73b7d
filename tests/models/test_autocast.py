"""Every layer of Betty's models trains inside of ``torch.autocast`` as it does in float32, to bfloat16's rounding."""

import copy
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from betty import GAT, MLP, FullBatch, GraphSAGE, dropout_key
from betty.models import AGGREGATORS
from betty.models.chunks import SERIAL_ELEMENTS
from betty.models.lstm_aggregation import EDGES_PER_PROJECTED_SOURCE
from betty.models.neighbour_maximum import SORTED_ELEMENTS
from tests.random_blocks import neighbourhoods, random_full_batch

NUM_HIDDEN, NUM_CLASSES = 16, 3
TOLERANCE = 0.1
"""Of a gradient's norm; bfloat16 rounds each number to 0.004, and where it turns the sign of what goes into a
ReLU, PyTorch's own layers (the MLP) are off by 0.055."""

BATCHES: dict[str, FullBatch] = {
    "few edges": neighbourhoods([200, 120, 60], max_degree=3, seed=0),
    "few sources, many edges": random_full_batch([80, 60, 50], 25, seed=1),
    "many edges": neighbourhoods([800, 500, 300], max_degree=12, seed=2),
}
NUM_FEATURES = [8, 300]
MODELS: dict[str, Callable[[int], nn.Module]] = {
    **{
        aggre: lambda num_features, aggre=aggre: GraphSAGE(num_features, NUM_HIDDEN, NUM_CLASSES, 2, aggre, 0.5)
        for aggre in AGGREGATORS
    },
    "GAT": lambda num_features: GAT(num_features, 4, NUM_CLASSES, 2, 2, 0.3, 0.3),
    "residual GAT": lambda num_features: GAT(num_features, 32, NUM_CLASSES, 2, 2, 0.3, residual=True),
    "MLP": lambda num_features: MLP(num_features, NUM_HIDDEN, NUM_CLASSES, 2),
}


def make_model(name: str, num_features: int) -> nn.Module:
    torch.manual_seed(0)
    return MODELS[name](num_features)


@contextmanager
def autocast(is_enabled: bool = True) -> Iterator[None]:
    # Without its cache: a weight that was cast without gradients would be taken for the next forward.
    with torch.autocast("cpu", torch.bfloat16, enabled=is_enabled, cache_enabled=False):
        yield


def logits_of(model: nn.Module, batch: FullBatch, is_enabled: bool) -> Tensor:
    x = torch.randn(batch.input_ids.numel(), model.widths[0], generator=torch.Generator().manual_seed(3))
    with dropout_key(model, 1), autocast(is_enabled):
        return model(batch.blocks, x)


def gradients(model: nn.Module, batch: FullBatch, forward: bool, backward: bool = False) -> list[Tensor]:
    """Those of a step with the forward, and perhaps the backward, inside of autocast."""
    model = copy.deepcopy(model)
    logits = logits_of(model, batch, forward)
    labels = torch.arange(len(logits)) % NUM_CLASSES
    with autocast(backward):
        cross_entropy(logits.float(), labels).backward()
    return [parameter.grad for parameter in model.parameters()]


def error(found: list[Tensor], expected: list[Tensor]) -> float:
    found, expected = (torch.cat([tensor.flatten().float() for tensor in tensors]) for tensors in (found, expected))
    return ((found - expected).norm() / expected.norm()).item()


def test_the_batches_are_on_both_sides_of_the_thresholds_of_kernels() -> None:
    blocks = [block for batch in BATCHES.values() for block in batch.blocks]
    for larger in (
        lambda block, width: block.num_edges * width >= SORTED_ELEMENTS,
        lambda block, width: block.num_dst * width > SERIAL_ELEMENTS,
        lambda block, width: block.num_edges >= EDGES_PER_PROJECTED_SOURCE * block.num_src,
    ):
        assert {larger(block, width) for block in blocks for width in (*NUM_FEATURES, NUM_HIDDEN)} == {False, True}


@pytest.mark.parametrize("num_features", NUM_FEATURES)
@pytest.mark.parametrize("batch", BATCHES.values(), ids=BATCHES)
@pytest.mark.parametrize("name", MODELS)
def test_gradients_are_those_of_float32(name: str, batch: FullBatch, num_features: int) -> None:
    model = make_model(name, num_features)
    expected = gradients(model, batch, forward=False)
    found = gradients(model, batch, forward=True)
    assert [gradient.dtype for gradient in found] == [torch.float32] * len(expected)
    assert 0 < error(found, expected) < TOLERANCE


@pytest.mark.parametrize("forward", [False, True])
@pytest.mark.parametrize("name", MODELS)
def test_a_backward_inside_of_autocast_gives_what_one_outside_does(name: str, forward: bool) -> None:
    model, batch = make_model(name, 300), BATCHES["few sources, many edges"]
    expected = gradients(model, batch, forward)
    assert error(gradients(model, batch, forward, backward=True), expected) < TOLERANCE


@pytest.mark.parametrize("num_features", NUM_FEATURES)
@pytest.mark.parametrize("name", MODELS)
def test_evaluation_gives_the_logits_of_float32(name: str, num_features: int) -> None:
    model = make_model(name, num_features).eval()
    for batch in BATCHES.values():
        with torch.no_grad():
            expected, found = logits_of(model, batch, False), logits_of(model, batch, True)
        assert 0 < error([found], [expected]) < TOLERANCE


@pytest.mark.parametrize(
    ("make_model", "fan_out"),
    [
        (lambda: GAT(8, 4, 3, num_layers=2, num_heads=2), 3),
        (lambda: GraphSAGE(300, 16, 3, aggre="lstm", num_layers=2), 5),
    ],
    ids=["GAT", "lstm"],
)
def test_smallest_models_that_once_failed_on_a_dtype(make_model: Callable[[], nn.Module], fan_out: int) -> None:
    torch.manual_seed(0)
    model, batch = make_model(), neighbourhoods([200, 80, 30], max_degree=fan_out, seed=0)
    expected = gradients(model, batch, forward=False)
    assert error(gradients(model, batch, forward=True), expected) < TOLERANCE
