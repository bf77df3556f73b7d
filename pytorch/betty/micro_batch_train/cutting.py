"""Cutting micro-batches out of a full batch: their rows of every block, relabelled."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from betty.blocks import FullBatch, MicroBatch, chain_blocks, index_dtype

SLOTS_IN_CACHE = 1 << 17
"""Scratch entries that fit a core's cache: as many micro-batches as need no more are cut together.

Measured with 16 micro-batches on 2 cores: all 16 of cora at once took a fourth of the time of one after the other, 8 of
tolokers at once seven tenths; of synthetic-arxiv, whose full batch alone has more input nodes, one by one was fastest.
"""


class MicroBatchCutter:
    """Cuts micro-batches out of one full batch.

    A node has one position in all blocks of a full batch, so a micro-batch is cut by walking from its output nodes
    to the inputs: slice the nodes' rows out of the block, append the sources not met before to the nodes, go on with
    the block before. One scratch array translates positions in the full batch into local ids of the micro-batch and
    serves all layers.

    Several micro-batches are cut in one go, each with a scratch array of its own; node ``n`` of the ``p``-th one has
    *slot* ``p * num_inputs + n`` in the row of these arrays. What is spent for a call of NumPy, more than for the edges
    in small micro-batches, is then spent once for all.

    Cutting takes O(edges of the micro-batch), and a scan of one byte per input node of the full batch and layer,
    which finds the new sources in ascending order: features are then gathered in the order in which they lie in
    memory. Not for use by several threads at once.

    Args:
        full_batch: what to cut, in host memory; its tensors are read in place.
        at_once: the most micro-batches to be cut in one go.
    """

    def __init__(self, full_batch: FullBatch, at_once: int = 1) -> None:
        self._full_batch = full_batch
        self._num_inputs = full_batch.input_ids.numel()
        local_id = np.int32 if index_dtype(self._num_inputs) == torch.int32 else np.int64
        self._local_ids = np.empty(at_once * self._num_inputs, dtype=local_id)
        self._is_new = np.zeros(at_once * self._num_inputs, dtype=bool)

    def cut(self, parts: Sequence[Tensor]) -> list[MicroBatch]:
        """Cut the micro-batches of some parts.

        Args:
            parts: int64 tensors of distinct positions in the full batch's ``output_ids``; no more than ``at_once``.

        Returns:
            For each part the micro-batch whose output nodes are these, in this order.
        """
        first_slots = np.arange(len(parts) + 1) * self._num_inputs
        slots = _joined([part.numpy() + first for part, first in zip(parts, first_slots, strict=False)])
        self._local_ids[slots.values] = slots.positions()
        layers = []
        for block in reversed(self._full_batch.blocks):
            nodes = slots.minus(first_slots[:-1])
            indptr, sources = _rows(block.indptr.numpy(), block.indices.numpy(), nodes)
            source_slots = sources.plus(first_slots[:-1])
            new_slots = self._new_slots(source_slots, slots, first_slots)
            self._local_ids[new_slots.values] = new_slots.positions() + np.repeat(slots.sizes, new_slots.sizes)
            layers.append((slots.starts, indptr, _Lists(_taken(self._local_ids, source_slots.values), sources.starts)))
            slots = _appended(slots, new_slots)
        return self._micro_batches(parts, layers[::-1], slots.minus(first_slots[:-1]))

    def _new_slots(self, source_slots: _Lists, slots: _Lists, first_slots: NDArray[np.int64]) -> _Lists:
        """The distinct sources of each micro-batch that are not among its nodes, ascending."""
        self._is_new[source_slots.values] = True
        self._is_new[slots.values] = False
        new_slots = np.flatnonzero(self._is_new[: first_slots[-1]])
        self._is_new[new_slots] = False
        return _Lists(new_slots, np.searchsorted(new_slots, first_slots))

    def _micro_batches(
        self,
        parts: Sequence[Tensor],
        layers: Sequence[tuple[NDArray[np.int64], NDArray[np.int64], _Lists]],
        nodes: _Lists,
    ) -> list[MicroBatch]:
        input_ids = torch.from_numpy(_taken(self._full_batch.input_ids.numpy(), nodes.values))
        micro_batches = []
        for p, part in enumerate(parts):
            blocks = []
            for node_starts, indptr, indices in layers:
                own_indptr = indptr[node_starts[p] : node_starts[p + 1] + 1]
                own_indptr = np.subtract(own_indptr, indices.starts[p], out=_new(own_indptr.size, np.int64))
                blocks.append((torch.from_numpy(own_indptr), torch.from_numpy(indices.of(p))))
            own_ids = input_ids[nodes.starts[p] : nodes.starts[p + 1]]
            weight = part.numel() / self._full_batch.output_ids.numel()
            positions = torch.from_numpy(nodes.of(p))
            micro_batches.append(MicroBatch(chain_blocks(blocks, own_ids), weight, positions))
        return micro_batches


@dataclass(frozen=True, eq=False)
class _Lists:
    """A list of integers per micro-batch, one after the other.

    Args:
        values: of all lists.
        starts: int64 ``[num_lists + 1]``, where each list starts, and where the last one ends.
    """

    values: NDArray[np.integer]
    starts: NDArray[np.int64]

    @property
    def sizes(self) -> NDArray[np.int64]:
        return np.diff(self.starts)

    def of(self, number: int) -> NDArray[np.integer]:
        return self.values[self.starts[number] : self.starts[number + 1]]

    def positions(self) -> NDArray[np.int64]:
        """Every value's position in its own list."""
        return np.arange(self.values.size) - np.repeat(self.starts[:-1], self.sizes)

    def plus(self, terms: NDArray[np.int64]) -> _Lists:
        """With a term added to all values of each list."""
        # The term of the first list is 0: with a single list there is nothing to add.
        values = self.values.astype(np.int64, copy=terms.size > 1)
        for number in range(1, terms.size):
            values[self.starts[number] : self.starts[number + 1]] += terms[number]
        return _Lists(values, self.starts)

    def minus(self, terms: NDArray[np.int64]) -> _Lists:
        """With a term subtracted from all values of each list."""
        return self.plus(-terms)


def _new(size: int, dtype: np.dtype | type) -> NDArray[np.integer]:
    """An array in memory of PyTorch's, for what becomes a tensor, so that who counts tensors counts it."""
    return torch.from_numpy(np.empty(0, dtype=dtype)).new_empty(size).numpy()


def _taken(values: NDArray[np.integer], positions: NDArray[np.int64]) -> NDArray[np.integer]:
    # All positions are in range; with the default mode NumPy would go by way of a buffer.
    return values.take(positions, out=_new(positions.size, values.dtype), mode="clip")


def _joined(lists: Sequence[NDArray[np.integer]]) -> _Lists:
    return _Lists(np.concatenate(lists), _starts(np.array([len(values) for values in lists])))


def _appended(first: _Lists, second: _Lists) -> _Lists:
    """Each list of the one followed by that of the other."""
    pairs = [part for number in range(first.sizes.size) for part in (first.of(number), second.of(number))]
    return _Lists(np.concatenate(pairs), first.starts + second.starts)


def _starts(sizes: NDArray[np.int64]) -> NDArray[np.int64]:
    starts = np.zeros(sizes.size + 1, dtype=np.int64)
    np.cumsum(sizes, out=starts[1:])
    return starts


def _rows(indptr: NDArray[np.int64], indices: NDArray[np.integer], nodes: _Lists) -> tuple[NDArray[np.int64], _Lists]:
    """The rows of some nodes: their ``indptr``, and their indices with a list per list of nodes."""
    row_starts = indptr.take(nodes.values)
    degrees = indptr.take(nodes.values + 1)
    degrees -= row_starts
    cut_indptr = _starts(degrees)
    return cut_indptr, _Lists(indices.take(_ranges(row_starts, degrees, cut_indptr)), cut_indptr[nodes.starts])


def _ranges(starts: NDArray[np.int64], sizes: NDArray[np.int64], offsets: NDArray[np.int64]) -> NDArray[np.int64]:
    """The ranges of these starts and sizes, one after the other; ``offsets`` tells where each one goes.

    A running sum of ones, and of the jump from the end of each range to the start of the next: unlike repeating the
    starts, it lets other threads run meanwhile.
    """
    steps = np.ones(offsets[-1], dtype=np.int64)
    filled = np.flatnonzero(sizes)
    if filled.size:
        starts, sizes, offsets = starts[filled], sizes[filled], offsets[filled]
        steps[0] = starts[0]
        steps[offsets[1:]] += starts[1:] - starts[:-1] - sizes[:-1]
    return np.cumsum(steps, out=steps)
