"""Going through the micro-batches of a full batch, whichever of them turn out not to fit."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from typing import Generic, TypeVar

import torch
from torch import Tensor

from betty.blocks import FullBatch
from betty.device_loader import LoadedBatch
from betty.errors import BettyError
from betty.memory.shortage import is_mended_by_smaller_batches
from betty.micro_batch_train.block_dataloader import MicroBatchLoader
from betty.micro_batch_train.graph_partitioner import halves
from betty.micro_batch_train.memory_watch import OverBudgetError
from betty.micro_batch_train.out_of_memory import let_go

logger = logging.getLogger(__name__)

Result = TypeVar("Result")


@dataclass(frozen=True, eq=False)
class Computed(Generic[Result]):
    """A part whose micro-batch was computed.

    Args:
        part: int64, positions in the full batch's ``output_ids``.
        result: what came of it.
    """

    part: Tensor
    result: Result


@dataclass(frozen=True, eq=False)
class Walk(Generic[Result]):
    """What was computed, in its order.

    Args:
        computed: the parts that there were in the end, which are smaller than those asked for where these did not fit.
        num_shortages: how often a micro-batch of several output nodes ran out of memory.
    """

    computed: list[Computed[Result]] = field(default_factory=list)
    num_shortages: int = 0


def first_in_halves(full_batch: FullBatch, parts: Sequence[Tensor]) -> list[Tensor]:
    """Some parts, the first of which does not fit, with that one split in two."""
    return [*halves(full_batch, parts[0]), *parts[1:]]


def walk(
    full_batch: FullBatch,
    parts: Sequence[Tensor],
    loader: MicroBatchLoader,
    compute: Callable[[Tensor, LoadedBatch], Result],
    divide: Callable[[FullBatch, Sequence[Tensor]], list[Tensor]] = first_in_halves,
) -> Walk[Result]:
    """Load and compute a micro-batch for every part, one ahead, and smaller ones where memory does not suffice.

    A micro-batch that runs out of memory, while it is loaded or computed, is dropped with all that it left behind, and
    smaller ones take its place, as often as it takes. So they do for one that the loader's watch finds over the budget.

    Args:
        full_batch: what the parts are of, in host memory.
        parts: int64 tensors of positions in ``full_batch.output_ids``.
        loader: of micro-batches of it.
        compute: called with a part and its micro-batch on the device; leaves nothing of an attempt that fails.
        divide: makes smaller parts of some of which the first one does not fit, and has several output nodes.

    Raises:
        BettyError: a single output node does not fit on the device.
    """
    waiting, done, num_shortages = list(parts), [], 0
    while waiting:
        computed, is_over_budget = _while_memory_lasts(waiting, loader, compute)
        done += computed
        del waiting[: len(computed)]
        if not waiting:
            break
        if is_over_budget:
            logger.info("micro-batch %d is over the budget with what this epoch sampled: split in two", len(done) + 1)
            waiting = divide(full_batch, waiting)
            continue
        part, device = waiting[0], loader.device
        _empty_cache(device)
        remedy = "split in two" if part.numel() > 1 else "tried again alone"
        number, of = len(done) + 1, len(done) + len(waiting)
        message = "micro-batch %d of %d, output nodes: %d, ran out of memory on %s: %s"
        logger.warning(message, number, of, part.numel(), device, remedy)
        if part.numel() > 1:
            num_shortages += 1
            waiting = divide(full_batch, waiting)
        elif alone := _while_memory_lasts([part], loader, compute)[0]:
            done += alone
            del waiting[0]
        else:
            raise BettyError(
                f"output node {int(full_batch.output_ids[part])} does not fit on {device}, even as a micro-batch "
                "of its own; take smaller fan-outs or fewer hidden channels, or free memory there"
            )
    return Walk(done, num_shortages)


def _while_memory_lasts(
    parts: Sequence[Tensor], loader: MicroBatchLoader, compute: Callable[[Tensor, LoadedBatch], Result]
) -> tuple[list[Computed[Result]], bool]:
    """Compute one micro-batch after the other, until there are no more or one does not fit.

    Of that one, and of the next that was on its way, nothing is left.

    Returns:
        What was computed, and whether the next one is over the budget; if there is a next one and it is not, it ran
        out of memory.
    """
    computed, is_over_budget = [], False
    with closing(loader.load(parts)) as micro_batches:
        try:
            for loaded in micro_batches:
                part = parts[len(computed)]
                computed.append(Computed(part, compute(part, loaded)))
                # Now, and not by the next one taking its name: the one after that is loaded from then on.
                del loaded
        except OverBudgetError as error:
            is_over_budget = True
            let_go(error)
        except Exception as error:
            if not is_mended_by_smaller_batches(error):
                raise
            let_go(error)
    return computed, is_over_budget


def _empty_cache(device: torch.device) -> None:
    """Give the driver back what PyTorch keeps for later: pieces of it may be too small for what comes."""
    if device.type == "cuda":
        torch.cuda.empty_cache()
