"""What the benchmarks of memory share: models as they are in the middle of training, and the peak of what they take."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.optim import Adam, Optimizer

from betty import GAT, FullBatch, GraphSAGE, MicroBatch, PeakMemory
from betty.blocks import chain_blocks
from betty.datasets import Dataset
from betty.device_loader import DeviceLoader, LoadedBatch, Rows
from betty.memory.live_bytes import storage_bytes
from betty.micro_batch_train.out_of_memory import all_gradients_or_none
from betty.micro_batch_train.trainer import accumulate_gradients
from betty.models.layered_model import LayeredModel
from betty.training import backward_on_share, bytes_of_training_state

CPU = torch.device("cpu")
GAT_HEADS = 4
METHOD = "REG"
SEED = 1236


def new_model(name: str, dataset: Dataset, num_layers: int, num_hidden: int) -> LayeredModel:
    """A GAT where that is the name, else GraphSAGE with the aggregator of the name; dropout is 0.5."""
    torch.manual_seed(SEED)
    sizes = (dataset.num_features, num_hidden, dataset.num_classes, num_layers)
    return GAT(*sizes, num_heads=GAT_HEADS, dropout=0.5) if name == "GAT" else GraphSAGE(*sizes, name, dropout=0.5)


def experienced_optimizer(model: LayeredModel) -> Optimizer:
    """Adam with the state that it has from its first step on; that step changed nothing. Gradients are left: zeros."""
    optimizer = Adam(model.parameters(), lr=0.0)
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    optimizer.step()
    return optimizer


class CopyingLoader(DeviceLoader):
    """Copies blocks even on the CPU, as to another device: NumPy made them, whose memory the meter does not see."""

    def load_rows(self, batch: MicroBatch, prepare_s: float, features: Rows, target: Rows | None) -> LoadedBatch:
        layers = [(block.indptr.clone(), block.indices.clone()) for block in batch.blocks]
        copied = MicroBatch(chain_blocks(layers, batch.input_ids.clone()), batch.weight, batch.positions)
        return super().load_rows(copied, prepare_s, features, target)


def loader_of(dataset: Dataset) -> DeviceLoader:
    return CopyingLoader(dataset.features, dataset.labels, CPU)


def loaded_bytes(loaded: LoadedBatch) -> int:
    """Bytes of a micro-batch with its features and labels."""
    blocks = loaded.batch.blocks
    tensors = [tensor for block in blocks for tensor in (block.indptr, block.indices, block.src_ids)]
    return storage_bytes([*tensors, loaded.features, loaded.target])


def micro_batch_peak(model: LayeredModel, loaded: LoadedBatch, num_outputs: int, accumulates: bool) -> int:
    """The most bytes while a micro-batch trains that is there alone: of the model, Adam, the micro-batch, the rest.

    Args:
        model: to be trained.
        loaded: the micro-batch.
        num_outputs: output nodes of the full batch.
        accumulates: whether there are gradients from earlier micro-batches.
    """
    optimizer = experienced_optimizer(model)
    if not accumulates:
        optimizer.zero_grad(set_to_none=True)
    before = bytes_of_training_state(model, optimizer) + loaded_bytes(loaded)
    with PeakMemory(CPU) as meter, all_gradients_or_none(model.parameters()):
        backward_on_share(model, loaded, num_outputs)
    return before + meter.peak_bytes


def step_peak(model: LayeredModel, full_batch: FullBatch, parts: Sequence[Tensor], device_loader: DeviceLoader) -> int:
    """The most bytes during a whole step as the trainer makes it: model and Adam included, the loader one ahead."""
    optimizer = experienced_optimizer(model)
    optimizer.zero_grad(set_to_none=True)
    before = bytes_of_training_state(model, optimizer)
    with PeakMemory(CPU) as meter:
        accumulate_gradients(model, full_batch, parts, device_loader)
        optimizer.step()
    return before + meter.peak_bytes
