import pytest
import torch
from torch import nn

from betty import GraphSAGE, estimate_memory
from betty.memory import MemoryEstimate, dry_run, states_its_memory
from betty.models.layered_model import LayeredModel
from tests.random_blocks import random_full_batch

BLOCKS = random_full_batch([300, 120, 40], 9, seed=1).blocks


class OwnLayer(nn.Module):
    """A layer without a method ``memory``."""

    def __init__(self, in_feats: int, out_feats: int) -> None:
        super().__init__()
        self.linear = nn.Linear(in_feats, out_feats)

    def forward(self, block, x):
        return self.linear(x[: block.num_dst])


def test_a_layer_that_does_not_state_its_memory_makes_the_estimate_a_dry_run() -> None:
    model = LayeredModel(OwnLayer, 20, 16, 3, 2, dropout=0)
    assert states_its_memory(GraphSAGE(20, 16, 3, 2))
    assert not states_its_memory(model)
    found, run = estimate_memory(model, BLOCKS, optimizer_states=3), dry_run(model, BLOCKS, 20)
    parameters = sum(parameter.nbytes for parameter in model.parameters())
    assert found == MemoryEstimate(**vars(run), aggregator=0, optimizer=3 * parameters)
    assert found.peak == run.peak + 3 * parameters


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_lasting_parts_are_those_of_the_tensors_each_rounded_up(device: str) -> None:
    model = GraphSAGE(20, 16, 3, 2)
    unit = 512 if device == "cuda" else 1

    def rounded(sizes: list[int]) -> int:
        return sum((size + unit - 1) // unit * unit for size in sizes)

    sizes = [parameter.nbytes for parameter in model.parameters()]
    found = estimate_memory(model, BLOCKS, optimizer_states=2, device=device)
    assert found.parameters == rounded(sizes)
    assert found.optimizer == rounded([2 * size for size in sizes])
    block_tensors = [tensor for block in BLOCKS for tensor in (block.indptr, block.indices)]
    assert found.blocks == rounded([BLOCKS[0].src_ids.nbytes, *(tensor.nbytes for tensor in block_tensors)])
    assert found.input_features == rounded([300 * 20 * 4])
    assert found.labels == rounded([40 * 8])
    first_micro_batch = estimate_memory(model, BLOCKS, accumulates=False, device=device)
    assert first_micro_batch.gradients < found.gradients
    assert torch.tensor([*vars(found).values()]).sum() == found.peak
