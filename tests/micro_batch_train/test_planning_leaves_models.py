"""Planning leaves a model, and every generator of random numbers, as it was."""

import copy
import random
from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from betty import GAT, Block, GraphSAGE, estimate_memory, plan_micro_batches
from betty.memory.dry_run import training_copy
from betty.models.layered_model import LayeredModel
from tests.random_blocks import neighbourhoods

FULL_BATCH = neighbourhoods([600, 300, 120], max_degree=4, seed=0)
NUM_FEATURES = 20


class NormLayer(nn.Module):
    """The mean of a node's neighbours by scatter_add, a linear map and batch norm."""

    def __init__(self, in_feats: int, out_feats: int) -> None:
        super().__init__()
        self.linear, self.norm = nn.Linear(in_feats, out_feats), nn.BatchNorm1d(out_feats)

    def forward(self, block: Block, x: Tensor) -> Tensor:
        degrees = block.in_degrees()
        destinations = torch.arange(block.num_dst).repeat_interleave(degrees, output_size=block.num_edges)
        sums = x.new_zeros(block.num_dst, x.shape[1]).index_add(0, destinations, x.index_select(0, block.indices))
        return self.norm(self.linear(sums / degrees.clamp(min=1).unsqueeze(1)))


class DrawsEverywhere(nn.Module):
    """Draws from the generators of NumPy, Python and PyTorch."""

    def __init__(self) -> None:
        super().__init__()
        self.linear, self.dropout = nn.Linear(NUM_FEATURES, 3), nn.Dropout(0.5)
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, blocks: list[Block], x: Tensor) -> Tensor:
        self.calls += 1
        x = x[: blocks[-1].num_dst] * np.random.rand() * random.random()
        return self.dropout(self.linear(x + torch.rand_like(x)))


def norms(dropout: float) -> nn.Module:
    return LayeredModel(NormLayer, NUM_FEATURES, 16, 3, 2, dropout)


MODELS: dict[str, Callable[[], nn.Module]] = {
    "batch norm": lambda: norms(0),
    "batch norm and exact dropout": lambda: norms(0.5),
    "GraphSAGE with exact dropout": lambda: GraphSAGE(NUM_FEATURES, 16, 3, 2, dropout=0.5),
    "GAT with PyTorch's dropout": lambda: GAT(NUM_FEATURES, 16, 3, 2, dropout=0.5, dropout_mode="torch"),
    "drawing everywhere": DrawsEverywhere,
}


def plan(model: nn.Module) -> None:
    estimate = estimate_memory(model, FULL_BATCH.blocks, num_features=NUM_FEATURES)
    budget = estimate.static + (estimate.peak - estimate.static) // 2
    planned = plan_micro_batches(FULL_BATCH, model, budget, num_features=NUM_FEATURES, allow_inexact=True)
    assert len(planned.parts) > 1


PLANNING: dict[str, Callable[[nn.Module], object]] = {
    "plan_micro_batches": plan,
    "estimate_memory": lambda model: estimate_memory(model, FULL_BATCH.blocks, num_features=NUM_FEATURES),
}


def state_of(model: nn.Module) -> dict[str, object]:
    gradients = {name: parameter.grad for name, parameter in model.named_parameters()}
    return {
        "parameters": [id(parameter) for parameter in model.parameters()],
        "values": copy.deepcopy(model.state_dict()),
        "gradients": gradients,
        "values of gradients": copy.deepcopy(gradients),
        "trainable": [parameter.requires_grad for parameter in model.parameters()],
        "modes": [module.training for module in model.modules()],
        "keys of dropout": [getattr(module, "key", None) for module in model.modules()],
        "PyTorch": torch.get_rng_state(),
        "NumPy": [np.random.get_state()[position] for position in (1, 2)],
        "Python": list(random.getstate()[1]),
    }


@pytest.mark.parametrize("is_training", [True, False])
@pytest.mark.parametrize("run", PLANNING.values(), ids=PLANNING)
@pytest.mark.parametrize("make_model", MODELS.values(), ids=MODELS)
def test_model_and_generators_are_as_before(
    make_model: Callable[[], nn.Module], run: Callable[[nn.Module], object], is_training: bool
) -> None:
    model = make_model().train(is_training)
    first, *others = model.parameters()
    first.requires_grad_(False)
    for parameter in others:
        parameter.grad = torch.rand_like(parameter)
    next(module for module in model.modules() if not list(module.children())).eval()
    before = state_of(model)
    run(model)
    torch.testing.assert_close(state_of(model), before, rtol=0, atol=0)


def test_frozen_layers_remain_so_in_the_copy_that_is_planned_with_and_others_train() -> None:
    model = norms(0.5)
    model.layers[0].norm.eval()
    copied = training_copy(model)
    assert not copied.layers[0].norm.training
    assert copied.layers[1].norm.training
    assert all(module.training for module in training_copy(model.eval()).modules())
