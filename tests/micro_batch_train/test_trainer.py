"""The accumulated gradient is the full batch's, and so is the training."""

import copy
import itertools
import logging
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
import torch
from torch.nn.functional import cross_entropy

from betty import GAT, Block, FullBatch, GraphSAGE, MicroBatch, dropout_key
from betty.device_loader import DeviceLoader, LoadedBatch, Rows
from betty.micro_batch_train import graph_partitioner
from betty.micro_batch_train.graph_partitioner import METHODS, partition
from betty.micro_batch_train.memory_watch import MemoryWatch
from betty.micro_batch_train.output_graphs import redundancy_graph
from betty.micro_batch_train.plan import estimated, model_estimate
from betty.micro_batch_train.planner import BudgetPartitioning
from betty.micro_batch_train.planning_ahead import Planner
from betty.micro_batch_train.stored_parts import StoredTensors
from betty.micro_batch_train.trainer import MicroBatchTrainer, Partitioning, accumulate_gradients
from betty.mini_batch_train.trainer import MiniBatchTrainer
from betty.models import AGGREGATORS, LayeredModel
from tests.full_batches import FixedFullBatches
from tests.random_blocks import neighbourhoods, random_full_batch

NUM_FEATURES, NUM_CLASSES = 6, 4
CPU = torch.device("cpu")


def double_model(aggre: str, num_layers: int, dropout: float, dropout_mode: str = "exact") -> GraphSAGE:
    torch.manual_seed(0)
    return GraphSAGE(NUM_FEATURES, 5, NUM_CLASSES, num_layers, aggre, dropout, dropout_mode).double()


def double_gat(num_layers: int, dropout: float, num_hidden: int) -> GAT:
    """Three heads, attention dropout where there is dropout, and a residual connection."""
    torch.manual_seed(0)
    return GAT(NUM_FEATURES, num_hidden, NUM_CLASSES, num_layers, 3, dropout, dropout, residual=True).double()


MODELS: dict[str, Callable[[int, float], LayeredModel]] = {
    **{aggre: partial(double_model, aggre) for aggre in AGGREGATORS},
    "GAT that sums first": partial(double_gat, num_hidden=5),
    "GAT that projects first": partial(double_gat, num_hidden=1),
}


def random_nodes(full_batch: FullBatch, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    num_nodes = int(full_batch.input_ids.max()) + 1
    generator = torch.Generator().manual_seed(1)
    features = torch.randn(num_nodes, NUM_FEATURES, generator=generator, dtype=dtype)
    return features, torch.randint(0, NUM_CLASSES, (num_nodes,), generator=generator)


def gradient_errors(model: LayeredModel, full_batch: FullBatch, method: str, num_parts: int) -> dict[str, float]:
    """By how much the accumulated gradients and the loss differ from those of the full batch in one piece."""
    features, labels = random_nodes(full_batch, torch.float64)
    whole = copy.deepcopy(model)
    with dropout_key(whole, 5):
        logits = whole(full_batch.blocks, features[full_batch.input_ids])
    loss = cross_entropy(logits, labels[full_batch.output_ids])
    loss.backward()

    parts = partition(full_batch, num_parts, method, seed=0)
    with dropout_key(model, 5):
        step = accumulate_gradients(model, full_batch, parts, DeviceLoader(features, labels, CPU))

    assert len(step.batches) == len(parts)
    errors = {"loss": abs(step.loss / loss.item() - 1)}
    for (name, parameter), expected in zip(model.named_parameters(), whole.parameters(), strict=True):
        errors[name] = ((parameter.grad - expected.grad).norm() / expected.grad.norm()).item()
    return errors


@pytest.mark.parametrize("num_parts", [1, 2, 7, 16])
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("dropout", [0.0, 0.5])
@pytest.mark.parametrize("make_model", MODELS.values(), ids=MODELS.keys())
def test_accumulated_gradient_is_the_full_batchs(
    make_model: Callable[[int, float], LayeredModel], dropout: float, method: str, num_parts: int
) -> None:
    full_batch = random_full_batch([120, 60, 30], 6, seed=num_parts)
    errors = gradient_errors(make_model(2, dropout), full_batch, method, num_parts)
    assert max(errors.values()) <= 1e-10, errors


@pytest.mark.parametrize("make_model", MODELS.values(), ids=MODELS.keys())
def test_accumulated_gradient_is_the_full_batchs_through_three_layers_of_dropout(
    make_model: Callable[[int, float], LayeredModel],
) -> None:
    full_batch = random_full_batch([200, 120, 60, 30], 6, seed=0)
    errors = gradient_errors(make_model(3, 0.5), full_batch, "REG", 7)
    assert max(errors.values()) <= 1e-10, errors


def test_accumulated_gradient_of_pytorchs_dropout_is_another_one() -> None:
    full_batch = random_full_batch([120, 60, 30], 6, seed=0)
    errors = gradient_errors(double_model("mean", 2, 0.5, "torch"), full_batch, "REG", 7)
    assert min(errors.values()) > 1e-3, errors


def losses(full_batches: list[FullBatch], num_parts: int, num_epochs: int, dropout: float) -> list[float]:
    features, labels = random_nodes(full_batches[0], torch.float32)
    torch.manual_seed(0)
    model = GraphSAGE(NUM_FEATURES, 16, NUM_CLASSES, 2, "mean", dropout)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    trainer = MicroBatchTrainer(
        FixedFullBatches(full_batches),
        Partitioning("REG", num_parts, 0, "REG"),
        DeviceLoader(features, labels, CPU),
        seed=0,
    )
    return [trainer.train_epoch(model, optimizer, 0, epoch).loss for epoch in range(num_epochs)]


@pytest.mark.parametrize("dropout", [0.0, 0.5])
def test_twenty_epochs_of_eight_micro_batches_follow_the_full_batch(dropout: float) -> None:
    full_batch = random_full_batch([500, 300, 150], 8, seed=0)
    whole, micro = losses([full_batch], 1, 20, dropout), losses([full_batch], 8, 20, dropout)
    assert micro == pytest.approx(whole, abs=1e-4)
    assert whole[-1] < 0.9 * whole[0]


def test_every_step_drops_other_channels() -> None:
    """Without learning, two epochs' losses differ by their masks alone."""
    full_batch = random_full_batch([100, 50, 20], 5, seed=0)
    features, labels = random_nodes(full_batch, torch.float32)
    model = GraphSAGE(NUM_FEATURES, 16, NUM_CLASSES, 2, dropout=0.5)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    loader = DeviceLoader(features, labels, CPU)

    def loss(batches: int, seed: int, run: int, epoch: int) -> float:
        source = FixedFullBatches([full_batch] * batches)
        trainer = MicroBatchTrainer(source, Partitioning("range", 4, 0, "range"), loader, seed)
        return trainer.train_epoch(model, optimizer, run, epoch).loss

    assert loss(1, 0, 0, 0) == loss(1, 0, 0, 0)
    assert len({loss(*case) for case in [(1, 0, 0, 0), (2, 0, 0, 0), (1, 1, 0, 0), (1, 0, 1, 0), (1, 0, 0, 1)]}) == 5


def test_a_model_without_exact_dropout_is_trained() -> None:
    full_batch = random_full_batch([100, 50, 20], 5, seed=0)
    features, labels = random_nodes(full_batch, torch.float32)

    class OwnFeatures(torch.nn.Linear):
        def forward(self, blocks: tuple[Block, ...], x: torch.Tensor) -> torch.Tensor:
            return super().forward(x[: blocks[-1].num_dst])

    model = OwnFeatures(NUM_FEATURES, NUM_CLASSES)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    source, loader = FixedFullBatches([full_batch]), DeviceLoader(features, labels, CPU)
    trainers = [
        MicroBatchTrainer(source, Partitioning("range", 4, 0, "range"), loader, seed=0),
        MiniBatchTrainer(source, loader, seed=0),
    ]
    first, second = (trainer.train_epoch(model, optimizer, 0, 0) for trainer in trainers)
    assert second.loss < first.loss
    assert first.estimated_peak_bytes is None


def test_one_mini_batch_is_one_micro_batch_with_dropout() -> None:
    full_batch = random_full_batch([100, 50, 20], 5, seed=0)
    features, labels = random_nodes(full_batch, torch.float32)
    source, loader = FixedFullBatches([full_batch]), DeviceLoader(features, labels, CPU)
    model = GraphSAGE(NUM_FEATURES, 16, NUM_CLASSES, 2, dropout=0.5)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    trainers = [
        MicroBatchTrainer(source, Partitioning("range", 1, 0, "range"), loader, seed=3),
        MiniBatchTrainer(source, loader, seed=3),
    ]
    first, second = (trainer.train_epoch(model, optimizer, 1, 2).loss for trainer in trainers)
    assert second == pytest.approx(first, rel=1e-6)


def test_an_epoch_records_what_its_micro_batches_hold() -> None:
    full_batch = random_full_batch([100, 50, 20], 5, seed=0)
    features, labels = random_nodes(full_batch, torch.float32)
    model = GraphSAGE(NUM_FEATURES, 8, NUM_CLASSES, 2)
    trainer = MicroBatchTrainer(
        FixedFullBatches([full_batch]),
        Partitioning("range", 4, 0, "range"),
        DeviceLoader(features, labels, CPU),
        seed=0,
    )
    record = trainer.train_epoch(model, torch.optim.SGD(model.parameters(), lr=0.1), 0, 0)
    assert sum(batch.output_nodes for batch in record.batches) == 20
    assert [batch.output_nodes for batch in record.batches] == [5, 5, 5, 5]
    assert record.redundancy == sum(batch.input_nodes for batch in record.batches) / 100
    parts = partition(full_batch, 4, "range")
    assert record.estimated_peak_bytes == estimated(full_batch, parts, model_estimate(model, CPU)).peak
    assert min(record.sample_s, record.partition_s, record.split_s, record.transfer_s) > 0


def test_each_full_batch_of_an_epoch_makes_one_step() -> None:
    full_batch = random_full_batch([100, 50, 20], 5, seed=0)
    features, labels = random_nodes(full_batch, torch.float32)
    model = GraphSAGE(NUM_FEATURES, 8, NUM_CLASSES, 2)
    optimizer = torch.optim.Adam(model.parameters())
    trainer = MicroBatchTrainer(
        FixedFullBatches([full_batch] * 3),
        Partitioning("REG", 4, 0, "REG"),
        DeviceLoader(features, labels, CPU),
        seed=0,
    )
    trainer.train_epoch(model, optimizer, 0, 0)
    assert {int(state["step"]) for state in optimizer.state.values()} == {3}


class SlowToGo:
    """Something of a batch that takes its time to be freed, while other threads run."""

    def __init__(self, alive: list[int]) -> None:
        self.alive = alive
        alive[0] += 1

    def __del__(self) -> None:
        time.sleep(0.02)
        self.alive[0] -= 1


class CountingLoader(DeviceLoader):
    """Notes how many batches are alive when it begins to load one."""

    def __init__(self, *data: object) -> None:
        super().__init__(*data)
        self.alive, self.at_start = [0], []

    def load_rows(self, batch: MicroBatch, prepare_s: float, features: Rows, target: Rows | None) -> LoadedBatch:
        self.at_start.append(self.alive[0])
        loaded = super().load_rows(batch, prepare_s, features, target)
        object.__setattr__(loaded, "slow_to_go", SlowToGo(self.alive))
        return loaded


def test_a_micro_batch_is_gone_before_the_one_after_the_next_is_loaded() -> None:
    full_batch = random_full_batch([200, 100], 3, seed=0)
    features, labels = torch.zeros(2000, NUM_FEATURES), torch.zeros(2000, dtype=torch.int64)
    loader = CountingLoader(features, labels, CPU)
    accumulate_gradients(GraphSAGE(NUM_FEATURES, 5, NUM_CLASSES, 1), full_batch, partition(full_batch, 6), loader)
    assert loader.at_start == [0, 1, 1, 1, 1, 1]


def test_a_mini_batch_is_gone_before_the_one_after_the_next_is_loaded() -> None:
    full_batches = FixedFullBatches([random_full_batch([200, 100], 3, seed) for seed in range(5)])
    features, labels = torch.zeros(2000, NUM_FEATURES), torch.zeros(2000, dtype=torch.int64)
    loader, model = CountingLoader(features, labels, CPU), GraphSAGE(NUM_FEATURES, 5, NUM_CLASSES, 1)
    MiniBatchTrainer(full_batches, loader, seed=0).train_epoch(model, torch.optim.Adam(model.parameters()), 0, 0)
    assert loader.at_start == [0, 1, 1, 1, 1]


def test_re_partitioning_adds_a_micro_batch_each_time() -> None:
    full_batch = random_full_batch([200, 100, 40], 5, seed=0)
    model = GraphSAGE(NUM_FEATURES, 5, NUM_CLASSES, 2)
    assert len(Partitioning("range", 4, 3, "random").plan(full_batch, model, 0, CPU).parts) == 7


def test_all_parts_of_reg_are_made_with_the_bound_on_hubs_that_was_given(monkeypatch) -> None:
    bounds = []

    def noted_graph(block, max_sharing):
        bounds.append(max_sharing)
        return redundancy_graph(block, max_sharing)

    monkeypatch.setattr(graph_partitioner, "redundancy_graph", noted_graph)
    full_batch = random_full_batch([200, 100, 40], 5, seed=0)
    model = GraphSAGE(NUM_FEATURES, 5, NUM_CLASSES, 2)
    Partitioning("REG", 4, 2, "REG", reg_max_degree=3).plan(full_batch, model, 0, CPU)
    assert bounds == [3, 3, 3]


@pytest.mark.parametrize("dropout", [0.0, 0.5])
@pytest.mark.parametrize("share", [1.5, 2.5, 4])
def test_micro_batches_over_the_limit_are_split_and_the_gradient_stays_the_full_batchs(
    dropout: float, share: float, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    full_batch = neighbourhoods([300, 150, 80], max_degree=5, seed=3)
    features, labels = random_nodes(full_batch, torch.float64)
    model, whole = double_model("mean", 2, dropout), double_model("mean", 2, dropout)
    with dropout_key(whole, 5):
        logits = whole(full_batch.blocks, features[full_batch.input_ids])
    loss = cross_entropy(logits, labels[full_batch.output_ids])
    loss.backward()

    parts, estimate = partition(full_batch, 3), model_estimate(model, CPU)
    plan = estimated(full_batch, parts, estimate)
    static = plan.estimates[0].static
    limit = static + int((plan.peak - static) / share)
    watch = MemoryWatch(estimate, limit)
    loader = CountingLoader(features, labels, CPU)
    with dropout_key(model, 5):
        step = accumulate_gradients(model, full_batch, parts, loader, watch)

    assert len(step.batches) > 3
    assert len(loader.at_start) == len(step.batches)
    assert sum(batch.output_nodes for batch in step.batches) == 80
    assert step.num_shortages == 0
    assert {record.message.split(": ")[1] for record in caplog.records} == {"split in two"}
    assert watch.peak <= limit
    assert step.loss == pytest.approx(loss.item(), rel=1e-10)
    for parameter, expected in zip(model.parameters(), whole.parameters(), strict=True):
        assert (parameter.grad - expected.grad).norm() <= 1e-10 * expected.grad.norm()


def test_a_limit_that_no_output_node_keeps_to_ends_in_micro_batches_of_one() -> None:
    full_batch = neighbourhoods([100, 40, 12], max_degree=4, seed=3)
    features, labels = random_nodes(full_batch, torch.float64)
    model = double_model("mean", 2, 0.0)
    watch = MemoryWatch(model_estimate(model, CPU), limit=1)
    step = accumulate_gradients(model, full_batch, [torch.arange(12)], DeviceLoader(features, labels, CPU), watch)
    assert [batch.output_nodes for batch in step.batches] == [1] * 12


class OtherNeighbours(FixedFullBatches):
    """Every epoch samples other neighbours for the same output nodes."""

    def load(self, epoch: int, batch: int) -> FullBatch:
        return self.full_batches[epoch]


@pytest.mark.parametrize("share", [3, 5, 9])
def test_no_epoch_needs_more_than_the_budget_whatever_it_samples(share: int) -> None:
    full_batches = [neighbourhoods([900, 400, 200], max_degree=4, seed=seed) for seed in range(6)]
    source = OtherNeighbours(full_batches)
    source.num_batches = 1
    num_nodes = 1 + max(int(full_batch.input_ids.max()) for full_batch in full_batches)
    features, labels = torch.zeros(num_nodes, NUM_FEATURES), torch.zeros(num_nodes, dtype=torch.int64)
    model = GraphSAGE(NUM_FEATURES, 16, NUM_CLASSES, 2)
    whole = model_estimate(model, CPU)(MicroBatch(full_batches[0].blocks))
    budget = whole.static + (whole.peak - whole.static) // share
    planner = BudgetPartitioning("locality", budget)
    trainer = MicroBatchTrainer(source, planner, DeviceLoader(features, labels, CPU), seed=0, num_epochs=6)
    optimizer = torch.optim.Adam(model.parameters())
    records = [trainer.train_epoch(model, optimizer, 0, epoch) for epoch in range(6)]
    assert all(0.5 * budget < record.estimated_peak_bytes <= budget for record in records)
    # As many as planned, and more only where an epoch sampled more.
    assert min(len(record.batches) for record in records) == len(records[0].batches)


class MeanOfOnes(torch.nn.Linear):
    """Somebody's model: it tells neither its memory nor its widths."""

    def forward(self, blocks: tuple[Block, ...], x: torch.Tensor) -> torch.Tensor:
        return super().forward(x)[: blocks[-1].num_dst]


def test_a_model_of_ones_own_is_watched_by_dry_runs_where_there_is_a_budget() -> None:
    full_batch = neighbourhoods([300, 150, 80], max_degree=5, seed=3)
    features, labels = random_nodes(full_batch, torch.float32)
    model = MeanOfOnes(NUM_FEATURES, NUM_CLASSES)
    whole = estimated(full_batch, [torch.arange(80)], model_estimate(model, CPU, NUM_FEATURES))
    planner = BudgetPartitioning("locality", whole.peak * 2 // 3, NUM_FEATURES)
    source, loader = FixedFullBatches([full_batch]), DeviceLoader(features, labels, CPU)
    trainer = MicroBatchTrainer(source, planner, loader, seed=0, num_epochs=2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    first, second = (trainer.train_epoch(model, optimizer, 0, epoch) for epoch in range(2))
    assert len(first.batches) == len(second.batches) > 1
    assert first.estimated_peak_bytes == second.estimated_peak_bytes <= whole.peak * 2 // 3


def test_stored_parts_train_to_the_same_numbers(tmp_path: Path) -> None:
    full_batches = [neighbourhoods([300, 150, 80], max_degree=5, seed=seed) for seed in range(4)]
    features, labels = random_nodes(full_batches[0], torch.float32)

    def losses(planner: Planner, num_batches: int, store: StoredTensors | None) -> list[float]:
        torch.manual_seed(0)
        model = GraphSAGE(NUM_FEATURES, 16, NUM_CLASSES, 2, dropout=0.5)
        optimizer = torch.optim.Adam(model.parameters())
        source, loader = FixedFullBatches(full_batches[:num_batches]), DeviceLoader(features, labels, CPU)
        trainer = MicroBatchTrainer(source, planner, loader, 0, 3, store)
        return [trainer.train_epoch(model, optimizer, 0, epoch).loss for epoch in range(3)]

    budget = (
        3
        * model_estimate(GraphSAGE(NUM_FEATURES, 16, NUM_CLASSES, 2), CPU)(MicroBatch(full_batches[0].blocks)).peak
        // 5
    )
    for method, num_batches in itertools.product(["locality", "REG"], [1, 2]):
        store = StoredTensors(tmp_path, {"num_batches": num_batches})
        for new_planner in (
            lambda method=method: Partitioning(method, 4, 1, "REG"),
            lambda method=method: BudgetPartitioning(method, budget),
        ):
            expected = losses(new_planner(), num_batches, None)
            assert losses(new_planner(), num_batches, store) == expected
            assert losses(new_planner(), num_batches, store) == expected
