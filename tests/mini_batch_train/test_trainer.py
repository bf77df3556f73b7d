"""The baseline against a loop written by hand."""

import copy

import pytest
import torch
from torch.nn.functional import cross_entropy

from betty import FullBatch, GraphSAGE
from betty.device_loader import DeviceLoader
from betty.mini_batch_train.trainer import MiniBatchTrainer
from tests.full_batches import FixedFullBatches
from tests.random_blocks import random_full_batch

NUM_FEATURES, NUM_CLASSES, NUM_NODES = 6, 4, 1000


@pytest.fixture
def mini_batches() -> list[FullBatch]:
    return [random_full_batch([100, 50, num_outputs], 5, seed) for seed, num_outputs in enumerate([20, 30, 7])]


def test_an_epoch_is_a_step_on_the_mean_loss_of_every_mini_batch(mini_batches: list[FullBatch]) -> None:
    generator = torch.Generator().manual_seed(0)
    features = torch.randn(NUM_NODES, NUM_FEATURES, generator=generator, dtype=torch.float64)
    labels = torch.randint(0, NUM_CLASSES, (NUM_NODES,), generator=generator)
    model = GraphSAGE(NUM_FEATURES, 8, NUM_CLASSES, 2, dropout=0.0).double()
    by_hand = copy.deepcopy(model)

    trainer = MiniBatchTrainer(
        FixedFullBatches(mini_batches), DeviceLoader(features, labels, torch.device("cpu")), seed=0
    )
    record = trainer.train_epoch(model, torch.optim.Adam(model.parameters(), lr=0.1), 0, 0)

    optimizer = torch.optim.Adam(by_hand.parameters(), lr=0.1)
    total_loss = 0.0
    for batch in mini_batches:
        optimizer.zero_grad()
        loss = cross_entropy(by_hand(batch.blocks, features[batch.input_ids]), labels[batch.output_ids])
        loss.backward()
        optimizer.step()
        total_loss += loss.item() * batch.output_ids.numel()

    assert record.loss == pytest.approx(total_loss / 57, rel=1e-12)
    for parameter, expected in zip(model.parameters(), by_hand.parameters(), strict=True):
        torch.testing.assert_close(parameter, expected, rtol=1e-10, atol=1e-12)


def test_an_epoch_records_its_mini_batches(mini_batches: list[FullBatch]) -> None:
    loader = DeviceLoader(torch.rand(NUM_NODES, NUM_FEATURES), torch.zeros(NUM_NODES).long(), torch.device("cpu"))
    model = GraphSAGE(NUM_FEATURES, 8, NUM_CLASSES, 2)
    trainer = MiniBatchTrainer(FixedFullBatches(mini_batches), loader, seed=0)
    record = trainer.train_epoch(model, torch.optim.SGD(model.parameters(), lr=0.1), 0, 0)
    assert [batch.output_nodes for batch in record.batches] == [20, 30, 7]
    assert [batch.input_nodes for batch in record.batches] == [100, 100, 100]
    assert [batch.edges for batch in record.batches] == [batch.num_edges for batch in mini_batches]
    assert record.redundancy is None
    assert record.partition_s == record.split_s == 0
