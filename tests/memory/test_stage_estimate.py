"""What a micro-batch of a stage takes: results get a gradient instead of a loss, and what is read gets one, too."""

from itertools import pairwise

import pytest
import torch
from torch import Tensor, nn

from betty import Block, PeakMemory, estimate_memory
from betty.micro_batch_train.out_of_memory import all_gradients_or_none
from betty.micro_batch_train.stages import compute_layers
from betty.training import share_of_loss
from tests.memory.test_estimate import FULL_BATCHES, MODELS, make_model

WIDTHS, NUM_LAYERS = (30, 16, 5), 3
LAYERS = [range(1), range(1, 2), range(2), range(1, 3), range(2, 3)]


class SumsOfNeighbours(nn.Module):
    """A model by its layers, which does not state what they take."""

    num_layers, widths = NUM_LAYERS, (30, 16, 16, 5)

    def __init__(self) -> None:
        super().__init__()
        self.linears = nn.ModuleList(nn.Linear(*pair) for pair in pairwise(self.widths))

    def layer_forward(self, i: int, block: Block, h: Tensor) -> Tensor:
        rows = torch.searchsorted(block.indptr[1:], torch.arange(block.num_edges), right=True)
        summed = torch.zeros(block.num_dst, h.shape[1]).index_add(0, rows, h.index_select(0, block.indices))
        return self.linears[i](summed).tanh()


def measured_bytes(model: nn.Module, layers: range, name: str) -> int:
    batch = FULL_BATCHES[name].of_layers(layers)
    x = torch.randn(batch.input_ids.numel(), model.widths[layers.start]).requires_grad_(layers.start > 0)
    num_outputs, is_last = batch.output_ids.numel(), layers.stop == NUM_LAYERS
    target = torch.randint(5, (num_outputs,)) if is_last else torch.randn(num_outputs, model.widths[layers.stop])
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    parameters = sum(parameter.nbytes for parameter in model.parameters())
    blocks = sum(block.indptr.nbytes + block.indices.nbytes for block in batch.blocks) + batch.input_ids.nbytes
    with PeakMemory() as meter, all_gradients_or_none(model.parameters()):
        results = compute_layers(model, layers, batch.blocks, x)
        if is_last:
            share_of_loss(results, target, num_outputs).backward()
        else:
            results.backward(target)
    return 4 * parameters + x.nbytes + target.nbytes + blocks + meter.peak_bytes


@pytest.mark.parametrize("name", FULL_BATCHES)
@pytest.mark.parametrize("layers", LAYERS, ids=str)
@pytest.mark.parametrize("kind", MODELS)
def test_the_estimate_of_a_stage_is_what_its_step_takes(kind: str, layers: range, name: str) -> None:
    model = make_model(kind, WIDTHS, NUM_LAYERS, dropout=0.5)
    blocks = FULL_BATCHES[name].of_layers(layers).blocks
    estimate = estimate_memory(model, blocks, layers=layers)
    assert estimate.peak == pytest.approx(measured_bytes(model, layers, name), rel=0.03)


@pytest.mark.parametrize("layers", LAYERS, ids=str)
def test_a_dry_run_of_a_stage_is_what_its_step_takes(layers: range) -> None:
    model = SumsOfNeighbours()
    estimate = estimate_memory(model, FULL_BATCHES["wide"].of_layers(layers).blocks, layers=layers)
    assert estimate.peak == pytest.approx(measured_bytes(model, layers, "wide"), rel=0.05)
