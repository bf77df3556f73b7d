"""The memory of a model that no dry run can follow, from steps on small micro-batches that are measured."""

from __future__ import annotations

import torch
from torch import nn

from betty.blocks import FullBatch, MicroBatch
from betty.errors import BettyError
from betty.memory import MemoryEstimate, PeakMemory
from betty.memory.dry_run import feature_dtype, training_copy
from betty.memory.estimate import CUBLAS_WORKSPACE
from betty.memory.live_bytes import storage_bytes
from betty.micro_batch_train.cutting import MicroBatchCutter
from betty.micro_batch_train.memory_weights import counts, fitted_weights
from betty.micro_batch_train.plan import MicroBatchPlan
from betty.seeds import random_state_kept

SMALLEST_SHARE = 256
"""The first steps are on micro-batches of so many times fewer output nodes than the full batch has."""

GROWTH = 4
"""The next ones have so many times more, for as long as so many times the memory is within the budget."""

OPTIMIZER_STATES = 2
"""Numbers that the optimizer keeps per parameter, as for Adam."""


class MeasuredEstimate:
    """Estimates micro-batches of one full batch by those of them that were measured.

    A step (forward, cross entropy, backward) is made with a copy of the model, on features of 1, and its peak is
    explained by the nodes and edges of every block, see
    :func:`~betty.micro_batch_train.memory_weights.fitted_weights`. The estimates are multiplied so that of no step that
    was measured the estimate is below the truth. What is larger than all of these is extrapolated: a plan is to be
    checked by :meth:`learn_from`.

    Args:
        model: called as ``model(blocks, x)``.
        full_batch: in host memory.
        memory_budget: bytes that steps should stay within, as far as smaller ones tell.
        num_features: channels of the features.
        device: where to train, and to measure.

    Raises:
        BettyError: a step fails.
    """

    def __init__(
        self,
        model: nn.Module,
        full_batch: FullBatch,
        memory_budget: int,
        num_features: int,
        device: torch.device | str,
    ) -> None:
        self._full_batch = full_batch
        self._num_features = num_features
        self._device = torch.device(device)
        self._model = training_copy(model).to(self._device)
        self._parameters = storage_bytes([*self._model.parameters(), *self._model.buffers()])
        trained = [parameter for parameter in self._model.parameters() if parameter.requires_grad]
        self._gradients = storage_bytes(trained)
        self._optimizer = OPTIMIZER_STATES * self._gradients
        self._measured: list[tuple[MicroBatch, MemoryEstimate]] = []
        self._measure_small_ones(memory_budget)
        self._fit()

    def __call__(self, micro_batch: MicroBatch) -> MemoryEstimate:
        """What training on a micro-batch of the full batch should take."""
        taken = counts(micro_batch) @ self._weights
        return self._estimate(micro_batch, max(0, int(taken * self._multiple) - self._loaded(micro_batch)))

    def learn_from(self, plan: MicroBatchPlan) -> bool:
        """Measure the micro-batch of a plan that is to take the most, the next one being loaded beside it.

        Returns:
            Whether that takes more than the plan's memory budget. Later estimates allow for it.
        """
        largest = max(range(len(plan.parts)), key=lambda position: plan.needs[position])
        measured = self._measure(plan.micro_batches[largest])
        self._fit()
        return measured.peak - plan.estimates[largest].peak + plan.needs[largest] > plan.memory_budget

    def _measure_small_ones(self, memory_budget: int) -> None:
        cutter = MicroBatchCutter(self._full_batch)
        num_outputs = self._full_batch.output_ids.numel()
        size = max(1, num_outputs // SMALLEST_SHARE)
        while True:
            # Neighbours in the batch, and nodes from all over it, which share less.
            spread = torch.arange(size) * num_outputs // size
            peaks = [self._measure(cutter.cut([part])[0]).peak for part in (torch.arange(size), spread)]
            if size * GROWTH > num_outputs or max(peaks) * GROWTH > memory_budget:
                break
            size *= GROWTH

    def _measure(self, micro_batch: MicroBatch) -> MemoryEstimate:
        batch = micro_batch.to(self._device)
        features = torch.ones(
            batch.input_ids.numel(), self._num_features, dtype=feature_dtype(self._model), device=self._device
        )
        labels = torch.zeros(batch.output_ids.numel(), dtype=torch.int64, device=self._device)
        self._model.zero_grad(set_to_none=True)
        with random_state_kept(self._device), PeakMemory(self._device) as meter:
            try:
                logits = self._model(batch.blocks, features)
                nn.functional.cross_entropy(logits, labels, reduction="sum").backward()
            except Exception as error:
                reason = (str(error).strip() or type(error).__name__).splitlines()[0]
                raise BettyError(
                    f"a step of {type(self._model).__name__} on {labels.numel()} output nodes failed: {reason}; a "
                    "model is called as model(blocks, x) and returns logits [num_outputs, num_classes]"
                ) from error
        estimate = self._estimate(micro_batch, max(0, meter.peak_bytes - self._gradients))
        self._measured.append((micro_batch, estimate))
        return estimate

    def _estimate(self, micro_batch: MicroBatch, hidden: int) -> MemoryEstimate:
        """With gradients from earlier micro-batches, beside which those of a step come into being."""
        block_tensors = [tensor for block in micro_batch.blocks for tensor in (block.indptr, block.indices)]
        return MemoryEstimate(
            parameters=self._parameters,
            input_features=micro_batch.input_ids.numel() * self._num_features * feature_dtype(self._model).itemsize,
            labels=8 * micro_batch.output_ids.numel(),
            blocks=micro_batch.input_ids.nbytes + sum(tensor.nbytes for tensor in block_tensors),
            hidden=hidden,
            aggregator=0,
            gradients=self._gradients * (1 + (micro_batch.weight < 1)),
            optimizer=self._optimizer,
            backward=CUBLAS_WORKSPACE * (self._device.type == "cuda"),
        )

    def _loaded(self, micro_batch: MicroBatch) -> int:
        return self._estimate(micro_batch, 0).loaded

    def _fit(self) -> None:
        batches, estimates = zip(*self._measured, strict=True)
        weights = fitted_weights(self._full_batch, batches, estimates)
        per_block = zip(weights.of_source, weights.of_edge, strict=True)
        self._weights = [*(weight for block in per_block for weight in block), weights.of_output]
        taken = [estimate.loaded + estimate.hidden for estimate in estimates]
        fitted = [counts(batch) @ self._weights for batch in batches]
        self._multiple = max(1.0, *(truth / found for truth, found in zip(taken, fitted, strict=True)))
