"""Estimating micro-batches as they are cut, where their parts were not planned for these very blocks."""

from __future__ import annotations

from betty.blocks import MicroBatch
from betty.memory import MemoryEstimate, size_text, uncounted
from betty.micro_batch_train.plan import Estimate


class OverBudgetError(Exception):
    """A micro-batch should not fit the memory budget beside the one before it."""


class MemoryWatch:
    """Keeps the largest need of micro-batches that follow each other, and stops at one that is over a limit.

    Parts that serve every epoch were planned for what the first one sampled. What another one samples differs by a
    little, and the micro-batch is at hand when it is cut: estimating it then costs nothing but the estimate.

    Args:
        estimate: what training on a micro-batch takes.
        limit: bytes that a micro-batch may take, and with the next one beside it; ``None`` for any number.
    """

    def __init__(self, estimate: Estimate, limit: int | None = None) -> None:
        self._estimate = estimate
        self._limit = limit
        self._before: MemoryEstimate | None = None
        self.peak = 0
        """Bytes, the largest need so far."""

    def begin(self) -> None:
        """Take notice that nothing is on the device before the next micro-batch."""
        self._before = None

    def __call__(self, micro_batch: MicroBatch) -> None:
        """Take notice of the next micro-batch.

        Raises:
            OverBudgetError: it is over the limit, and has output nodes enough to be split.
        """
        with uncounted():
            estimate = self._estimate(micro_batch)
        need = estimate.peak
        if self._before is not None:
            need = max(need, self._before.peak + estimate.loaded)
        if self._limit is not None and need > self._limit and micro_batch.output_ids.numel() > 1:
            raise OverBudgetError(f"{size_text(need)} where {size_text(self._limit)} are allowed")
        self.peak = max(self.peak, need)
        self._before = estimate
