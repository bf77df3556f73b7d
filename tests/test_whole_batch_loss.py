"""Shares of micro-batches sum to the loss that PyTorch computes of the whole batch, and their gradients to its."""

import functools
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from betty import BettyError, GraphSAGE, WholeBatchLoss, partition, split
from tests.random_blocks import random_full_batch

NUM_NODES, NUM_CLASSES = 37, 5
DRAW = torch.Generator().manual_seed(0)
LOGITS = torch.randn(NUM_NODES, NUM_CLASSES, generator=DRAW, dtype=torch.float64)
CLASSES = torch.randint(NUM_CLASSES, (NUM_NODES,), generator=DRAW)
SOME_IGNORED = torch.where(torch.rand(NUM_NODES, generator=DRAW) < 0.4, -1, CLASSES)
WEIGHTS = torch.tensor([1.0, 3.0, 0.5, 0.0, 2.0], dtype=torch.float64)
VALUES = torch.rand(NUM_NODES, NUM_CLASSES, generator=DRAW, dtype=torch.float64)
PROBABILITIES = VALUES / VALUES.sum(1, keepdim=True)
SIGNS = VALUES.gt(0.5).double() * 2 - 1

CASES: dict[str, tuple[nn.Module, Tensor]] = {
    "cross entropy": (nn.CrossEntropyLoss(), CLASSES),
    "weighted": (nn.CrossEntropyLoss(WEIGHTS), CLASSES),
    "ignored": (nn.CrossEntropyLoss(ignore_index=-1), SOME_IGNORED),
    "a class ignored": (nn.CrossEntropyLoss(ignore_index=2), CLASSES),
    "weighted, ignored": (nn.CrossEntropyLoss(WEIGHTS, ignore_index=-1), SOME_IGNORED),
    "smoothed": (nn.CrossEntropyLoss(label_smoothing=0.2), CLASSES),
    "all three": (nn.CrossEntropyLoss(WEIGHTS, ignore_index=-1, label_smoothing=0.2), SOME_IGNORED),
    "probabilities": (nn.CrossEntropyLoss(), PROBABILITIES),
    "probabilities, weighted and smoothed": (nn.CrossEntropyLoss(WEIGHTS, label_smoothing=0.2), PROBABILITIES),
    "NLL": (nn.NLLLoss(WEIGHTS, ignore_index=-1), SOME_IGNORED),
    "BCE": (nn.BCEWithLogitsLoss(), VALUES),
    "BCE with weights of classes": (nn.BCEWithLogitsLoss(WEIGHTS, pos_weight=WEIGHTS + 1), VALUES),
    "MSE": (nn.MSELoss(), VALUES),
    "L1": (nn.L1Loss(), VALUES),
    "smooth L1": (nn.SmoothL1Loss(beta=0.3), VALUES),
    "Huber": (nn.HuberLoss(delta=0.3), VALUES),
    "Poisson": (nn.PoissonNLLLoss(), VALUES),
    "soft margin": (nn.SoftMarginLoss(), SIGNS),
    "margin": (nn.MultiMarginLoss(weight=WEIGHTS), CLASSES),
    "margin of several labels": (nn.MultiLabelSoftMarginLoss(WEIGHTS), SIGNS.clamp(min=0)),
}


def summed(loss: WholeBatchLoss, labels: Tensor, parts: list[Tensor]) -> tuple[Tensor, Tensor]:
    """The loss and its gradient by the logits, as the sum over parts."""
    logits = LOGITS.clone().requires_grad_()
    total = sum(loss(logits[part], labels[part]) for part in parts)
    return total.detach(), torch.autograd.grad(total, logits)[0]


@pytest.mark.parametrize("num_parts", [1, 2, 9, NUM_NODES])
@pytest.mark.parametrize(("loss", "labels"), CASES.values(), ids=CASES)
def test_parts_sum_to_pytorchs_loss_of_the_whole(loss: nn.Module, labels: Tensor, num_parts: int) -> None:
    logits = LOGITS.clone().requires_grad_()
    expected = loss(logits, labels)
    parts = list(torch.randperm(NUM_NODES, generator=torch.Generator().manual_seed(1)).tensor_split(num_parts))
    value, gradient = summed(WholeBatchLoss(loss, labels), labels, parts)
    torch.testing.assert_close(value, expected.detach(), rtol=1e-12, atol=0)
    torch.testing.assert_close(gradient, torch.autograd.grad(expected, logits)[0], rtol=1e-10, atol=1e-14)
    assert loss.reduction == "mean"


def test_the_graph_of_four_nodes_gives_the_whole_batchs_loss_by_parts_of_two() -> None:
    logits, labels = LOGITS[:4, :2], torch.tensor([0, 0, 0, 1])
    loss = WholeBatchLoss(nn.CrossEntropyLoss(torch.tensor([1.0, 3.0], dtype=torch.float64)), labels)
    log = logits.log_softmax(1)
    by_hand = -(log[0, 0] + log[1, 0] + log[2, 0] + 3 * log[3, 1]) / 6
    assert loss.normalizer == 6
    assert (loss(logits[:2], labels[:2]) + loss(logits[2:], labels[2:])).item() == pytest.approx(by_hand.item())


@pytest.mark.parametrize("name", ["weighted, ignored", "all three", "BCE with weights of classes", "MSE"])
def test_accumulated_gradient_of_a_model_is_the_full_batchs(name: str) -> None:
    loss, labels = CASES[name]
    full_batch = random_full_batch([120, 60, NUM_NODES], 6, seed=0)
    torch.manual_seed(0)
    model = GraphSAGE(6, 5, NUM_CLASSES, 2, "mean", 0.0).double()
    features = torch.randn(int(full_batch.input_ids.max()) + 1, 6, dtype=torch.float64)
    loss(model(full_batch.blocks, features[full_batch.input_ids]), labels).backward()
    expected = [parameter.grad for parameter in model.parameters()]
    model.zero_grad()
    whole_batch_loss = WholeBatchLoss(loss, labels)
    parts = partition(full_batch, 4, "REG", seed=0)
    for part, micro_batch in zip(parts, split(full_batch, parts), strict=True):
        logits = model(micro_batch.blocks, features[micro_batch.input_ids])
        whole_batch_loss(logits, labels[part]).backward()
    for parameter, gradient in zip(model.parameters(), expected, strict=True):
        assert (parameter.grad - gradient).norm() <= 1e-10 * gradient.norm()


def focal(logits: Tensor, labels: Tensor) -> Tensor:
    losses = functional.cross_entropy(logits, labels, reduction="none")
    return ((1 - (-losses).exp()) ** 2 * losses).sum()


@pytest.mark.parametrize("loss", [focal, nn.CrossEntropyLoss(WEIGHTS, reduction="sum")])
def test_any_sum_is_taken_with_a_normalizer(loss: Callable[[Tensor, Tensor], Tensor]) -> None:
    value, _ = summed(WholeBatchLoss(loss, normalizer=11.0), CLASSES, list(torch.arange(NUM_NODES).split(5)))
    torch.testing.assert_close(value, loss(LOGITS, CLASSES) / 11, rtol=1e-12, atol=0)


class Doubled(nn.CrossEntropyLoss):
    def forward(self, logits: Tensor, labels: Tensor) -> Tensor:
        return 2 * super().forward(logits, labels)


ALL_IGNORED = torch.full((NUM_NODES,), -100)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: WholeBatchLoss(focal, CLASSES), "focal .* sum and normalizer="),
        (lambda: WholeBatchLoss(functional.cross_entropy, CLASSES), "cross_entropy .* normalizer="),
        (lambda: WholeBatchLoss(Doubled(), CLASSES), "Doubled .* normalizer="),
        (lambda: WholeBatchLoss(nn.CosineEmbeddingLoss(), CLASSES), "CosineEmbeddingLoss .* normalizer="),
        (lambda: WholeBatchLoss(nn.MSELoss(reduction="sum"), VALUES), 'MSELoss .* reduction="mean"'),
        (lambda: WholeBatchLoss(nn.MSELoss(reduction="none"), VALUES), 'MSELoss .* reduction="mean"'),
        (lambda: WholeBatchLoss(nn.KLDivLoss(), VALUES), "KLDivLoss .* normalizer="),
        (lambda: WholeBatchLoss(nn.MSELoss(), normalizer=3), 'MSELoss reduction="sum"'),
        (lambda: WholeBatchLoss(nn.MSELoss()), "either the labels"),
        (lambda: WholeBatchLoss(nn.MSELoss(), VALUES, normalizer=3), "not both"),
        (lambda: WholeBatchLoss(focal, normalizer=0), "divided by 0"),
        (lambda: WholeBatchLoss(focal, normalizer=float("nan")), "divided by nan"),
        (lambda: WholeBatchLoss(nn.CrossEntropyLoss(), ALL_IGNORED), "divided by 0"),
        (lambda: WholeBatchLoss(nn.CrossEntropyLoss(WEIGHTS), SOME_IGNORED), "from -1 to 4 for 5 class weights"),
        (lambda: WholeBatchLoss(nn.CrossEntropyLoss(WEIGHTS), CLASSES + 1), "from 1 to 5 for 5 class weights"),
        (lambda: WholeBatchLoss(nn.CrossEntropyLoss(), VALUES[:, 0]), "int64"),
        (lambda: WholeBatchLoss(nn.BCEWithLogitsLoss(VALUES), VALUES), "weight for every node"),
        (lambda: WholeBatchLoss(nn.MSELoss(), VALUES)(LOGITS, VALUES[:, :1]), r"\[37, 5\] .* \[37, 1\]"),
        (lambda: WholeBatchLoss(lambda logits, labels: logits, normalizer=3)(LOGITS, CLASSES), "sum over nodes"),
    ],
)
def test_what_would_be_another_loss_is_refused_in_one_line(make: Callable[[], object], words: str) -> None:
    with pytest.raises(BettyError, match=words) as caught:
        make()
    assert "\n" not in str(caught.value)


def test_a_function_that_takes_a_mean_is_refused_and_as_a_sum_it_is_taken():
    with pytest.raises(BettyError, match=r'is to be a sum; give cross_entropy reduction="sum"'):
        WholeBatchLoss(functional.cross_entropy, normalizer=NUM_NODES)
    loss = WholeBatchLoss(functools.partial(functional.cross_entropy, reduction="sum"), normalizer=NUM_NODES)
    torch.testing.assert_close(loss(LOGITS, CLASSES), functional.cross_entropy(LOGITS, CLASSES))
