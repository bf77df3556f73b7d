"""Training by micro-batches: gradients accumulate over a full batch, then one optimizer step."""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from betty.blocks import FullBatch
from betty.device_loader import DeviceLoader, LoadedBatch
from betty.full_batch import FullBatchSource
from betty.micro_batch_train.block_dataloader import MicroBatchLoader
from betty.micro_batch_train.graph_partitioner import partition, re_partition
from betty.micro_batch_train.plan import MicroBatchPlan, estimated, model_estimate
from betty.models import dropout_key
from betty.seeds import derive_seed
from betty.training import BatchRecord, EpochRecord, PeakOfEpoch, backward_on_share


@dataclass(frozen=True)
class Partitioning:
    """How a full batch is partitioned.

    Args:
        method: name of a method of :func:`~betty.partition`.
        num_parts: micro-batches of a full batch.
        num_re_partition: how often to split the micro-batch with the most input nodes in two.
        re_partition_method: the method for that.
    """

    method: str
    num_parts: int
    num_re_partition: int
    re_partition_method: str

    def parts(self, full_batch: FullBatch, seed: int) -> list[Tensor]:
        """Positions of the output nodes of every micro-batch."""
        parts = partition(full_batch, self.num_parts, self.method, seed)
        return re_partition(full_batch, parts, self.num_re_partition, self.re_partition_method, seed)

    def plan(self, full_batch: FullBatch, model: nn.Module, seed: int, device: torch.device) -> MicroBatchPlan:
        """These parts, with what they take where the model's memory can be estimated."""
        return estimated(full_batch, self.parts(full_batch, seed), model_estimate(model, device))


class Planner(Protocol):
    """Plans the micro-batches of full batches: :class:`Partitioning`, or :class:`BudgetPartitioning` for a budget."""

    def plan(self, full_batch: FullBatch, model: nn.Module, seed: int, device: torch.device) -> MicroBatchPlan:
        """The micro-batches of a full batch."""


def partition_seed(seed: int, run: int, epoch: int, batch: int) -> int:
    """The seed of a full batch's partition."""
    return derive_seed(seed, "partition", run, epoch, batch)


@dataclass(frozen=True)
class StepRecord:
    """What :func:`accumulate_gradients` did; times in seconds."""

    loss: float
    split_s: float
    transfer_s: float
    batches: list[BatchRecord]


def accumulate_gradients(model: nn.Module, micro_batches: Iterable[LoadedBatch], num_outputs: int) -> StepRecord:
    """Add the full batch's gradient to the parameters', one micro-batch at a time.

    Args:
        model: called as ``model(blocks, features)``.
        micro_batches: all micro-batches of a full batch, on the model's device.
        num_outputs: output nodes of the full batch.
    """
    loss, split_s, transfer_s, batches = 0.0, 0.0, 0.0, []
    for loaded in micro_batches:
        share, record = backward_on_share(model, loaded, num_outputs)
        loss += share.item()
        split_s += loaded.prepare_s
        transfer_s += loaded.transfer_s
        batches.append(record)
    return StepRecord(loss, split_s, transfer_s, batches)


class MicroBatchTrainer:
    """Trains on full batches that need not fit on the device: the step of the whole batch, in the memory of a part.

    Each full batch is partitioned, its micro-batches pass over the device one after the other and leave their
    gradients, and the optimizer makes one step.

    Args:
        full_batches: of every epoch.
        partitioning: how to make micro-batches of them.
        device_loader: brings micro-batches to the device.
        seed: of the partitions and of exact dropout.
    """

    def __init__(
        self, full_batches: FullBatchSource, partitioning: Planner, device_loader: DeviceLoader, seed: int
    ) -> None:
        self._full_batches = full_batches
        self._partitioning = partitioning
        self._device_loader = device_loader
        self._seed = seed

    def train_epoch(self, model: nn.Module, optimizer: Optimizer, run: int, epoch: int) -> EpochRecord:
        """Train on every full batch of an epoch."""
        memory = PeakOfEpoch(self._device_loader.device)
        sample_s, partition_s, inputs, outputs, steps, estimated_peaks = 0.0, 0.0, 0, 0, [], []
        for batch in range(self._full_batches.num_batches):
            start = time.perf_counter()
            full_batch = self._full_batches.load(epoch, batch)
            sampled = time.perf_counter()
            parts, estimated_peak = self._plan(full_batch, model, partition_seed(self._seed, run, epoch, batch))
            partitioned = time.perf_counter()

            optimizer.zero_grad(set_to_none=True)
            num_outputs = full_batch.output_ids.numel()
            loader = MicroBatchLoader(full_batch, parts, self._device_loader)
            with dropout_key(model, derive_seed(self._seed, "dropout", run, epoch, batch)):
                step = accumulate_gradients(model, loader, num_outputs)
            optimizer.step()

            sample_s += sampled - start
            partition_s += partitioned - sampled
            inputs += full_batch.input_ids.numel()
            outputs += num_outputs
            steps.append((num_outputs, step))
            estimated_peaks += [] if estimated_peak is None else [estimated_peak]
        micro_batches = [record for _, step in steps for record in step.batches]
        return EpochRecord(
            loss=sum(num_outputs * step.loss for num_outputs, step in steps) / outputs,
            redundancy=sum(record.input_nodes for record in micro_batches) / inputs,
            estimated_peak_bytes=max(estimated_peaks, default=None),
            peak_memory_bytes=memory.peak_bytes,
            sample_s=sample_s,
            partition_s=partition_s,
            split_s=sum(step.split_s for _, step in steps),
            transfer_s=sum(step.transfer_s for _, step in steps),
            batches=micro_batches,
        )

    def _plan(self, full_batch: FullBatch, model: nn.Module, seed: int) -> tuple[list[Tensor], int | None]:
        """The parts and the estimated peak; not the micro-batches, which the loader cuts again one by one."""
        plan = self._partitioning.plan(full_batch, model, seed, self._device_loader.device)
        return plan.parts, plan.peak
