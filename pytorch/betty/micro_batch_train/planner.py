"""Memory-aware partitioning: as few micro-batches as a memory budget allows."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, replace
from functools import partial

import numpy as np
import torch
from torch import Tensor, nn

from betty.blocks import FullBatch, MicroBatch
from betty.errors import BettyError
from betty.memory import MemoryEstimate, estimate_optimizer_step, size_text, states_its_memory
from betty.memory.dry_run import DryRunError
from betty.micro_batch_train.cutting import MicroBatchCutter
from betty.micro_batch_train.filling import even_runs, filled
from betty.micro_batch_train.graph_partitioner import (
    DEFAULT_METHOD,
    SERVE_EVERY_EPOCH,
    Partitioner,
    PartitionProblem,
)
from betty.micro_batch_train.measured_estimate import MeasuredEstimate
from betty.micro_batch_train.output_graphs import MAX_SHARING
from betty.micro_batch_train.part_source import PartSource
from betty.micro_batch_train.plan import Estimate, MicroBatchPlan, estimated, model_estimate
from betty.micro_batch_train.single_outputs import largest_single
from betty.models.node_mixing import inexact_by, mixes_nodes

logger = logging.getLogger(__name__)

EXPONENT = 0.6
"""Of the power of K by which the need of K micro-batches falls; 1 would be without redundancy.

Between 0.35 and 0.75 on the graphs that were measured: good for a first guess, and for the next one.
"""

SEGMENTS = 8
"""Segments to fill a micro-batch with: more fill it better, and take longer to make."""

ONE_OF_SEVERAL = 0.5
"""A weight below 1: such a micro-batch finds gradients of others."""

EVEN_FROM = 4
"""Output nodes per segment below which segments are not even enough to stand in for larger parts."""

MARGIN = 0.02
"""The share of a budget that is left alone: no estimate that was measured was further below the truth.

See the README for the cases and ``scripts/benchmark_memory.sh`` to measure them again.
"""

SAMPLING_MARGIN = 0.01
"""What is left alone beside that where the plan is to serve every epoch, which each samples other neighbours."""

FEWER_TRIES = 4
"""Numbers of micro-batches below that of the runs for which refined parts are tried."""

FIRST_TRY = 0.88
"""The first of them, as a share of the number of runs."""

MOST_CHECKS = 5
"""Plans that are made at most until the largest micro-batch takes no more, when measured, than was estimated."""

ROOM_AFTER_NOTICE = 0.9
"""What is left of the budget that is planned for, each time that more room is asked for."""


def plan_micro_batches(
    full_batch: FullBatch,
    model: nn.Module,
    memory_budget: int,
    method: str = DEFAULT_METHOD,
    seed: int = 0,
    *,
    estimate: Estimate | None = None,
    num_features: int | None = None,
    device: torch.device | str = "cpu",
    reg_max_degree: int = MAX_SHARING,
    allow_inexact: bool = False,
) -> MicroBatchPlan:
    """Partition a full batch into as few micro-batches as fit a memory budget.

    A plan fits where every micro-batch does together with the next one, which is loaded while it trains, and leaves
    :data:`MARGIN` of the budget. With one micro-batch less the method's own parts would hardly fit: see
    :func:`plan_parts`.

    Args:
        full_batch: in host memory.
        model: what is to be trained, called as ``model(blocks, x)``.
        memory_budget: bytes that training may take on the device, the model and its optimizer included.
        method: a name in :data:`~betty.micro_batch_train.METHODS`, in any case.
        seed: the same seed gives the same plan.
        estimate: what training on a micro-batch takes, no margin being left then; :func:`~betty.estimate_memory` of the
            model if not given, or measured steps of a model that no dry run can follow.
        num_features: channels of the features, for a model without ``widths``.
        device: where to train.
        reg_max_degree: output nodes that may share a node for it to count in ``REG``.
        allow_inexact: whether to plan several micro-batches for a model with layers that mix the nodes of a batch, see
            :func:`~betty.models.node_mixing.mixes_nodes`.

    Raises:
        BettyError: no such method, the model's memory cannot be estimated, the budget is too small for a single
            output node or for the optimizer's step, or for the whole batch of a model that mixes nodes.
    """
    if not isinstance(memory_budget, int) or memory_budget < 1:
        raise BettyError(f"a memory budget of {memory_budget} is none; give a whole number of bytes above 0")
    margin = MARGIN if estimate is None else 0.0
    if estimate is None:
        estimate = _estimate_for(model, full_batch, memory_budget, device, num_features)
    optimizer_step = estimate_optimizer_step(model, device=device)
    layer = None if allow_inexact else mixes_nodes(model, starts_training=True)
    if layer and estimate(MicroBatch(full_batch.blocks)).peak > int(memory_budget * (1 - margin)):
        raise inexact_by(layer)
    source = Partitioner(PartitionProblem(full_batch, seed, estimate, reg_max_degree=reg_max_degree), method)
    for _ in range(MOST_CHECKS):
        plan = plan_parts(full_batch, source, estimate, memory_budget, optimizer_step, margin)
        if not (isinstance(estimate, MeasuredEstimate) and estimate.learn_from(plan)):
            return plan
    raise BettyError(
        f"steps of {type(model).__name__} take more than smaller ones tell, time and again; give the model a memory "
        "method, or choose the number of micro-batches by hand"
    )


def _estimate_for(
    model: nn.Module, full_batch: FullBatch, memory_budget: int, device: torch.device | str, num_features: int | None
) -> Estimate:
    """The model's own estimate or that of a dry run; where neither is possible, one by measured steps."""
    estimate = model_estimate(model, device, num_features)
    if not states_its_memory(model) and full_batch.output_ids.numel():
        try:
            estimate(MicroBatch(full_batch.blocks))
        except DryRunError as error:
            logger.info("measuring steps of %s: %s", type(model).__name__, error)
            features = model.widths[0] if num_features is None else num_features
            return MeasuredEstimate(model, full_batch, memory_budget, features, device)
    return estimate


def plan_parts(
    full_batch: FullBatch,
    source: PartSource,
    estimate: Estimate,
    memory_budget: int,
    optimizer_step: int = 0,
    margin: float = 0.0,
) -> MicroBatchPlan:
    """Find micro-batches that fit a memory budget, as few as can be found with one partition, or seldom more.

    The source makes many small parts, neighbouring ones of which share the most; filled with runs of these, nearly
    every micro-batch takes what the budget allows. Parts of even size cannot do that, and so hardly ever fit in a
    smaller number. Where they may, by the largest of as many even runs of the small parts, they are tried. That is no
    proof that they would not have fitted elsewhere: the parts proper may be a little smaller than such runs.

    Args:
        full_batch: in host memory.
        source: of its parts.
        estimate: what training on a micro-batch takes.
        memory_budget: bytes.
        optimizer_step: bytes that the optimizer's step takes, when no micro-batch is loaded.
        margin: share of the budget that is left alone.

    Raises:
        BettyError: the micro-batch of a single output node does not fit, or the optimizer's step.
    """
    plan = _fewest(full_batch, source, estimate, int(memory_budget * (1 - margin)), optimizer_step)
    if plan is None:
        raise _too_small(full_batch, estimate, memory_budget, optimizer_step, margin)
    return replace(plan, memory_budget=memory_budget)


def _fewest(
    full_batch: FullBatch, source: PartSource, estimate: Estimate, memory_budget: int, optimizer_step: int
) -> MicroBatchPlan | None:
    """What :func:`plan_parts` does without a margin; ``None`` where the budget is too small."""
    num_outputs = full_batch.output_ids.numel()
    if optimizer_step > memory_budget:
        return None
    if num_outputs == 0:
        return MicroBatchPlan([], [], [], memory_budget)
    micro_batch = MicroBatch(full_batch.blocks)
    whole = estimate(micro_batch)
    if whole.peak <= memory_budget:
        return MicroBatchPlan([torch.arange(num_outputs)], [micro_batch], [whole], memory_budget)
    guess = _guess(estimate(MicroBatch(full_batch.blocks, ONE_OF_SEVERAL)), memory_budget)
    # Not single output nodes: a source that gives these need not put them in an order.
    segments = source.segments(max(2, min(SEGMENTS * guess, num_outputs // 2)))
    plan = filled(full_batch, segments, source.halves, estimate, memory_budget)
    if plan is None:
        # A micro-batch is so large that some output node does not fit beside it.
        if num_outputs == 1:
            return None
        most_loaded = memory_budget - largest_single(full_batch, estimate).estimate.peak
        if most_loaded > 0:
            plan = filled(full_batch, segments, source.halves, estimate, memory_budget, most_loaded)
        if plan is None:
            return None
    if source.refines:
        return _fewest_refined(full_batch, source, plan, estimate)
    while len(plan.parts) > 2 and not _exceeds_with_one_less(full_batch, segments, plan, estimate):
        even = estimated(full_batch, source.parts(len(plan.parts) - 1), estimate, memory_budget)
        if even.peak > memory_budget:
            break
        plan = even
    return plan


def _fewest_refined(
    full_batch: FullBatch, source: PartSource, plan: MicroBatchPlan, estimate: Estimate
) -> MicroBatchPlan:
    """Parts that are better than runs of segments, in the smallest number that fits, or ``plan`` where none does."""
    too_few, count = 1, round(FIRST_TRY * len(plan.parts))
    static = plan.estimates[0].static
    for _ in range(FEWER_TRIES):
        count = min(max(count, too_few + 1), len(plan.parts) - 1)
        if count <= too_few:
            break
        refined = estimated(full_batch, source.parts(count), estimate, plan.memory_budget)
        if refined.peak <= plan.memory_budget:
            plan = refined
        else:
            too_few = count
        # What the number would be that takes the whole budget, by the power by which the need falls.
        count = math.ceil(count * ((refined.peak - static) / (plan.memory_budget - static)) ** (1 / EXPONENT))
    return plan


class BudgetPartitioning:
    """Plans every full batch of a training for a memory budget.

    Args:
        method: a name in :data:`~betty.micro_batch_train.METHODS`.
        memory_budget: bytes that training may take on the device.
        num_features: channels of the features, for a model without ``widths``.
        reg_max_degree: output nodes that may share a node for it to count in ``REG``.
        leaves_of: the leaves of a known locality order, from the ids of output nodes.
    """

    def __init__(
        self,
        method: str,
        memory_budget: int,
        num_features: int | None = None,
        reg_max_degree: int = MAX_SHARING,
        leaves_of: Callable[[Tensor], Tensor] | None = None,
    ) -> None:
        self._method = method
        self._memory_budget = memory_budget
        self._num_features = num_features
        self._reg_max_degree = reg_max_degree
        self._leaves_of = leaves_of
        self._share = 1.0

    @property
    def serves_every_epoch(self) -> bool:
        """Whether the parts of a full batch are good for others of the same output nodes, too."""
        return self._method in SERVE_EVERY_EPOCH

    @property
    def settings(self) -> Mapping[str, object]:
        """What a plan depends on beside the full batch, the model and the seed."""
        return {
            "method": self._method,
            "memory_budget": int(self._memory_budget * self._share),
            "reg_max_degree": self._reg_max_degree,
        }

    def plan(
        self,
        full_batch: FullBatch,
        model: nn.Module,
        seed: int,
        device: torch.device,
        others: Iterable[FullBatch] = (),
    ) -> MicroBatchPlan:
        """The micro-batches of a full batch, as few as fit.

        Where the same parts take more of the other full batches than the budget allows, they are made for less.
        """
        estimate = model_estimate(model, device, self._num_features)
        leaves = self._leaves_of(full_batch.output_ids) if self._leaves_of else None
        problem = PartitionProblem(full_batch, seed, estimate, leaves, self._reg_max_degree)
        plan = partial(
            plan_parts,
            full_batch,
            Partitioner(problem, self._method),
            estimate,
            optimizer_step=estimate_optimizer_step(model, device=device),
            margin=MARGIN + (SAMPLING_MARGIN if self.serves_every_epoch else 0.0),
        )
        if others := list(others):
            plan = partial(_plan_for_all, plan, others, estimate)
        if self._share < 1:
            try:
                return plan(memory_budget=int(self._memory_budget * self._share))
            except BettyError:
                # No reason to end a training that has got over every shortage so far.
                logger.warning("there is no plan that leaves more room; planning with the whole budget again")
                self._share = 1.0
        return plan(memory_budget=self._memory_budget)

    def leave_more_room(self, num_micro_batches: int) -> None:
        """Plan with less than before from now on: the device ran out of memory."""
        self._share *= ROOM_AFTER_NOTICE
        logger.info("planning with %s of memory from now on", size_text(self._memory_budget * self._share))

    @property
    def learned(self) -> dict[str, float]:
        """The share of the budget that is planned with, which shrinks."""
        return {"share": self._share}

    def recall(self, learned: dict[str, float]) -> None:
        """Go on with what such a planner had learned."""
        self._share = learned["share"]


def _plan_for_all(
    plan: Callable[..., MicroBatchPlan], others: Sequence[FullBatch], estimate: Estimate, memory_budget: int
) -> MicroBatchPlan:
    """A plan whose parts fit in other full batches of the same output nodes, too, or nearly so."""
    made = plan(memory_budget=memory_budget)
    if len(made.parts) < 2:
        return made
    limit = memory_budget * (1 - MARGIN)
    peak = max(estimated(other, made.parts, estimate).peak for other in others)
    if peak > limit:
        try:
            made = plan(memory_budget=int(memory_budget * limit / peak))
        except BettyError:
            # The parts that are too large then will be split, each time.
            logger.info("no smaller parts for the samples of other epochs")
    return replace(made, memory_budget=memory_budget)


def _guess(one_of_several: MemoryEstimate, memory_budget: int) -> int:
    """How many micro-batches should fit, from what the whole full batch would take if it were one of several."""
    room = max(1, memory_budget - one_of_several.static)
    # Another one is loaded beside each.
    need = one_of_several.peak + one_of_several.loaded - one_of_several.static
    return math.ceil((need / room) ** (1 / EXPONENT))


def _exceeds_with_one_less(
    full_batch: FullBatch, segments: Sequence[Tensor], plan: MicroBatchPlan, estimate: Estimate
) -> bool:
    """Whether one micro-batch less of even size should not fit, by the run of segments that is to take the most."""
    count = len(plan.parts) - 1
    num_outputs = full_batch.output_ids.numel()
    if num_outputs < EVEN_FROM * len(segments):
        return False
    if len(segments) < SEGMENTS // 2 * count:
        # Segments had to be halved: parts of even size that were no larger, or hardly, did not fit.
        return True
    runs = even_runs(segments, count)
    takes = np.empty(num_outputs)
    for part, of_part in zip(plan.parts, plan.estimates, strict=True):
        takes[part.numpy()] = (of_part.peak - of_part.static) / part.numel()
    largest = int(np.argmax([takes[run.numpy()].sum() for run in runs]))
    cutter = MicroBatchCutter(full_batch)
    run_and_next = [estimate(cutter.cut([run])[0]) for run in runs[largest : largest + 2]]
    beside = sum(following.loaded for following in run_and_next[1:])
    return run_and_next[0].peak + beside > plan.memory_budget


def _too_small(
    full_batch: FullBatch, estimate: Estimate, memory_budget: int, optimizer_step: int, margin: float
) -> BettyError:
    """Says what fills the budget, and names one that will do."""
    whole = estimate(MicroBatch(full_batch.blocks))
    largest, enough = whole, whole.peak
    if full_batch.output_ids.numel() > 1:
        single = largest_single(full_batch, estimate)
        largest, enough = single.estimate, min(single.need, whole.peak)
    kind, size = max(asdict(largest).items(), key=lambda part: part[1])
    what = (
        f"one output node at a time, which takes up to {size_text(enough)} with the next one beside it, the largest "
        f"part being {kind.replace('_', ' ')} ({size_text(size)})"
    )
    if optimizer_step > enough:
        what = f"the optimizer's step on the model's parameters, which takes {size_text(optimizer_step)}"
    will_do = math.ceil(max(enough, optimizer_step) / (1 - margin)) + 1
    return BettyError(
        f"a memory budget of {size_text(memory_budget)} is too small even for {what}; "
        f"{will_do} bytes will do, or sample fewer neighbours or take a smaller model"
    )
