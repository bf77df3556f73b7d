"""Training by micro-batches: gradients accumulate over a full batch, then one optimizer step."""

from __future__ import annotations

import logging
import time
from collections.abc import Generator, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from betty.blocks import FullBatch
from betty.device_loader import DeviceLoader, LoadedBatch
from betty.errors import BettyError
from betty.full_batch import FullBatchSource
from betty.memory import states_its_memory, uncounted
from betty.micro_batch_train.block_dataloader import MicroBatchLoader
from betty.micro_batch_train.graph_partitioner import halves, partition, re_partition
from betty.micro_batch_train.out_of_memory import all_gradients_or_none, is_out_of_memory, let_go
from betty.micro_batch_train.output_graphs import MAX_SHARING
from betty.micro_batch_train.plan import MicroBatchPlan, estimated, model_estimate
from betty.models import dropout_key
from betty.seeds import derive_seed
from betty.training import BatchRecord, EpochRecord, backward_on_share

logger = logging.getLogger(__name__)


class Planner(Protocol):
    """Decides on the micro-batches of every full batch."""

    def plan(self, full_batch: FullBatch, model: nn.Module, seed: int, device: torch.device) -> MicroBatchPlan:
        """The micro-batches of a full batch, in the order in which to train on them.

        Args:
            full_batch: in host memory.
            model: to be trained on it.
            seed: the same seed gives the same plan.
            device: where to train.
        """
        ...

    def leave_more_room(self, num_micro_batches: int) -> None:
        """Take notice that a plan did not fit on the device, for the full batches to come.

        Args:
            num_micro_batches: into how many the last full batch had to be split in the end, more than were planned.
        """
        ...


@dataclass
class Partitioning:
    """Partitions every full batch into the same number of parts: a :class:`Planner` that knows no budget.

    Args:
        method: name of a method of :func:`~betty.partition`.
        num_parts: micro-batches of a full batch; it grows where they do not fit.
        num_re_partition: how often to split the micro-batch with the most input nodes in two.
        re_partition_method: the method for that.
        reg_max_degree: output nodes that may share a node for it to count in ``REG``.
    """

    method: str
    num_parts: int
    num_re_partition: int
    re_partition_method: str
    reg_max_degree: int = MAX_SHARING

    def plan(self, full_batch: FullBatch, model: nn.Module, seed: int, device: torch.device) -> MicroBatchPlan:
        """So many parts, with what they take where that takes no dry run."""
        bound = self.reg_max_degree
        parts = partition(full_batch, self.num_parts, self.method, seed, reg_max_degree=bound)
        parts = re_partition(full_batch, parts, self.num_re_partition, self.re_partition_method, seed, bound)
        return estimated(full_batch, parts, model_estimate(model, device) if states_its_memory(model) else None)

    def leave_more_room(self, num_micro_batches: int) -> None:
        """Make as many micro-batches of the full batches to come, and one more than so far at least."""
        self.num_parts = max(self.num_parts + 1, num_micro_batches - self.num_re_partition)


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

    @classmethod
    def of_all(cls, steps: Sequence[StepRecord]) -> StepRecord:
        """What several of them are together."""
        return cls(
            loss=sum(step.loss for step in steps),
            split_s=sum(step.split_s for step in steps),
            transfer_s=sum(step.transfer_s for step in steps),
            batches=[record for step in steps for record in step.batches],
        )


def accumulate_gradients(
    model: nn.Module, full_batch: FullBatch, parts: Sequence[Tensor], device_loader: DeviceLoader
) -> StepRecord:
    """Add the full batch's gradient to the parameters', one micro-batch at a time.

    A micro-batch that runs out of memory, while it is loaded or trained on, is dropped with all that it left behind,
    split in two and tried again, as often as it takes. The gradient is the same to rounding: each output node's loss
    is divided by the number of those of the full batch, however they are split.

    Args:
        model: called as ``model(blocks, features)``.
        full_batch: in host memory.
        parts: int64 tensors of positions in ``full_batch.output_ids``, which together hold every position once.
        device_loader: brings micro-batches to the model's device.

    Returns:
        What was done; its batches are those that were trained on in the end.

    Raises:
        BettyError: the parts overlap or leave out output nodes, or a single output node does not fit on the device.
    """
    loader = MicroBatchLoader(full_batch, parts, device_loader)
    device, num_outputs = device_loader.device, full_batch.output_ids.numel()
    waiting, steps = list(parts), []
    while waiting:
        trained = _train_while_memory_lasts(model, loader.load(waiting), num_outputs)
        steps += trained
        del waiting[: len(trained)]
        if waiting:
            _empty_cache(device)
            part = waiting.pop(0)
            remedy = "split in two" if part.numel() > 1 else "tried again alone"
            number, of = len(steps) + 1, len(steps) + 1 + len(waiting)
            message = "micro-batch %d of %d, output nodes: %d, ran out of memory on %s: %s"
            logger.warning(message, number, of, part.numel(), device, remedy)
            if part.numel() > 1:
                waiting = halves(full_batch, part) + waiting
            elif alone := _train_while_memory_lasts(model, loader.load([part]), num_outputs):
                steps += alone
            else:
                raise BettyError(
                    f"output node {int(full_batch.output_ids[part])} does not fit on {device}, even as a micro-batch "
                    "of its own; take smaller fan-outs or fewer hidden channels, or free memory there"
                )
    return StepRecord.of_all(steps)


def _train_while_memory_lasts(
    model: nn.Module, micro_batches: Generator[LoadedBatch, None, None], num_outputs: int
) -> list[StepRecord]:
    """Train on one micro-batch after the other, until there are no more or one runs out of memory.

    Of that one, and of the next that was on its way, nothing is left.

    Returns:
        One record per micro-batch that was trained on.
    """
    steps = []
    with closing(micro_batches):
        try:
            for loaded in micro_batches:
                steps.append(_train(model, loaded, num_outputs))
                # Now, and not by the next one taking its name: the one after that is loaded from then on.
                del loaded
        except Exception as error:
            if not is_out_of_memory(error):
                raise
            let_go(error)
    return steps


def _train(model: nn.Module, loaded: LoadedBatch, num_outputs: int) -> StepRecord:
    with all_gradients_or_none(model.parameters()):
        share, record = backward_on_share(model, loaded, num_outputs)
        loss = share.item()
    return StepRecord(loss, loaded.prepare_s, loaded.transfer_s, [record])


def _empty_cache(device: torch.device) -> None:
    """Give the driver back what PyTorch keeps for later: pieces of it may be too small for what comes."""
    if device.type == "cuda":
        torch.cuda.empty_cache()


class MicroBatchTrainer:
    """Trains on full batches that need not fit on the device: the step of the whole batch, in the memory of a part.

    Each full batch is partitioned, its micro-batches pass over the device one after the other and leave their
    gradients, and the optimizer makes one step.

    Args:
        full_batches: of every epoch.
        planner: decides on the micro-batches of each, and is told when they did not fit on the device.
        device_loader: brings micro-batches to the device.
        seed: of the partitions and of exact dropout.
    """

    def __init__(self, full_batches: FullBatchSource, planner: Planner, device_loader: DeviceLoader, seed: int) -> None:
        self._full_batches = full_batches
        self._planner = planner
        self._device_loader = device_loader
        self._seed = seed

    def train_epoch(self, model: nn.Module, optimizer: Optimizer, run: int, epoch: int) -> EpochRecord:
        """Train on every full batch of an epoch."""
        sample_s, partition_s, inputs, outputs, steps, estimated_peaks = 0.0, 0.0, 0, 0, [], []
        for batch in range(self._full_batches.num_batches):
            start = time.perf_counter()
            with uncounted():  # what the host does for any device
                full_batch = self._full_batches.load(epoch, batch)
                sampled = time.perf_counter()
                parts, estimated_peak = self._plan(full_batch, model, partition_seed(self._seed, run, epoch, batch))
                partitioned = time.perf_counter()

            optimizer.zero_grad(set_to_none=True)
            with dropout_key(model, derive_seed(self._seed, "dropout", run, epoch, batch)):
                step = accumulate_gradients(model, full_batch, parts, self._device_loader)
            optimizer.step()
            if len(step.batches) > len(parts):
                self._planner.leave_more_room(len(step.batches))

            num_outputs = full_batch.output_ids.numel()
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
            sample_s=sample_s,
            partition_s=partition_s,
            split_s=sum(step.split_s for _, step in steps),
            transfer_s=sum(step.transfer_s for _, step in steps),
            batches=micro_batches,
        )

    def _plan(self, full_batch: FullBatch, model: nn.Module, seed: int) -> tuple[list[Tensor], int | None]:
        """The parts and the estimated peak; not the micro-batches, which the loader cuts again one by one."""
        plan = self._planner.plan(full_batch, model, seed, self._device_loader.device)
        return plan.parts, plan.peak
