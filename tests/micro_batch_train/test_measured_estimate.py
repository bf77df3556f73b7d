"""Models that no dry run can follow are planned for by steps that are measured."""

import copy

import pytest
import torch
from torch import Tensor, nn

from betty import BettyError, Block, MicroBatch, PeakMemory, estimate_memory, plan_micro_batches
from betty.memory import MemoryEstimate
from betty.micro_batch_train.cutting import MicroBatchCutter
from betty.micro_batch_train.measured_estimate import MeasuredEstimate
from betty.micro_batch_train.plan import MicroBatchPlan
from tests.random_blocks import neighbourhoods

FULL_BATCH = neighbourhoods([12000, 6000, 2400], max_degree=6, seed=0)
NUM_FEATURES, NUM_HIDDEN, NUM_CLASSES = 40, 24, 5


class Layer(nn.Module):
    """Looks into its block, which no fake tensor lets it do, and makes a row per edge."""

    def __init__(self, in_feats: int, out_feats: int) -> None:
        super().__init__()
        self.linear = nn.Linear(in_feats, out_feats)

    def forward(self, block: Block, x: Tensor) -> Tensor:
        destinations = torch.repeat_interleave(block.in_degrees())
        sums = x.new_zeros(block.num_dst, x.shape[1]).index_add(0, destinations, x[block.indices.long()])
        return self.linear(sums).tanh()


class Network(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([Layer(NUM_FEATURES, NUM_HIDDEN), Layer(NUM_HIDDEN, NUM_CLASSES)])
        self.dropout = nn.Dropout(0.5)

    def forward(self, blocks: list[Block], x: Tensor) -> Tensor:
        return self.layers[1](blocks[1], self.dropout(self.layers[0](blocks[0], x)))


def measured_need(model: nn.Module, plan: MicroBatchPlan) -> int:
    """Bytes at the peak of training on a plan's micro-batches, all that lasts and the next one included."""
    parameters = sum(parameter.nbytes for parameter in model.parameters())
    peaks = []
    for micro_batch, estimate in zip(plan.micro_batches, plan.estimates, strict=True):
        x = torch.randn(micro_batch.input_ids.numel(), NUM_FEATURES)
        labels = torch.zeros(micro_batch.output_ids.numel(), dtype=torch.int64)
        model.zero_grad(set_to_none=True)
        with PeakMemory() as meter:
            nn.functional.cross_entropy(model(micro_batch.blocks, x), labels, reduction="sum").backward()
        tensors = [tensor for block in micro_batch.blocks for tensor in (block.indptr, block.indices)]
        loaded = sum(tensor.nbytes for tensor in (x, labels, micro_batch.input_ids, *tensors))
        assert loaded == estimate.loaded
        peaks.append(4 * parameters + loaded + meter.peak_bytes)
    beside = [estimate.loaded for estimate in plan.estimates[1:]] + [0]
    return max(peak + loaded for peak, loaded in zip(peaks, beside, strict=True))


def budget_for(model: nn.Module, num_parts: int) -> int:
    whole = MeasuredEstimate(model, FULL_BATCH, 1 << 40, NUM_FEATURES, "cpu")(MicroBatch(FULL_BATCH.blocks))
    return whole.static + (whole.peak - whole.static) // num_parts


@pytest.mark.parametrize("num_parts", [2, 5])
def test_a_plan_fits_the_budget_and_fills_it(num_parts: int) -> None:
    model = Network()
    budget = budget_for(model, num_parts)
    before, generator = copy.deepcopy(model.state_dict()), torch.get_rng_state()
    plan = plan_micro_batches(FULL_BATCH, model, budget, num_features=NUM_FEATURES)
    assert torch.equal(torch.get_rng_state(), generator)
    torch.testing.assert_close(model.state_dict(), before, rtol=0, atol=0)
    assert all(parameter.grad is None for parameter in model.parameters())
    assert len(plan.parts) > 1
    assert 0.7 * budget < measured_need(model, plan) <= budget


@pytest.mark.parametrize("size", [30, 600, 2400])
def test_estimates_are_near_what_steps_take(size: int) -> None:
    model = Network()
    estimate = MeasuredEstimate(model, FULL_BATCH, 1 << 40, NUM_FEATURES, "cpu")
    part = torch.arange(2400).roll(1000)[:size].sort().values
    micro_batch = MicroBatchCutter(FULL_BATCH).cut([part])[0]
    plan = MicroBatchPlan([part], [micro_batch], [estimate(micro_batch)])
    assert plan.peak == pytest.approx(measured_need(model, plan), rel=0.1)


def test_a_plan_is_made_again_where_its_largest_micro_batch_takes_more_than_estimated(monkeypatch) -> None:
    """What is only made for many output nodes is not seen in the steps of few."""

    class More(Network):
        def forward(self, blocks: list[Block], x: Tensor) -> Tensor:
            logits = super().forward(blocks, x)
            return logits + torch.zeros(len(logits), 500).mean() if len(logits) > 600 else logits

    learned = []

    def learn_from(self: MeasuredEstimate, plan: MicroBatchPlan) -> bool:
        learned.append(original(self, plan))
        return learned[-1]

    original = MeasuredEstimate.learn_from
    monkeypatch.setattr(MeasuredEstimate, "learn_from", learn_from)
    model = More()
    budget = budget_for(model, 2)
    plan = plan_micro_batches(FULL_BATCH, model, budget, num_features=NUM_FEATURES)
    assert learned[0]
    assert not learned[-1]
    assert measured_need(model, plan) <= budget


def test_layers_of_dgl_are_planned_for() -> None:
    pytest.importorskip("betty.dgl_compat")
    from betty.dgl_compat import dgl

    class OfDGL(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = nn.ModuleList(
                [
                    dgl.nn.SAGEConv(NUM_FEATURES, NUM_HIDDEN, "mean"),
                    dgl.nn.SAGEConv(NUM_HIDDEN, NUM_CLASSES, "mean"),
                ]
            )

        def forward(self, blocks: list[Block], x: Tensor) -> Tensor:
            x = self.layers[0](blocks[0].to_dgl(), x).relu()
            return self.layers[1](blocks[1].to_dgl(), x)

    model = OfDGL()
    with pytest.raises(BettyError, match="plan_micro_batches"):
        estimate_memory(model, FULL_BATCH.blocks, num_features=NUM_FEATURES)
    budget = budget_for(model, 3)
    plan = plan_micro_batches(FULL_BATCH, model, budget, num_features=NUM_FEATURES)
    assert len(plan.parts) > 1
    assert measured_need(model, plan) <= budget
    assert isinstance(plan.estimates[0], MemoryEstimate)


def test_a_step_that_fails_is_told_in_one_line() -> None:
    class Broken(Network):
        def forward(self, blocks: list[Block], x: Tensor) -> Tensor:
            return self.not_there

    with pytest.raises(BettyError, match=r"a step of Broken .*not_there") as caught:
        plan_micro_batches(FULL_BATCH, Broken(), 1 << 30, num_features=NUM_FEATURES)
    assert "\n" not in str(caught.value)
