import copy

import pytest
import torch

from betty import BettyError
from betty.models import batch_statistics
from betty.models.batch_statistics import BatchStatistics
from betty.models.norms import BatchNorm

NUM_ROWS, CHANNELS = 500, 7

SETTINGS = {
    "as usual": {},
    "cumulative average": {"momentum": None},
    "nothing remembered": {"track_running_stats": False},
    "no weights": {"affine": False},
}


@pytest.fixture(autouse=True)
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(batch_statistics.CHUNK_ELEMENTS, "cpu", 64 * CHANNELS)


def make_norms(dtype: torch.dtype = torch.float64, **settings: object) -> tuple[BatchNorm, torch.nn.BatchNorm1d]:
    """The same norm twice, with weights and memories of its own, as Betty's and as PyTorch's."""
    reference = torch.nn.BatchNorm1d(CHANNELS, **settings).to(dtype)
    for tensor in [*reference.parameters(), *reference.buffers()]:
        if tensor.is_floating_point():
            tensor.data.uniform_(0.5, 2, generator=torch.Generator().manual_seed(1))
    norm = BatchNorm(CHANNELS, **settings).to(dtype)
    norm.load_state_dict(reference.state_dict())
    return norm, reference


def random_rows(seed: int, mean: float = 3.0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(NUM_ROWS, CHANNELS, dtype=torch.float64, generator=generator) * 2 + mean


@pytest.mark.parametrize("training", [True, False], ids=["training", "evaluation"])
@pytest.mark.parametrize("settings", SETTINGS.values(), ids=SETTINGS)
def test_rows_in_parts_are_normalized_forward_and_backward_as_all_at_once(settings, training):
    norm, reference = (each.train(training) for each in make_norms(**settings))
    for step in range(3):
        rows, gradient = random_rows(step), random_rows(step + 10)
        whole = rows.clone().requires_grad_()
        expected = reference(whole)
        expected.backward(gradient)

        statistics = BatchStatistics(norm, rows, updates_running=True)
        parts = [part.clone() for part in rows.split(90)]
        for part in parts:
            statistics.normalize_(part)
        statistics.backward_(rows, gradient)
        assert torch.equal(rows, whole)
        torch.testing.assert_close(torch.cat(parts), expected.detach(), rtol=1e-10, atol=1e-10)
        torch.testing.assert_close(gradient, whole.grad, rtol=1e-10, atol=1e-10)
    for found, wanted in zip(norm.parameters(), reference.parameters(), strict=True):
        torch.testing.assert_close(found.grad, wanted.grad, rtol=1e-10, atol=1e-10)
    for name, wanted in reference.state_dict().items():
        torch.testing.assert_close(norm.state_dict()[name], wanted, rtol=1e-10, atol=1e-10)


def test_nothing_is_remembered_unless_asked_for():
    norm, _ = make_norms()
    before = copy.deepcopy(norm.state_dict())
    BatchStatistics(norm, random_rows(0), updates_running=False)
    for name, tensor in norm.state_dict().items():
        assert torch.equal(tensor, before[name])


def test_a_mean_far_from_zero_cancels_nothing():
    """In float32 the squares of such numbers have no digit left of their variance."""
    norm, reference = make_norms(torch.float32)
    rows = random_rows(0, mean=10_000).float()
    statistics = BatchStatistics(norm, rows, updates_running=True)
    expected = reference.double()(rows.double()).detach()
    x = rows.clone()
    statistics.normalize_(x)
    torch.testing.assert_close(x.double(), expected, rtol=1e-3, atol=1e-3)
    torch.testing.assert_close(norm.running_var.double(), reference.running_var, rtol=1e-6, atol=0)


def test_weights_that_need_no_gradient_get_none():
    norm, _ = make_norms()
    norm.weight.requires_grad_(False)
    BatchStatistics(norm, random_rows(0), updates_running=False).backward_(random_rows(0), random_rows(1))
    assert norm.weight.grad is None
    assert norm.bias.grad is not None


def test_a_single_row_is_refused_in_training_only():
    norm, reference = make_norms()
    row = random_rows(0)[:1]
    for compute in (norm, lambda row: BatchStatistics(norm, row, updates_running=True)):
        with pytest.raises(BettyError, match="of which there are 1; train on more output nodes"):
            compute(row)
    norm.eval()
    x = row.clone()
    BatchStatistics(norm, row, updates_running=True).normalize_(x)
    torch.testing.assert_close(x, reference.eval()(row).detach(), rtol=1e-10, atol=1e-10)
