"""The accumulated gradient is the full batch's, and so is the training."""

import copy

import pytest
import torch
from torch.nn.functional import cross_entropy

from betty import FullBatch, GraphSAGE
from betty.device_loader import DeviceLoader
from betty.micro_batch_train.block_dataloader import MicroBatchLoader
from betty.micro_batch_train.graph_partitioner import METHODS, partition
from betty.micro_batch_train.trainer import MicroBatchTrainer, Partitioning, accumulate_gradients
from betty.models import AGGREGATORS
from tests.full_batches import FixedFullBatches
from tests.random_blocks import random_full_batch

NUM_FEATURES, NUM_CLASSES = 6, 4
CPU = torch.device("cpu")


def double_model(aggre: str, num_layers: int) -> GraphSAGE:
    torch.manual_seed(0)
    return GraphSAGE(NUM_FEATURES, 5, NUM_CLASSES, num_layers, aggre, dropout=0.0).double()


def random_nodes(full_batch: FullBatch, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    num_nodes = int(full_batch.input_ids.max()) + 1
    generator = torch.Generator().manual_seed(1)
    features = torch.randn(num_nodes, NUM_FEATURES, generator=generator, dtype=dtype)
    return features, torch.randint(0, NUM_CLASSES, (num_nodes,), generator=generator)


@pytest.mark.parametrize("num_parts", [1, 2, 7, 16])
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("aggre", AGGREGATORS)
def test_accumulated_gradient_is_the_full_batchs(aggre: str, method: str, num_parts: int) -> None:
    full_batch = random_full_batch([120, 60, 30], 6, seed=num_parts)
    features, labels = random_nodes(full_batch, torch.float64)
    model = double_model(aggre, num_layers=2)

    whole = copy.deepcopy(model)
    logits = whole(full_batch.blocks, features[full_batch.input_ids])
    loss = cross_entropy(logits, labels[full_batch.output_ids])
    loss.backward()

    parts = partition(full_batch, num_parts, method, seed=0)
    loader = MicroBatchLoader(full_batch, parts, DeviceLoader(features, labels, CPU))
    step = accumulate_gradients(model, loader, full_batch.output_ids.numel())

    assert len(step.batches) == len(parts)
    assert step.loss == pytest.approx(loss.item(), rel=1e-12)
    for (name, parameter), expected in zip(model.named_parameters(), whole.parameters(), strict=True):
        error = (parameter.grad - expected.grad).norm() / expected.grad.norm()
        assert error <= 1e-10, name


def losses(full_batches: list[FullBatch], num_parts: int, num_epochs: int) -> list[float]:
    features, labels = random_nodes(full_batches[0], torch.float32)
    torch.manual_seed(0)
    model = GraphSAGE(NUM_FEATURES, 16, NUM_CLASSES, 2, "mean", dropout=0.0)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    trainer = MicroBatchTrainer(
        FixedFullBatches(full_batches),
        Partitioning("REG", num_parts, 0, "REG"),
        DeviceLoader(features, labels, CPU),
        seed=0,
    )
    return [trainer.train_epoch(model, optimizer, 0, epoch).loss for epoch in range(num_epochs)]


def test_twenty_epochs_of_eight_micro_batches_follow_the_full_batch() -> None:
    full_batch = random_full_batch([500, 300, 150], 8, seed=0)
    whole, micro = losses([full_batch], 1, 20), losses([full_batch], 8, 20)
    assert micro == pytest.approx(whole, abs=1e-4)
    assert whole[-1] < 0.9 * whole[0]


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
    assert record.peak_memory_bytes is None
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


def test_re_partitioning_adds_a_micro_batch_each_time() -> None:
    full_batch = random_full_batch([200, 100, 40], 5, seed=0)
    assert len(Partitioning("range", 4, 3, "random").parts(full_batch, seed=0)) == 7
