"""Layers that mix the nodes of a batch: found where they do, and refused where micro-batches would not be exact."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from betty import BettyError, Block, FullBatch, GraphSAGE, plan_micro_batches, split
from betty.device_loader import DeviceLoader
from betty.memory import estimate_memory
from betty.micro_batch_train.out_of_memory import MESSAGES
from betty.micro_batch_train.trainer import MicroBatchTrainer, Partitioning, accumulate_gradients
from betty.models.layered_model import LayeredModel
from betty.models.node_mixing import mixes_nodes
from tests.full_batches import FixedFullBatches
from tests.random_blocks import neighbourhoods

# Without nodes that no output node needs, as sampling leaves none.
(FULL_BATCH,) = split(neighbourhoods([300, 150, 60], max_degree=4, seed=0), [torch.arange(60)])
NUM_FEATURES = 6
CPU = torch.device("cpu")
HALVES = [torch.arange(0, 60, 2), torch.arange(1, 60, 2)]


class NormLayer(nn.Module):
    def __init__(self, norm: Callable[[int], nn.Module], in_feats: int, out_feats: int) -> None:
        super().__init__()
        self.linear, self.norm = nn.Linear(in_feats, out_feats), norm(out_feats)

    def forward(self, block: Block, x: Tensor) -> Tensor:
        return self.norm(self.linear(x[: block.num_dst]))


def model_with(norm: Callable[[int], nn.Module]) -> LayeredModel:
    torch.manual_seed(0)
    return LayeredModel(lambda *widths: NormLayer(norm, *widths), NUM_FEATURES, 5, 4, 2, dropout=0).double()


def frozen(norm: nn.Module) -> nn.Module:
    return norm.eval()


def of_pyg(name: str, **attributes: object) -> nn.Module:
    """Stands in for a layer of PyG, which is not needed here."""
    layer = type(name, (nn.Identity,), {"__module__": f"torch_geometric.nn.norm.{name.lower()}"})()
    vars(layer).update(attributes)
    return layer


MIXING: dict[str, Callable[[int], nn.Module]] = {
    "BatchNorm1d": nn.BatchNorm1d,
    "SyncBatchNorm": nn.SyncBatchNorm,
    "LazyBatchNorm1d": lambda width: nn.LazyBatchNorm1d(),
    "frozen BatchNorm1d without running statistics": lambda width: frozen(
        nn.BatchNorm1d(width, track_running_stats=False)
    ),
    "PyG's GraphNorm": lambda width: of_pyg("GraphNorm"),
    "PyG's LayerNorm of a graph": lambda width: of_pyg("LayerNorm", mode="graph"),
}
SEPARATE: dict[str, Callable[[int], nn.Module]] = {
    "LayerNorm": nn.LayerNorm,
    "GroupNorm": lambda width: nn.GroupNorm(1, width),
    "frozen BatchNorm1d": lambda width: frozen(nn.BatchNorm1d(width)),
    "PyG's LayerNorm of nodes": lambda width: of_pyg("LayerNorm", mode="node"),
    "another GraphNorm": lambda width: type("GraphNorm", (nn.Identity,), {})(),
}


@pytest.mark.parametrize("norm", MIXING.values(), ids=MIXING)
def test_layers_that_mix_nodes_are_found_and_named(norm: Callable[[int], nn.Module]) -> None:
    found = mixes_nodes(model_with(norm), starts_training=False)
    assert found.startswith("layers.0.norm (")


@pytest.mark.parametrize("norm", SEPARATE.values(), ids=SEPARATE)
def test_layers_that_keep_nodes_apart_are_not(norm: Callable[[int], nn.Module]) -> None:
    assert mixes_nodes(model_with(norm), starts_training=True) is None


def test_batch_norm_of_a_model_in_evaluation_mode_mixes_nodes_only_if_it_is_to_train() -> None:
    model = model_with(nn.BatchNorm1d).eval()
    assert mixes_nodes(model, starts_training=False) is None
    assert mixes_nodes(model, starts_training=True)


def data() -> tuple[Tensor, Tensor]:
    draw = torch.Generator().manual_seed(0)
    num_nodes = int(FULL_BATCH.input_ids.max()) + 1
    features = torch.randn(num_nodes, NUM_FEATURES, generator=draw, dtype=torch.float64)
    return features, torch.randint(4, (num_nodes,), generator=draw)


def gradient_error(model: nn.Module, parts: list[Tensor], **settings: bool) -> float:
    features, labels = data()
    logits = model(FULL_BATCH.blocks, features[FULL_BATCH.input_ids])
    nn.functional.cross_entropy(logits, labels[FULL_BATCH.output_ids]).backward()
    expected = torch.cat([parameter.grad.flatten() for parameter in model.parameters()])
    model.zero_grad()
    accumulate_gradients(model, FULL_BATCH, parts, DeviceLoader(features, labels, CPU), **settings)
    found = torch.cat([parameter.grad.flatten() for parameter in model.parameters()])
    return ((found - expected).norm() / expected.norm()).item()


def test_training_by_micro_batches_is_refused_unless_it_may_be_inexact() -> None:
    with pytest.raises(BettyError, match=r"^layers\.0\.norm \(BatchNorm1d\) .* allow_inexact=True$"):
        gradient_error(model_with(nn.BatchNorm1d), HALVES)
    assert gradient_error(model_with(nn.BatchNorm1d), HALVES, allow_inexact=True) > 1e-3


@pytest.mark.parametrize(
    ("norm", "parts"),
    [(nn.BatchNorm1d, [torch.arange(60)]), (SEPARATE["frozen BatchNorm1d"], HALVES), (nn.LayerNorm, HALVES)],
    ids=["in one micro-batch", "frozen", "LayerNorm"],
)
def test_what_is_not_refused_is_exact(norm: Callable[[int], nn.Module], parts: list[Tensor]) -> None:
    assert gradient_error(model_with(norm), parts) <= 1e-10


def test_one_micro_batch_that_ran_out_of_memory_is_not_split_in_silence() -> None:
    class TooLarge(NormLayer):
        def forward(self, block: Block, x: Tensor) -> Tensor:
            raise RuntimeError(MESSAGES[0])

    model = LayeredModel(lambda *widths: TooLarge(nn.BatchNorm1d, *widths), NUM_FEATURES, 5, 4, 2, dropout=0)
    with pytest.raises(BettyError, match="allow_inexact"):
        accumulate_gradients(model, FULL_BATCH, [torch.arange(60)], DeviceLoader(*data(), CPU))


@pytest.mark.parametrize("allow_inexact", [False, True])
def test_the_trainer_passes_on_whether_it_may_be_inexact(allow_inexact: bool) -> None:
    model = model_with(nn.BatchNorm1d)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    full_batches, loader = FixedFullBatches([FULL_BATCH]), DeviceLoader(*data(), CPU)
    trainer = MicroBatchTrainer(
        full_batches, Partitioning("range", 2, 0, "range"), loader, 0, allow_inexact=allow_inexact
    )
    if allow_inexact:
        assert len(trainer.train_epoch(model, optimizer, 0, 0).batches) == 2
    else:
        with pytest.raises(BettyError, match="BatchNorm1d"):
            trainer.train_epoch(model, optimizer, 0, 0)


def half_of_what_it_takes(model: nn.Module, full_batch: FullBatch) -> int:
    estimate = estimate_memory(model, full_batch.blocks)
    return estimate.static + (estimate.peak - estimate.static) // 2


@pytest.mark.parametrize("is_training", [True, False])
def test_planning_is_refused_where_there_would_be_several_micro_batches(is_training: bool) -> None:
    model = model_with(nn.BatchNorm1d).train(is_training)
    budget = half_of_what_it_takes(model, FULL_BATCH)
    with pytest.raises(BettyError, match=r"^layers\.0\.norm \(BatchNorm1d\) .* allow_inexact=True$"):
        plan_micro_batches(FULL_BATCH, model, budget)
    assert len(plan_micro_batches(FULL_BATCH, model, budget, allow_inexact=True).parts) > 1
    assert len(plan_micro_batches(FULL_BATCH, model, 10 * budget).parts) == 1


def test_models_that_keep_nodes_apart_are_planned_as_before() -> None:
    for model in (model_with(nn.LayerNorm), GraphSAGE(NUM_FEATURES, 5, 4, 2)):
        assert len(plan_micro_batches(FULL_BATCH, model, half_of_what_it_takes(model, FULL_BATCH)).parts) > 1
