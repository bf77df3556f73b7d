"""Reading few sequences many steps at a time with PyTorch's own LSTM, which makes its steps without Python."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.nn.utils.rnn import PackedSequence, pad_packed_sequence

from betty.memory.tape import Tape

NARROW_STATES = 1 << 13
"""Hidden states of a step, sequences times channels, up to which PyTorch's LSTM is the faster one.

Measured in float32 on one CPU thread with 16 to 256 channels, in milliseconds for whole sequences of uneven lengths:
one of 2,000 neighbours took 82 step by step and 7 with it where there were 64 channels, 161 and 39 where there were
256. At the limit 128 sequences of 130 neighbours took 12 and 9 with 64 channels, 32 of 300 took 99 and 61 with 256.
Twice as many sequences gained nothing.
"""

MOST_SEQUENCES = 128
"""Sequences up to which it is called, however few their channels: oneDNN takes no less than for 64 of them."""

KERNEL_STEPS = 64
"""Steps that it makes in one call, which bounds what it takes.

A fixed number, as oneDNN prepares for half a millisecond (with 256 channels three) for every shape that is new to it.
"""


@dataclass(frozen=True, eq=False)
class KernelLSTM:
    """PyTorch's LSTM of one layer and one direction; no gradients.

    Args:
        x: ``[num_src, channels]``, float32 or float64, a row per source node.
        parameters: of ``nn.LSTM``, of the same dtype.
    """

    x: Tensor
    parameters: tuple[Tensor, ...]

    def read(self, sources: Tensor, step_sizes: Sequence[int], hidden: Tensor, cell: Tensor) -> None:
        """Make some steps of a chunk.

        Args:
            sources: int64 ``[num_edges]``, source ids, step by step.
            step_sizes: how many sequences reach each step; descending.
            hidden: ``[step_sizes[0], channels]``, before the steps; after each sequence's last one when it returns.
            cell: of the same shape. Those of sequences that end among these steps are of no meaning any more.
        """
        # Padded, all steps are of the same size: for those that are not, PyTorch has no kernel but a loop.
        padded, lengths = pad_packed_sequence(PackedSequence(sources, torch.tensor(step_sizes)))
        inputs = self.x.index_select(0, padded.flatten()).unflatten(0, padded.shape)
        states = hidden.unsqueeze(0), cell.unsqueeze(0)
        outputs, _, last_cell = torch.lstm(inputs, states, self.parameters, True, 1, 0.0, False, False, False)
        cell.copy_(last_cell[0])
        positions = (lengths - 1) * len(hidden) + torch.arange(len(hidden))
        torch.index_select(outputs.flatten(0, 1), 0, positions, out=hidden)


def kernel_memory(tape: Tape, sizes: Sequence[int], channels: int, dtype: torch.dtype) -> None:
    """What the steps of :func:`kernel_steps` take, the states of the whole chunk included.

    What oneDNN keeps in a call, in numbers of channels for a row, was observed with PyTorch 2.13.

    Args:
        tape: to be played on.
        sizes: how many sequences reach each step; descending.
        channels: of the LSTM.
        dtype: in which it computes.
    """
    calls = kernel_steps(sizes, channels)
    if not calls:
        return
    num_sequences = sizes[calls.start]
    num_rows = KERNEL_STEPS * num_sequences
    if dtype == torch.float32 and torch.backends.mkldnn.is_available():
        row_channels = 10.2 if num_sequences == 1 else 6.2
        numbers = int(num_rows * row_channels * channels) + 8 * channels**2 + 5000
    else:
        numbers = 7 * num_rows * channels
    with tape.temporary("aggregator", num_rows, dtype=torch.int64):
        tape.touch("aggregator", 2 * sizes[0] * channels + numbers, dtype=dtype)


def kernel_steps(step_sizes: Sequence[int], channels: int) -> range:
    """The first step of every call of :meth:`KernelLSTM.read`; from the last one's end on few steps are left."""
    wide = int(np.searchsorted(-np.asarray(step_sizes), -min(NARROW_STATES // channels, MOST_SEQUENCES)))
    return range(wide, len(step_sizes) - KERNEL_STEPS + 1, KERNEL_STEPS)
