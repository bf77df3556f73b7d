"""Full batches with their plans, the next one being sampled and planned beside the training on this one."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict, dataclass, replace
from typing import Protocol

import torch
from torch import nn

from betty.background import require_room_for_a_thread
from betty.blocks import FullBatch, MicroBatch
from betty.full_batch import FullBatchSource
from betty.memory import states_its_memory, uncounted
from betty.micro_batch_train.graph_partitioner import positions_by_part
from betty.micro_batch_train.plan import MicroBatchPlan, model_estimate
from betty.micro_batch_train.stored_parts import StoredTensors, part_of_output
from betty.seeds import derive_seed

logger = logging.getLogger(__name__)


class Planner(Protocol):
    """Decides on the micro-batches of every full batch."""

    @property
    def serves_every_epoch(self) -> bool:
        """Whether the parts of a full batch are good for others of the same output nodes, too."""
        ...

    @property
    def settings(self) -> Mapping[str, object]:
        """What a plan depends on beside the full batch, the model and the seed, as JSON can hold it."""
        ...

    def plan(
        self,
        full_batch: FullBatch,
        model: nn.Module,
        seed: int,
        device: torch.device,
        others: Iterable[FullBatch] = (),
    ) -> MicroBatchPlan:
        """The micro-batches of a full batch, in the order in which to train on them.

        Args:
            full_batch: in host memory.
            model: to be trained on it.
            seed: the same seed gives the same plan.
            device: where to train.
            others: full batches of the same output nodes, in their order, that the plan is to serve, too.
        """
        ...

    @property
    def learned(self) -> dict[str, float]:
        """What plans depend on beside that: what was learned from micro-batches that did not fit."""
        ...

    def recall(self, learned: dict[str, float]) -> None:
        """Go on with what a planner of the same settings had learned."""
        ...

    def leave_more_room(self, num_micro_batches: int) -> None:
        """Take notice that a plan did not fit on the device, for the full batches to come.

        Args:
            num_micro_batches: into how many the last full batch had to be split in the end, more than were planned.
        """
        ...


@dataclass(frozen=True, eq=False)
class PlannedBatch:
    """A full batch and its plan; times in seconds, whether or not they passed beside the training.

    Args:
        full_batch: in host memory.
        plan: its parts; without estimates where these were planned for another full batch or another run.
        sample_s: that sampling or loading took.
        partition_s: that planning took.
    """

    full_batch: FullBatch
    plan: MicroBatchPlan
    sample_s: float
    partition_s: float


def partition_seed(seed: int, run: int, epoch: int, batch: int) -> int:
    """The seed of a full batch's partition."""
    return derive_seed(seed, "partition", run, epoch, batch)


class PlanningAhead:
    """Yields the full batches of a training with their plans; a background thread makes the next one meanwhile.

    Where the parts of a full batch serve every epoch, they are those of the first epoch, made once. Where there is a
    store and the model states its memory, they are kept there for later trainings.

    Args:
        full_batches: of every epoch.
        planner: decides on the micro-batches.
        device: where to train.
        seed: of the partitions.
        num_epochs: of the training; nothing is planned ahead for later ones.
        store: of parts, if they are to be kept.
    """

    def __init__(
        self,
        full_batches: FullBatchSource,
        planner: Planner,
        device: torch.device,
        seed: int,
        num_epochs: int,
        store: StoredTensors | None = None,
    ) -> None:
        self._full_batches = full_batches
        self._planner = planner
        self._device = device
        self._seed = seed
        self._num_epochs = num_epochs
        self._store = store
        self._background = ThreadPoolExecutor(max_workers=1, thread_name_prefix="planning-ahead")
        self._pending: tuple[tuple[int, int, int], Future[PlannedBatch]] | None = None
        self._kept: MicroBatchPlan | None = None

    def get(self, model: nn.Module, run: int, epoch: int, batch: int) -> PlannedBatch:
        """A full batch with its plan; the next one is begun."""
        position = (run, epoch, batch)
        if self._pending is None or self._pending[0] != position:
            self._begin(model, position)
        _, future = self._pending
        self._pending = None
        planned = future.result()
        following = (run, epoch, batch + 1) if batch + 1 < self._full_batches.num_batches else (run, epoch + 1, 0)
        if following[1] < self._num_epochs:
            self._begin(model, following)
        return planned

    @property
    def learned(self) -> dict[str, float]:
        """What the planner learned."""
        return self._planner.learned

    def recall(self, learned: dict[str, float]) -> None:
        """Go on with what such a planner had learned, before anything is planned."""
        self._planner.recall(learned)

    def leave_more_room(self, num_micro_batches: int) -> None:
        """Tell the planner that a plan did not fit; what was planned before is not used any more."""
        if self._pending is not None:
            self._pending[1].exception()
            self._pending = None
        self._kept = None
        self._planner.leave_more_room(num_micro_batches)

    def _begin(self, model: nn.Module, position: tuple[int, int, int]) -> None:
        require_room_for_a_thread()
        self._pending = (position, self._background.submit(self._make, model, *position))

    def _make(self, model: nn.Module, run: int, epoch: int, batch: int) -> PlannedBatch:
        with uncounted():  # what the host does for any device, and hands to other threads
            return self._sample_and_plan(model, run, epoch, batch)

    def _sample_and_plan(self, model: nn.Module, run: int, epoch: int, batch: int) -> PlannedBatch:
        start = time.perf_counter()
        full_batch = self._full_batches.load(epoch, batch)
        sampled = time.perf_counter()
        if not (self._planner.serves_every_epoch and self._full_batches.num_batches == 1):
            plan = self._plan(full_batch, model, run, epoch, batch)
        elif self._kept is None:
            first = full_batch if epoch == 0 else self._full_batches.load(0, 0)
            plan = self._plan(first, model, 0, 0, 0, num_epochs_to_serve=min(2, self._num_epochs))
            # The estimates are of the first epoch's blocks.
            self._kept = replace(plan, micro_batches=[], estimates=[])
            plan = plan if epoch == 0 else self._kept
        else:
            plan = self._kept
        return PlannedBatch(full_batch, plan, sampled - start, time.perf_counter() - sampled)

    def _plan(
        self, full_batch: FullBatch, model: nn.Module, run: int, epoch: int, batch: int, num_epochs_to_serve: int = 1
    ) -> MicroBatchPlan:
        # What another epoch samples tells how far samples differ; it is sampled when it is looked at.
        others = (self._full_batches.load(other, 0) for other in range(1, num_epochs_to_serve))
        seed = partition_seed(self._seed, run, epoch, batch)
        if self._store is None or not states_its_memory(model):
            # A plan depends on the model, and nothing but its estimate tells it from others.
            return self._planner.plan(full_batch, model, seed, self._device, others)
        settings = self._planner.settings
        key = {**settings, "seed": seed, "epoch": epoch, "batch": batch, "takes": self._takes(full_batch, model)}
        if num_epochs_to_serve > 1:
            key["serves_epochs"] = num_epochs_to_serve
        name = f"parts-{settings['method']}"
        stored = self._store.load(name, key)
        if stored is not None and stored.numel() == full_batch.output_ids.numel():
            logger.info("found the parts of epoch %d in %s", epoch, self._store.folder)
            return MicroBatchPlan(positions_by_part(stored.long()), [], [], settings.get("memory_budget"))
        plan = self._planner.plan(full_batch, model, seed, self._device, others)
        self._store.save(name, key, part_of_output(plan.parts))
        return plan

    def _takes(self, full_batch: FullBatch, model: nn.Module) -> dict[str, int]:
        """What the whole full batch would take, which tells models apart as far as a plan does."""
        return asdict(model_estimate(model, self._device)(MicroBatch(full_batch.blocks)))
