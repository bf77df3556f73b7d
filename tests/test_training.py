import torch
from torch import nn

from betty.training import EpochRecord, bytes_of_training_state, with_peak_memory

CPU = torch.device("cpu")
PARAMETER_BYTES = 4 * (10 * 20 + 20)


def linear_with_adam() -> tuple[nn.Linear, torch.optim.Adam]:
    model = nn.Linear(10, 20)
    return model, torch.optim.Adam(model.parameters())


def epoch_that_allocates(num_bytes: int):
    def train_epoch(model, optimizer, run, epoch) -> EpochRecord:
        optimizer.zero_grad(set_to_none=True)
        model(torch.ones(1, 10)).sum().backward()
        optimizer.step()
        torch.empty(num_bytes, dtype=torch.uint8)
        return EpochRecord(run + epoch, None, None, 0.0, 0.0, 0.0, 0.0, [])

    return train_epoch


def test_training_state_is_the_model_its_gradients_and_two_numbers_a_parameter_of_adam():
    model, optimizer = linear_with_adam()
    assert bytes_of_training_state(model, optimizer) == PARAMETER_BYTES
    epoch_that_allocates(1)(model, optimizer, 0, 0)
    steps_of_adam = 2 * 4
    assert bytes_of_training_state(model, optimizer) == 4 * PARAMETER_BYTES + steps_of_adam


def test_training_state_counts_shared_weights_once_and_buffers_too():
    model, optimizer = linear_with_adam()
    pair = nn.Sequential(model, nn.Linear(10, 20, bias=False), nn.BatchNorm1d(20, affine=False))
    pair[1].weight = model.weight
    assert bytes_of_training_state(pair, optimizer) == PARAMETER_BYTES + 4 * 20 * 2 + 8


def test_every_epoch_records_what_was_there_before_and_what_it_allocates():
    model, optimizer = linear_with_adam()
    train_epoch = with_peak_memory(epoch_that_allocates(1_000_000), CPU)
    records = [train_epoch(model, optimizer, 1, epoch) for epoch in range(3)]
    assert [record.loss for record in records] == [1, 2, 3]
    expected = 4 * PARAMETER_BYTES + 8 + 1_000_000
    assert [record.peak_memory_bytes for record in records] == [expected] * 3
