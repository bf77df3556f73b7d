"""Training by micro-batches: gradients accumulate over a full batch, then one optimizer step."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from betty.blocks import FullBatch
from betty.device_loader import DeviceLoader
from betty.full_batch import FullBatchSource
from betty.memory import states_its_memory, uncounted
from betty.micro_batch_train.graph_partitioner import (
    SERVE_EVERY_EPOCH,
    Partitioner,
    PartitionProblem,
    re_partition,
)
from betty.micro_batch_train.memory_watch import MemoryWatch
from betty.micro_batch_train.output_graphs import MAX_SHARING
from betty.micro_batch_train.plan import MicroBatchPlan, model_estimate
from betty.micro_batch_train.planner import MARGIN
from betty.micro_batch_train.planning_ahead import Planner, PlanningAhead
from betty.micro_batch_train.stage_training import Stage, accumulate_in_stages
from betty.micro_batch_train.step_record import StepRecord
from betty.micro_batch_train.stored_parts import StoredTensors
from betty.models import dropout_key
from betty.seeds import derive_seed
from betty.training import EpochRecord

logger = logging.getLogger(__name__)


@dataclass
class Partitioning:
    """Partitions every full batch into the same number of parts: a :class:`Planner` that knows no budget.

    Args:
        method: name of a method of :func:`~betty.partition`.
        num_parts: micro-batches of a full batch; it grows where they do not fit.
        num_re_partition: how often to split the micro-batch with the most input nodes in two.
        re_partition_method: the method for that.
        reg_max_degree: output nodes that may share a node for it to count in ``REG``.
        leaves_of: the leaves of a known locality order, from the ids of output nodes.
    """

    method: str
    num_parts: int
    num_re_partition: int
    re_partition_method: str
    reg_max_degree: int = MAX_SHARING
    leaves_of: Callable[[Tensor], Tensor] | None = None

    @property
    def serves_every_epoch(self) -> bool:
        """Whether the parts of a full batch are good for others of the same output nodes, too."""
        return self.method in SERVE_EVERY_EPOCH

    @property
    def settings(self) -> Mapping[str, object]:
        """What a plan depends on beside the full batch, the model and the seed."""
        return {field.name: getattr(self, field.name) for field in fields(self) if field.name != "leaves_of"}

    def plan(
        self,
        full_batch: FullBatch,
        model: nn.Module,
        seed: int,
        device: torch.device,
        others: Iterable[FullBatch] = (),
    ) -> MicroBatchPlan:
        """So many parts, which are even in memory with methods that can make them so where that takes no dry run."""
        estimate = model_estimate(model, device) if states_its_memory(model) else None
        leaves = self.leaves_of(full_batch.output_ids) if self.leaves_of else None
        problem = PartitionProblem(full_batch, seed, estimate, leaves, self.reg_max_degree)
        parts = Partitioner(problem, self.method).parts(self.num_parts)
        re_partition_flags = (self.num_re_partition, self.re_partition_method, seed, self.reg_max_degree)
        return MicroBatchPlan(re_partition(full_batch, parts, *re_partition_flags), [], [])

    def leave_more_room(self, num_micro_batches: int) -> None:
        """Make as many micro-batches of the full batches to come, and one more than so far at least."""
        self.num_parts = max(self.num_parts + 1, num_micro_batches - self.num_re_partition)

    @property
    def learned(self) -> dict[str, float]:
        """The number of parts, which grows."""
        return {"num_parts": self.num_parts}

    def recall(self, learned: dict[str, float]) -> None:
        """Go on with what such a planner had learned."""
        self.num_parts = int(learned["num_parts"])


def accumulate_gradients(
    model: nn.Module,
    full_batch: FullBatch,
    parts: Sequence[Tensor],
    device_loader: DeviceLoader,
    watch: MemoryWatch | None = None,
    *,
    allow_inexact: bool = False,
) -> StepRecord:
    """Add the full batch's gradient to the parameters', in a single stage, one micro-batch at a time.

    See :func:`~betty.micro_batch_train.stage_training.accumulate_in_stages`.

    Args:
        model: called as ``model(blocks, features)``.
        full_batch: in host memory.
        parts: int64 tensors of positions in ``full_batch.output_ids``, which together hold every position once.
        device_loader: brings micro-batches to the model's device.
        watch: takes notice of every micro-batch; one that is over its limit is split in two before it is loaded.
        allow_inexact: whether to train by several micro-batches a model with layers that mix the nodes of a batch.
    """
    stage = Stage(range(len(full_batch.blocks)), parts, watch)
    return accumulate_in_stages(model, full_batch, [stage], device_loader, allow_inexact=allow_inexact)


class MicroBatchTrainer:
    """Trains on full batches that need not fit on the device: the step of the whole batch, in the memory of a part.

    Each full batch is partitioned, its micro-batches pass over the device one after the other and leave their
    gradients, and the optimizer makes one step.

    Args:
        full_batches: of every epoch.
        planner: decides on the micro-batches of each, and is told when they did not fit on the device.
        device_loader: brings micro-batches to the device.
        seed: of the partitions and of exact dropout.
        num_epochs: of the training; the first full batch of the next epoch is planned beside the end of this one.
        store: of parts, if they are to be kept for later trainings.
        allow_inexact: see :func:`accumulate_gradients`.
    """

    def __init__(
        self,
        full_batches: FullBatchSource,
        planner: Planner,
        device_loader: DeviceLoader,
        seed: int,
        num_epochs: int = 1,
        store: StoredTensors | None = None,
        allow_inexact: bool = False,
    ) -> None:
        self._num_batches = full_batches.num_batches
        self._planned = PlanningAhead(full_batches, planner, device_loader.device, seed, num_epochs, store)
        self._device_loader = device_loader
        self._seed = seed
        self._allow_inexact = allow_inexact

    @property
    def learned(self) -> dict[str, float]:
        """What the planner learned from micro-batches that did not fit."""
        return self._planned.learned

    def recall(self, learned: dict[str, float]) -> None:
        """Go on with what such a trainer had learned."""
        self._planned.recall(learned)

    def train_epoch(self, model: nn.Module, optimizer: Optimizer, run: int, epoch: int) -> EpochRecord:
        """Train on every full batch of an epoch."""
        sample_s, partition_s, inputs, outputs, steps, estimated_peaks = 0.0, 0.0, 0, 0, [], []
        for batch in range(self._num_batches):
            with uncounted():  # the one before is let go, which was made in the background
                planned = self._planned.get(model, run, epoch, batch)
            full_batch, plan = planned.full_batch, planned.plan
            watch = self._watch(plan, model)

            optimizer.zero_grad(set_to_none=True)
            with dropout_key(model, derive_seed(self._seed, "dropout", run, epoch, batch)):
                step = accumulate_gradients(
                    model, full_batch, plan.parts, self._device_loader, watch, allow_inexact=self._allow_inexact
                )
            optimizer.step()
            if step.num_shortages:
                self._planned.leave_more_room(len(step.batches))

            num_outputs = full_batch.output_ids.numel()
            sample_s += planned.sample_s
            partition_s += planned.partition_s
            inputs += full_batch.input_ids.numel()
            outputs += num_outputs
            steps.append((num_outputs, step))
            estimated_peak = watch.peak if watch else plan.peak
            estimated_peaks += [] if estimated_peak is None else [estimated_peak]
        with uncounted():
            del planned, full_batch, plan
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

    def _watch(self, plan: MicroBatchPlan, model: nn.Module) -> MemoryWatch | None:
        """Estimates the micro-batches of parts that were not planned with these blocks, unless that takes dry runs."""
        if plan.estimates or (plan.memory_budget is None and not states_its_memory(model)):
            return None
        limit = None if plan.memory_budget is None else int(plan.memory_budget * (1 - MARGIN))
        return MemoryWatch(model_estimate(model, self._device_loader.device, self._device_loader.num_features), limit)
