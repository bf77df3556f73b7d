"""The folders of a figure's runs, read into values that nothing changes any more."""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from itertools import pairwise
from pathlib import Path
from typing import Any, TypeVar

from outcome import read_outcome

from betty import BettyError
from betty.files import read_json

Value = TypeVar("Value")


@dataclass(frozen=True)
class Epoch:
    """An epoch's object of ``metrics.jsonl``: times in seconds, memory in bytes, ``None`` where it is not known."""

    run: int
    epoch: int
    loss: float
    train_acc: float | None
    val_acc: float | None
    test_acc: float | None
    num_micro_batches: int
    input_nodes: int
    redundancy: float | None
    estimated_peak_bytes: int | None
    peak_memory_bytes: int | None
    sample_s: float
    partition_s: float
    split_s: float
    transfer_s: float
    compute_s: float
    epoch_s: float


@dataclass(frozen=True)
class MicroBatch:
    """An object of ``micro_batches.json``, of the last epoch."""

    output_nodes: int
    input_nodes: int
    edges: int
    compute_s: float


@dataclass(frozen=True)
class Spread:
    """A mean and a standard deviation, as ``summary.json`` has them."""

    mean: float
    std: float


@dataclass(frozen=True)
class Summary:
    """What a figure needs of ``summary.json``."""

    num_runs: int
    final_loss: Spread
    test_acc: Spread | None
    peak_memory_bytes: int | None


@dataclass(frozen=True)
class Run:
    """A finished run, or one that ended because there was too little memory.

    Args:
        name: of its folder.
        flags: of ``config.json``; where memory ran out before an epoch was done, those of the command.
        environment: of ``config.json``.
        epochs: of all runs that the command made.
        micro_batches: of the last epoch.
        summary: ``None`` where memory ran out.
    """

    name: str
    flags: dict[str, Any]
    environment: dict[str, str]
    epochs: tuple[Epoch, ...]
    micro_batches: tuple[MicroBatch, ...]
    summary: Summary | None

    def flag(self, name: str) -> str:
        """A flag as it is written on the command line."""
        value = self.flags.get(name)
        return ",".join(map(str, value)) if isinstance(value, list) else str(value)

    @property
    def dataset(self) -> str:
        """The data set's name, of a file without its folder."""
        return Path(self.flag("dataset")).name.removesuffix(".npz")

    @property
    def ran_out_of_memory(self) -> bool:
        """Whether the device had too little memory, so that the trainer gave up or made more micro-batches."""
        return self.summary is None or any(
            epoch.num_micro_batches > self._planned_micro_batches for epoch in self.epochs
        )

    @property
    def _planned_micro_batches(self) -> float:
        if self.flags.get("num_batch") is None:
            return math.inf
        num_outputs = sum(batch.output_nodes for batch in self.micro_batches)
        batch_size = self.flags["batch_size"] or num_outputs
        return self.flags["num_batch"] * math.ceil(num_outputs / batch_size)

    @property
    def peak_memory_bytes(self) -> int | None:
        """The highest measured peak of all epochs, as in ``summary.json``."""
        return self.summary.peak_memory_bytes if self.summary else None

    @property
    def estimated_peak_bytes(self) -> int | None:
        """What the first epoch was estimated to take, before the trainer knew of anything that did not fit."""
        return self.epochs[0].estimated_peak_bytes if self.epochs else None

    def per_run(self, value: Callable[[Sequence[Epoch]], float]) -> list[float]:
        """A number per run of the command, of the run's epochs."""
        numbers = sorted({epoch.run for epoch in self.epochs})
        return [value([epoch for epoch in self.epochs if epoch.run == number]) for number in numbers]


def median_of(name: str) -> Callable[[Sequence[Epoch]], float]:
    """The median of a field over epochs; the first one, which warms up, counts only where it is the only one."""
    return lambda epochs: statistics.median(getattr(epoch, name) for epoch in epochs[1:] or epochs)


def largest_of(name: str) -> Callable[[Sequence[Epoch]], float]:
    return lambda epochs: max(getattr(epoch, name) for epoch in epochs)


def mean_of(name: str) -> Callable[[Sequence[Epoch]], float]:
    return lambda epochs: statistics.fmean(getattr(epoch, name) for epoch in epochs)


def spread(values: Sequence[float]) -> Spread:
    """Mean and standard deviation; the deviation of one value is 0."""
    return Spread(statistics.fmean(values), statistics.stdev(values) if len(values) > 1 else 0.0)


def read_run(folder: Path) -> Run:
    """Read a run's folder.

    Raises:
        BettyError: it holds no run that has ended, or files that are not those of a run.
    """
    outcome = read_outcome(folder)
    if outcome is None:
        raise BettyError(f"{folder} holds no run that has ended; start the figure's script to train it")
    if outcome.ended == "out of memory":
        return Run(folder.name, _flags_of(outcome.command), {}, (), (), None)
    config = read_json(folder / "config.json")
    summary = read_json(folder / "summary.json")
    try:
        lines = (folder / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
        return Run(
            name=folder.name,
            flags=config["flags"],
            environment=config["environment"],
            epochs=tuple(_only_known(Epoch, json.loads(line)) for line in lines),
            micro_batches=tuple(_only_known(MicroBatch, batch) for batch in read_json(folder / "micro_batches.json")),
            summary=_read_summary(summary),
        )
    except (KeyError, TypeError, ValueError, OSError) as error:
        raise BettyError(f"{folder} does not hold the files of a run ({type(error).__name__}: {error})") from error


def read_runs(folder: Path, names: Sequence[str]) -> list[Run]:
    """The runs of the given names, from the folders of a figure."""
    return [read_run(folder / "runs" / name) for name in names]


def read_finished_runs(folder: Path, names: Sequence[str]) -> list[Run]:
    """The same, for figures in which no run may be missing.

    Raises:
        BettyError: one of them ran out of memory.
    """
    runs = read_runs(folder, names)
    for run in runs:
        if run.summary is None:
            raise BettyError(f"{run.name} ran out of memory; choose smaller sizes, or more micro-batches")
    return runs


def _flags_of(words: Sequence[str]) -> dict[str, str]:
    """The flags with a value among the words of a command."""
    return {
        flag.removeprefix("--").replace("-", "_"): value for flag, value in pairwise(words) if flag.startswith("--")
    }


def _read_summary(summary: dict[str, Any]) -> Summary:
    spreads = {name: Spread(**summary[name]) if summary[name] else None for name in ("final_loss", "test_acc")}
    return Summary(num_runs=summary["num_runs"], peak_memory_bytes=summary["peak_memory_bytes"], **spreads)


def _only_known(kind: type[Value], content: dict[str, Any]) -> Value:
    return kind(**{field.name: content[field.name] for field in fields(kind)})
