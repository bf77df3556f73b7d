"""The gradient of a full batch stage by stage: forward without gradients, then backward, each stage computed again.

A stage before the last one goes forward without gradients and writes its results where the next one reads them. The
last one computes the loss and goes backward at once. Then the others are computed again, from the last to the first,
each with the gradient of its results, and add the gradients of what they read to those of the stage before.

A single stage is the paper's training: every micro-batch computes all layers, and whatever others compute as well. A
stage per layer computes every edge of the full batch twice at the most, however many micro-batches there are.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

import torch
from torch import Tensor, nn

from betty.blocks import FullBatch, MicroBatch
from betty.device_loader import DeviceLoader, LoadedBatch, Rows
from betty.errors import BettyError
from betty.micro_batch_train.activations import Activations
from betty.micro_batch_train.block_dataloader import MicroBatchLoader, Watch
from betty.micro_batch_train.out_of_memory import all_gradients_or_none
from betty.micro_batch_train.resting import Offload, RestingPlaces
from betty.micro_batch_train.stages import compute_layers, has_batch_norm, mixing_layer
from betty.micro_batch_train.step_record import StepRecord
from betty.micro_batch_train.walk import Walk, first_in_halves, walk
from betty.models.node_mixing import inexact_by
from betty.run_folder import BatchRecord
from betty.seeds import random_state, set_random_state
from betty.training import seconds_since, share_of_loss

Result = TypeVar("Result")


@dataclass(frozen=True, eq=False)
class Stage:
    """A run of layers and the micro-batches that compute them.

    Args:
        layers: consecutive ones.
        parts: int64 tensors of positions in the output nodes of the stage, which together hold every one once.
        watch: takes notice of the micro-batches.
        offload: where the results rest, unless it is the last stage.
    """

    layers: range
    parts: Sequence[Tensor]
    watch: Watch | None = None
    offload: Offload = "host"


def accumulate_in_stages(
    model: nn.Module,
    full_batch: FullBatch,
    stages: Sequence[Stage],
    device_loader: DeviceLoader,
    places: RestingPlaces | None = None,
    *,
    allow_inexact: bool = False,
) -> StepRecord:
    """Add the full batch's gradient to the parameters', stage by stage, one micro-batch at a time.

    A micro-batch that runs out of memory, while it is loaded or trained on, is dropped with all that it left behind,
    split in two and tried again, as often as it takes. The gradient is the same to rounding: each output node's loss
    is divided by the number of those of the full batch, however they are split.

    Args:
        model: called as ``model(blocks, features)``; for several stages it has ``num_layers`` and
            ``layer_forward(i, block, h)``.
        full_batch: in host memory.
        stages: of all layers, input layer first.
        device_loader: brings micro-batches to the model's device.
        places: where activations rest between stages.
        allow_inexact: whether to train by several micro-batches a model with layers that mix the nodes of a batch, see
            :func:`~betty.models.node_mixing.mixes_nodes`.

    Returns:
        What was done; its batches are those that were trained on in the end.

    Raises:
        BettyError: parts overlap or leave out output nodes, a single output node does not fit on the device, the
            model mixes nodes within a stage, or draws random numbers in a micro-batch that has to be split when it is
            computed again.
    """
    places = places or RestingPlaces(device_loader.device)
    step = _Step(model, full_batch.output_ids.numel(), device_loader, allow_inexact, len(stages) == 1)
    computations: list[_Computation] = []
    for number, stage in enumerate(stages):
        batch = full_batch.of_layers(stage.layers)
        before = computations[-1].behind if computations else None
        is_last = number + 1 == len(stages)
        behind = None if is_last else Activations(batch.output_ids.numel(), stage.offload, places)
        computations.append(_Computation(step, number, stage, batch, before, behind))
    steps = [computation.forward() for computation in computations[:-1]]
    offloaded = []
    for computation in reversed(computations):
        steps.append(computation.backward())
        offloaded.append(sum(one.behind.offloaded_bytes for one in computations[:-1]))
        computation.let_go()
    return replace(StepRecord.of_all(steps), offloaded_bytes=max(offloaded))


@dataclass(frozen=True, eq=False)
class _Step:
    """What all stages of a step have in common.

    Args:
        model: to be trained.
        num_outputs: of the full batch.
        device_loader: brings micro-batches to the model's device.
        allow_inexact: whether a stage may mix nodes.
        is_single_stage: whether there is one stage only.
    """

    model: nn.Module
    num_outputs: int
    device_loader: DeviceLoader
    allow_inexact: bool
    is_single_stage: bool

    @property
    def splits_at_norms(self) -> bool:
        """Whether stages end before a batch norm, whose statistics are of all parts of the stage."""
        return not self.is_single_stage and has_batch_norm(self.model)


@dataclass(frozen=True, eq=False)
class _Forward:
    """What the forward of a part leaves for the time when it is computed again.

    Args:
        record: of what was done.
        compute_s: seconds that the computation took.
        random_state: of the generators before it, where it drew from them.
    """

    record: StepRecord
    compute_s: float
    random_state: tuple[Tensor, ...] | None


class _Computation:
    """The passes over one stage.

    Args:
        step: that it is a part of.
        number: of the stage, from 0.
        stage: its layers and parts.
        batch: its blocks.
        before: what it reads; ``None`` for the data set's features.
        behind: what it writes; ``None`` for the last stage.
    """

    def __init__(
        self,
        step: _Step,
        number: int,
        stage: Stage,
        batch: FullBatch,
        before: Activations | None,
        behind: Activations | None,
    ) -> None:
        self.behind = behind
        self._step, self._number, self._stage, self._batch, self._before = step, number, stage, batch, before
        self._forwards: dict[int, _Forward] = {}
        self._parts = stage.parts
        self._mixing_layer = None
        if not step.allow_inexact:
            self._mixing_layer = mixing_layer(step.model, stage.layers, step.splits_at_norms)
        if self._mixing_layer and (len(stage.parts) > 1 or not step.is_single_stage):
            raise inexact_by(self._mixing_layer)

    def forward(self) -> StepRecord:
        """Compute the results without gradients, and write them."""
        computed = self._walk(self._compute_results, target=None)
        self.behind.settle()
        if self._step.splits_at_norms:
            self.behind.take_statistics(self._step.model.norms[self._stage.layers[-1]])
        self._parts = [one.part for one in computed.computed]
        self._forwards = {id(one.part): one.result for one in computed.computed}
        steps = [one.result.record for one in computed.computed]
        return replace(StepRecord.of_all(steps), num_shortages=computed.num_shortages)

    def backward(self) -> StepRecord:
        """Compute the stage with gradients, and go backward from the loss or from the gradient of its results."""
        if self._before is not None:
            self._before.begin_gradient()
        target = self._step.device_loader.labels_of if self.behind is None else self._gradient_of_results
        computed = self._walk(self._compute_gradients, target)
        if self._before is not None:
            self._before.end_gradient()
        steps = [one.result for one in computed.computed]
        return replace(StepRecord.of_all(steps), num_shortages=computed.num_shortages)

    def let_go(self) -> None:
        """Free what nobody reads any more after the backward."""
        if self._before is not None:
            self._before.let_go_of_values()
        if self.behind is not None:
            self.behind.let_go_of_gradient()

    def _walk(
        self, compute: Callable[[Tensor, LoadedBatch], Result], target: Callable[[MicroBatch], Rows] | None
    ) -> Walk[Result]:
        device_loader = self._step.device_loader

        def load_batch(batch: MicroBatch, prepare_s: float) -> LoadedBatch:
            features = device_loader.features_of(batch)
            if self._before is not None:
                features = self._before.values_of(batch.positions)
            return device_loader.load_rows(batch, prepare_s, features, target and target(batch))

        loader = MicroBatchLoader(self._batch, self._parts, device_loader, self._stage.watch, load_batch)
        return walk(self._batch, self._parts, loader, compute, self._divide)

    def _gradient_of_results(self, batch: MicroBatch) -> Rows:
        return self.behind.gradient_of(batch.positions[: batch.output_ids.numel()])

    def _divide(self, batch: FullBatch, parts: Sequence[Tensor]) -> list[Tensor]:
        if self._mixing_layer:
            raise inexact_by(self._mixing_layer)
        forward = self._forwards.get(id(parts[0]))
        if forward is not None and forward.random_state is not None:
            raise BettyError(
                f"a micro-batch of {parts[0].numel()} nodes ran out of memory when it was computed again, and in parts "
                "it would draw other random numbers than before; train with --dropout-mode exact, or with a smaller "
                "--memory-budget or more micro-batches"
            )
        return first_in_halves(batch, parts)

    def _compute_results(self, part: Tensor, loaded: LoadedBatch) -> _Forward:
        device = self._step.device_loader.device
        start, state = time.perf_counter(), random_state(device)
        with torch.no_grad():
            self.behind.write(part, self._results(loaded))
        is_random = not all(map(torch.equal, state, random_state(device)))
        batch = loaded.batch
        record = StepRecord(0.0, loaded.prepare_s, loaded.transfer_s, [], computed_edges=batch.num_edges)
        return _Forward(record, seconds_since(start, device), state if is_random else None)

    def _compute_gradients(self, part: Tensor, loaded: LoadedBatch) -> StepRecord:
        device, loss = self._step.device_loader.device, 0.0
        start, forward = time.perf_counter(), self._forwards.get(id(part))
        if forward is not None and forward.random_state is not None:
            set_random_state(device, forward.random_state)
        if self._before is not None:
            loaded.features.requires_grad_()
        with all_gradients_or_none(self._step.model.parameters()):
            results = self._results(loaded)
            if self._before is not None:
                # What the micro-batch before it added has left the device.
                self._before.settle()
            if self.behind is None:
                share = share_of_loss(results, loaded.target, self._step.num_outputs)
                share.backward()
                loss = share.item()
            else:
                results.backward(loaded.target)
        batch = loaded.batch
        if self._before is not None:
            self._before.add_gradient(batch.positions, loaded.features.grad)
        compute_s = seconds_since(start, device) + (forward.compute_s if forward else 0.0)
        sizes = (batch.output_ids.numel(), batch.input_ids.numel(), batch.num_edges)
        record = BatchRecord(*sizes, compute_s, self._number)
        return StepRecord(loss, loaded.prepare_s, loaded.transfer_s, [record], computed_edges=batch.num_edges)

    def _results(self, loaded: LoadedBatch) -> Tensor:
        if self._before is not None:
            self._before.normalize_(loaded.features)
        step = self._step
        return compute_layers(
            step.model, self._stage.layers, loaded.batch.blocks, loaded.features, splits_at_norms=step.splits_at_norms
        )
