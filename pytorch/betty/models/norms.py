"""Normalisation between layers."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from betty.cost.work import Operations, Work, new_tensor
from betty.errors import BettyError
from betty.memory.tape import Held, Tape


class NoNorm(nn.Identity):
    """Leaves its input as it is."""

    @contextmanager
    def memory(self, tape: Tape, x: Held, num_rows: int) -> Iterator[Held]:
        """Nothing; the result is the input."""
        yield tape.share(x)

    def work(self, num_rows: int) -> Work:
        """Nothing."""
        return Work()


class LayerNorm(nn.LayerNorm):
    """Normalizes the channels of every row by themselves.

    Ba, Kiros, Hinton: Layer Normalization, 2016.
    """

    @contextmanager
    def memory(self, tape: Tape, x: Held, num_rows: int) -> Iterator[Held]:
        """What the norm takes of so many rows, see :class:`~betty.memory.tape.Tape`."""
        (channels,) = self.normalized_shape
        tape.save(x)
        result = tape.allocate("hidden", num_rows, channels)
        statistics = [tape.allocate("hidden", num_rows) for _ in ("mean", "deviation")]
        if not tape.trains:
            tape.free(*statistics)
        yield result
        before = tape.gradient
        tape.gradient = tape.allocate("backward", num_rows, channels)
        _weight_gradients_memory(tape, channels)
        tape.free(before, *statistics, x)

    def work(self, num_rows: int) -> Work:
        """What the norm computes for so many rows."""
        return _norm_work(num_rows, *self.normalized_shape)


class BatchNorm(nn.BatchNorm1d):
    """Normalizes every channel over all rows, and remembers its mean and variance for the evaluation.

    Ioffe, Szegedy: Batch Normalization, 2015. Where rows are computed in parts,
    :class:`~betty.models.batch_statistics.BatchStatistics` gives the same result.
    """

    @property
    def uses_batch(self) -> bool:
        """Whether rows are normalized by what they are, not by what is remembered."""
        return self.training or self.running_mean is None

    def forward(self, x: Tensor) -> Tensor:
        """Normalize.

        Args:
            x: floating ``[num_rows, channels]``.

        Returns:
            ``[num_rows, channels]``.

        Raises:
            BettyError: there are too few rows.
        """
        self.check_rows(x.shape[0])
        return super().forward(x)

    def check_rows(self, num_rows: int) -> None:
        """Refuse to take the variance of less than two rows.

        Raises:
            BettyError: there are too few rows.
        """
        if self.uses_batch and num_rows < 2:
            raise BettyError(
                f"batch norm takes the variance over a layer's nodes, of which there are {num_rows}; "
                "train on more output nodes, or take layer norm"
            )

    @torch.no_grad()
    def remember(self, mean: Tensor, variance: Tensor, num_rows: int) -> None:
        """Move what is remembered towards a batch's statistics as a forward in training mode does.

        Args:
            mean: floating ``[channels]``.
            variance: floating ``[channels]``, biased.
            num_rows: that both are of, at least 2.
        """
        if not (self.training and self.track_running_stats) or self.running_mean is None:
            return
        self.num_batches_tracked += 1
        share = 1 / int(self.num_batches_tracked) if self.momentum is None else self.momentum
        unbiased = variance * (num_rows / (num_rows - 1))
        for running, present in ((self.running_mean, mean), (self.running_var, unbiased)):
            running.copy_((1 - share) * running.double() + share * present.to(running.device))

    @contextmanager
    def memory(self, tape: Tape, x: Held, num_rows: int) -> Iterator[Held]:
        """What the norm takes of so many rows, see :class:`~betty.memory.tape.Tape`."""
        channels = self.num_features
        tape.save(x)
        result = tape.allocate("hidden", num_rows, channels)
        statistics = [tape.allocate("hidden", channels) for _ in ("mean", "deviation")]
        if not tape.trains:
            tape.free(*statistics)
        yield result
        before = tape.gradient
        tape.gradient = tape.allocate("backward", num_rows, channels)
        if tape.device_type == "cpu":
            tape.touch("backward", num_rows, channels)
        _weight_gradients_memory(tape, channels)
        tape.free(before, *statistics, x)

    def work(self, num_rows: int) -> Work:
        """What the norm computes for so many rows."""
        return _norm_work(num_rows, self.num_features)


def _norm_work(num_rows: int, channels: int) -> Work:
    """Rows are read for their statistics and again to be normalized; backward with their gradients beside them."""
    result, elements = new_tensor(num_rows, channels), num_rows * channels
    return Work(result + Operations(stream=2 * elements), result + Operations(stream=4 * elements))


def _weight_gradients_memory(tape: Tape, channels: int) -> None:
    """The gradients of weight and bias; on the CPU every thread sums up its own."""
    threads = torch.get_num_threads() if tape.device_type == "cpu" else 0
    with tape.temporary("backward", 2 * threads, channels):
        tape.add_gradient(channels)
        tape.add_gradient(channels)


NORMS: dict[str, type[nn.Module]] = {"none": NoNorm, "layer": LayerNorm, "batch": BatchNorm}


def make_norm(kind: str, channels: int) -> nn.Module:
    """The norm of that kind, for rows of so many channels.

    Args:
        kind: a name in :data:`NORMS`.
        channels: of a row.

    Raises:
        BettyError: there is no such norm.
    """
    if kind not in NORMS:
        raise BettyError(f"unknown norm {kind!r}; choose one of {', '.join(NORMS)}")
    return NORMS[kind](channels)
