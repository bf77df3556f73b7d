import pytest
import torch
from torch import nn

from betty.training import EpochRecord, WithPeakMemory, advice_for_divergence, bytes_of_training_state

CPU = torch.device("cpu")
PARAMETER_BYTES = 4 * (10 * 20 + 20)


def linear_with_adam() -> tuple[nn.Linear, torch.optim.Adam]:
    model = nn.Linear(10, 20)
    return model, torch.optim.Adam(model.parameters())


class TrainerThatAllocates:
    def __init__(self, num_bytes: int) -> None:
        self.num_bytes = num_bytes
        self.learned = {"num_parts": 1}

    def recall(self, learned) -> None:
        self.learned = learned

    def train_epoch(self, model, optimizer, run, epoch) -> EpochRecord:
        optimizer.zero_grad(set_to_none=True)
        model(torch.ones(1, 10)).sum().backward()
        optimizer.step()
        torch.empty(self.num_bytes, dtype=torch.uint8)
        return EpochRecord(run + epoch, None, None, 0.0, 0.0, 0.0, 0.0, [])


def test_training_state_is_the_model_its_gradients_and_two_numbers_a_parameter_of_adam():
    model, optimizer = linear_with_adam()
    assert bytes_of_training_state(model, optimizer) == PARAMETER_BYTES
    TrainerThatAllocates(1).train_epoch(model, optimizer, 0, 0)
    steps_of_adam = 2 * 4
    assert bytes_of_training_state(model, optimizer) == 4 * PARAMETER_BYTES + steps_of_adam


def test_training_state_counts_shared_weights_once_and_buffers_too():
    model, optimizer = linear_with_adam()
    pair = nn.Sequential(model, nn.Linear(10, 20, bias=False), nn.BatchNorm1d(20, affine=False))
    pair[1].weight = model.weight
    assert bytes_of_training_state(pair, optimizer) == PARAMETER_BYTES + 4 * 20 * 2 + 8


def test_every_epoch_records_what_was_there_before_and_what_it_allocates():
    model, optimizer = linear_with_adam()
    trainer = WithPeakMemory(TrainerThatAllocates(1_000_000), CPU)
    records = [trainer.train_epoch(model, optimizer, 1, epoch) for epoch in range(3)]
    assert [record.loss for record in records] == [1, 2, 3]
    expected = 4 * PARAMETER_BYTES + 8 + 1_000_000
    assert [record.peak_memory_bytes for record in records] == [expected] * 3


def test_a_trainer_that_is_measured_learns_and_recalls_as_it_does_alone():
    alone = TrainerThatAllocates(1)
    measured = WithPeakMemory(alone, CPU)
    assert measured.learned == {"num_parts": 1}
    measured.recall({"num_parts": 3})
    assert alone.learned == measured.learned == {"num_parts": 3}


@pytest.mark.parametrize(
    ("largest", "advice"), [(-3e38, "scale the node features, which reach 3e+38, or try"), (1, "try")]
)
def test_a_loss_that_is_no_number_is_blamed_on_huge_features_where_there_are_such(largest, advice):
    assert advice_for_divergence(torch.tensor([[0.5, largest]])) == f"{advice} a lower --lr"
