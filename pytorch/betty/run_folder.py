"""What a run writes: its configuration, an object an epoch, a summary, checkpoints and the trained weights."""

from __future__ import annotations

import hashlib
import json
import logging
import platform
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, Literal

import msgspec
import torch
from safetensors.torch import save
from torch import Tensor

from betty.envelope import (
    DamagedError,
    SealedTensors,
    digest_of,
    read_sealed_json,
    write_sealed,
    write_sealed_json,
)
from betty.errors import BettyError
from betty.files import (
    NotOfFormError,
    append,
    hold_lock,
    not_through_a_link,
    parse_json,
    remove_files,
    sha256,
    whole_file,
    write_json,
)

logger = logging.getLogger(__name__)

IfExists = Literal["refuse", "resume", "overwrite"]

SAME_NUMBERS = ("output", "resume", "overwrite", "quiet", "data_root", "full_batch_root", "log_every")
"""Flags that change no number: an interrupted run may go on with others."""

CONFIG, METRICS, BATCHES, SUMMARY = "config.json", "metrics.jsonl", "micro_batches.json", "summary.json"
CHECKPOINT = "checkpoint.safetensors"

WEIGHTS = "run-{run}_{which}.safetensors"

WRITTEN = (CONFIG, SUMMARY, METRICS, BATCHES, CHECKPOINT, "run.png")
"""The configuration first, without which the others are no run."""

FORMAT_VERSION = 1
"""To be raised when a checkpoint is to be read in another way."""

NUM_EPOCHS = "num_epochs"
"""The flag that may grow where a run is resumed."""

MODEL, OPTIMIZER, BEST = "model.", "optimizer.", "best."
"""What the names of a checkpoint's tensors begin with."""

MADE_FROM = "made_from"

PACKAGES = ("torch", "dgl", "numpy", "scipy", "pymetis", "ogb")


def describe_environment(device: torch.device) -> dict[str, str]:
    """The versions and the device that a run's numbers depend on."""
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else platform.processor() or platform.machine()
    versions = {package: _version(package) for package in PACKAGES}
    return {"python": sys.version.split()[0], **versions, "device": str(device), "device_name": name}


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "not installed"


@dataclass(frozen=True)
class BatchRecord:
    """One micro-batch's (or mini-batch's) share of an epoch: its size in nodes and edges, its seconds, its stage."""

    output_nodes: int
    input_nodes: int
    edges: int
    compute_s: float
    stage: int = 0


@dataclass(frozen=True)
class Progress:
    """How far a run has come, as its checkpoint tells.

    Args:
        run: number of the run, from 0.
        epoch: the epoch that ended, from 0.
        metrics_bytes: length of ``metrics.jsonl`` at that moment.
        metrics_sha256: checksum of so many bytes of it.
        batches: the epoch's micro-batches.
        learned: what the trainer learned so far, see :class:`betty.training.Trainer`.
        best_epoch: the run's epoch of the best validation accuracy so far, where there was an evaluation.
        best_val_acc: that accuracy.
        weights: SHA-256 of the files with the weights of runs that are done.
    """

    run: int
    epoch: int
    metrics_bytes: int
    metrics_sha256: str
    batches: tuple[BatchRecord, ...]
    learned: dict[str, int | float]
    best_epoch: int | None
    best_val_acc: float | None
    weights: dict[str, str]


@dataclass(frozen=True, eq=False)
class Best:
    """The weights of a run's epoch of the best validation accuracy: of the first such epoch.

    Args:
        epoch: counted from 0.
        val_acc: the accuracy.
        model: the model's state dict.
    """

    epoch: int
    val_acc: float
    model: dict[str, Tensor]


@dataclass(frozen=True, eq=False)
class Checkpoint:
    """A run as it stood at the end of an epoch.

    Args:
        progress: how far it had come.
        model: the model's state dict.
        optimizer: the optimizer's state of every parameter, by the parameter's position and the state's name.
        best: the best weights so far, where there was an evaluation.
    """

    progress: Progress
    model: dict[str, Tensor]
    optimizer: dict[int, dict[str, Tensor]]
    best: Best | None


class RunFolder:
    """The output folder of one command.

    ``config.json`` says what was asked for, ``metrics.jsonl`` holds one object an epoch, ``checkpoint.safetensors`` the
    last epoch's state, ``run-0_best.safetensors`` and ``run-0_last.safetensors`` the weights of a run, and
    ``summary.json`` the outcome. An interrupted command is continued from its checkpoint and ends in the same numbers
    as one that was not interrupted. It may be given more epochs then.

    What is there is a run only with its ``config.json``: that goes first and comes last where a run is replaced. An
    epoch is done with its checkpoint, which knows ``metrics.jsonl`` up to there and was made from the configuration.
    Whatever a kill leaves, no file is taken for one of another run. Nothing is written, and nothing of an old run
    removed, before the first epoch is recorded.

    Args:
        path: the folder; made by :meth:`open` if it is missing.
        flags: of the command line.
        if_exists: what to do with a run that the folder holds.

    Attributes:
        batches: the last epoch's micro-batches.

    Raises:
        BettyError: the folder holds a run that is not to be replaced, or one with other flags is to be resumed.
    """

    def __init__(self, path: Path, flags: dict[str, Any], if_exists: IfExists) -> None:
        self.path = path
        self._if_exists = if_exists
        self._config = {"flags": flags}
        self._metrics_bytes = 0
        self._metrics_digest = hashlib.sha256()
        self._weights: dict[str, str] = {}
        self.batches: tuple[BatchRecord, ...] = ()
        if path.exists() and not path.is_dir():
            raise BettyError(f"{path} is a file; choose another --output")
        self._check_what_is_there()

    def open(self, data: dict[str, str], environment: dict[str, str]) -> Checkpoint | None:
        """Take possession of the folder, until this object is gone.

        Args:
            data: what identifies the data; it has to be the same where a run is resumed.
            environment: what else the numbers depend on, for ``config.json``.

        Returns:
            Where to go on, or ``None`` at the beginning. What ``metrics.jsonl`` got after the checkpoint is cut off.

        Raises:
            BettyError: another process is at work in the folder, or the run to resume is broken or of other data.
        """
        self._config |= {"data": data, "environment": environment}
        self._lock = hold_lock(self.path)
        is_there, has_checkpoint = self._check_what_is_there(), self._path(CHECKPOINT).exists()
        if has_checkpoint and not is_there:
            logger.warning(
                "%s is without its %s and so of no run; a new run replaces it", self._path(CHECKPOINT), CONFIG
            )
        self._is_begun = self._if_exists == "resume" and is_there and has_checkpoint
        if not self._is_begun:
            return None
        checkpoint = self._load_checkpoint()
        self._extend(checkpoint.progress)
        return checkpoint

    def _check_what_is_there(self) -> bool:
        """Whether there is a run."""
        path = self._path(CONFIG)
        if not path.exists():
            return False
        if self._if_exists == "refuse":
            raise BettyError(
                f"{self.path} holds a run already; add --resume or --overwrite, or choose another --output"
            )
        if self._if_exists == "resume":
            self._check_same_config()
        return True

    def _check_same_config(self) -> None:
        before = self._before = _configuration(self._path(CONFIG))
        changed = _differences(before.flags, self._config["flags"])
        if changed:
            flags = ", ".join(f"--{name.replace('_', '-')}" for name in changed)
            raise BettyError(f"{self.path} holds a run with other flags ({flags}); resume it with the same ones")
        if "data" in self._config and before.data != self._config["data"]:
            raise BettyError(f"{self.path} holds a run on other data than are there now; start anew with --overwrite")

    @property
    def plot(self) -> Path:
        """Where the picture of the run belongs."""
        return self._path("run.png")

    def _path(self, name: str) -> Path:
        return self.path / name

    def record(
        self,
        run: int,
        epoch: int,
        metrics: dict[str, Any],
        batches: Sequence[BatchRecord],
        model: torch.nn.Module,
        optimizer: torch.optim.Optimizer,
        learned: dict[str, float],
        best: Best | None,
    ) -> None:
        """Write what an epoch left, so that it need not be trained again.

        Args:
            run: number of the run, from 0.
            epoch: number of the epoch, from 0.
            metrics: the epoch's object for ``metrics.jsonl``.
            batches: its micro-batches.
            model: to go on from.
            optimizer: to go on from.
            learned: by the trainer, to go on with.
            best: the run's best weights so far, where there was an evaluation.
        """
        if not self._is_begun:
            self._begin()
        line = (json.dumps(metrics, allow_nan=False) + "\n").encode()
        append(self._path(METRICS), line)
        self._metrics_digest.update(line)
        self._metrics_bytes += len(line)
        self.batches = tuple(batches)
        progress = Progress(
            run=run,
            epoch=epoch,
            metrics_bytes=self._metrics_bytes,
            metrics_sha256=self._metrics_digest.hexdigest(),
            batches=self.batches,
            learned=learned,
            best_epoch=best.epoch if best else None,
            best_val_acc=best.val_acc if best else None,
            weights=self._weights,
        )
        tensors = _prefixed(MODEL, model.state_dict()) | _prefixed(BEST, best.model if best else {})
        for position, state in optimizer.state_dict()["state"].items():
            tensors |= _prefixed(f"{OPTIMIZER}{position}.", state)
        write_sealed(self._path(CHECKPOINT), tensors, self._epochs_made_from(), asdict(progress))

    def _epochs_made_from(self) -> dict[str, Any]:
        flags = {name: value for name, value in self._config["flags"].items() if name != NUM_EPOCHS}
        return _made_from(flags, self._config["data"])

    def _begin(self) -> None:
        weights = (path.name for path in self.path.glob(WEIGHTS.format(run="*", which="*")))
        remove_files(self.path, (*WRITTEN, *weights))
        write_sealed_json(self._path(CONFIG), self._config)
        self._is_begun = True

    def _load_checkpoint(self) -> Checkpoint:
        try:
            checkpoint = SealedTensors(self._path(CHECKPOINT), self._epochs_made_from())
            progress = checkpoint.facts(Progress)
            tensors = {name: checkpoint[name].clone() for name in checkpoint.unchecked}
            for name, digest in progress.weights.items():
                if not self._path(name).is_file() or sha256(self._path(name)) != digest:
                    raise DamagedError(f"{self._path(name)} is damaged: its checksum is another")
            optimizer: dict[int, dict[str, Tensor]] = {}
            for name, value in _without_prefix(OPTIMIZER, tensors).items():
                position, _, state_name = name.partition(".")
                optimizer.setdefault(int(position), {})[state_name] = value
            self._take_metrics(progress)
        except (OSError, ValueError) as error:
            raise self.broken_checkpoint(error) from error
        self.batches, self._weights = progress.batches, progress.weights
        best = None
        if progress.best_epoch is not None and progress.best_val_acc is not None:
            best = Best(progress.best_epoch, progress.best_val_acc, _without_prefix(BEST, tensors))
        return Checkpoint(progress, _without_prefix(MODEL, tensors), optimizer, best)

    def _extend(self, progress: Progress) -> None:
        """Note that the run is to have more epochs than before, if it is.

        Raises:
            BettyError: earlier runs of the command are done, which cannot be gone on with.
        """
        before, now = (flags.get(NUM_EPOCHS) for flags in (self._before.flags, self._config["flags"]))
        if before == now:
            return
        if progress.run:
            raise BettyError(
                f"{self.path} holds runs of {before} epochs that are done, and only the last one could go on; choose "
                "another --output"
            )
        logger.info("going on to %s epochs; the last of %s was the end and evaluated as such", now, before)
        # The summary is no longer that of the run.
        remove_files(self.path, (SUMMARY, BATCHES, "run.png"))
        write_sealed_json(self._path(CONFIG), self._config)

    def _take_metrics(self, progress: Progress) -> None:
        """Go on with ``metrics.jsonl`` where the checkpoint was made."""
        path = self._path(METRICS)
        # What came after the checkpoint is cut off only once all before is known to be whole.
        with open(path, "r+b", opener=not_through_a_link) as file:
            content = file.read(max(0, progress.metrics_bytes))
            self._metrics_digest = hashlib.sha256(content)
            if self._metrics_digest.hexdigest() != progress.metrics_sha256:
                raise DamagedError(f"{path} is damaged: its checksum is another")
            file.truncate(len(content))
        self._metrics_bytes = len(content)

    def broken_checkpoint(self, error: Exception) -> BettyError:
        """What to raise where a checkpoint turns out to be of no use."""
        reason = " ".join(str(error).split()) or type(error).__name__
        return BettyError(f"{self._path(CHECKPOINT)} cannot be used ({reason}); start anew with --overwrite")

    def epochs(self) -> list[dict[str, Any]]:
        """The objects of ``metrics.jsonl``.

        Raises:
            BettyError: somebody else has changed the file.
        """
        path = self._path(METRICS)
        content = path.read_bytes()
        if hashlib.sha256(content).digest() != self._metrics_digest.digest():
            raise BettyError(f"{path} was changed while the command ran; train anew with --overwrite")
        return [parse_json(line, path, dict[str, Any]) for line in content.splitlines()]

    def save_weights(self, run: int, model: torch.nn.Module, best: Best | None) -> None:
        """Write the weights of a run that is done: the last ones and, where it was evaluated, the best ones."""
        weights = {weights_file(run, "last"): model.state_dict()}
        if best:
            weights[weights_file(run, "best")] = best.model
        for name, tensors in weights.items():
            content = save({key: tensor.contiguous() for key, tensor in tensors.items()})
            with whole_file(self._path(name)) as file:
                file.write(content)
            self._weights = {**self._weights, name: hashlib.sha256(content).hexdigest()}

    def write_summary(self, summary: dict[str, Any]) -> None:
        """Write ``micro_batches.json`` of the last epoch, and ``summary.json``, the last file of a finished command."""
        write_json(self._path(BATCHES), [asdict(batch) for batch in self.batches])
        made_from = _made_from(self._config["flags"], self._config["data"])
        write_sealed_json(self._path(SUMMARY), {**summary, MADE_FROM: digest_of(made_from)})


@dataclass(frozen=True)
class _Configuration:
    """What ``config.json`` tells, beside the environment."""

    flags: dict[str, Any]
    data: dict[str, str]


def _configuration(path: Path) -> _Configuration:
    try:
        return msgspec.convert(read_sealed_json(path), _Configuration)
    except (DamagedError, NotOfFormError, msgspec.ValidationError) as error:
        raise BettyError(f"{path} is not the configuration of a run ({error}); start anew with --overwrite") from None


def finished_summary(folder: Path) -> dict[str, Any]:
    """The summary of a finished run.

    Raises:
        BettyError: the folder holds no run, or none that is finished, or a file is not as it was written.
    """
    path = folder / SUMMARY
    if not (folder / CONFIG).exists():
        raise BettyError(f"{folder} holds no run: there is no {CONFIG} in it")
    configuration = _configuration(folder / CONFIG)
    try:
        summary = read_sealed_json(path)
    except (DamagedError, NotOfFormError) as error:
        raise BettyError(f"{path} cannot be used ({error}); run the same command again with --resume") from None
    if summary.pop(MADE_FROM, None) != digest_of(_made_from(configuration.flags, configuration.data)):
        raise BettyError(f"{path} is of another run than {CONFIG} beside it; start anew with --overwrite")
    return summary


def _made_from(flags: dict[str, Any], data: dict[str, str]) -> dict[str, Any]:
    """What decides on the numbers of a finished run; those of an epoch do not depend on how many there are."""
    decisive = {name: value for name, value in flags.items() if name not in SAME_NUMBERS}
    return {"format_version": FORMAT_VERSION, "flags": decisive, "data": data}


def weights_file(run: int, which: Literal["last", "best"]) -> str:
    """The name of the file with the weights of a run."""
    return WEIGHTS.format(run=run, which=which)


def _prefixed(prefix: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {f"{prefix}{name}": value for name, value in tensors.items()}


def _without_prefix(prefix: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {name.removeprefix(prefix): value for name, value in tensors.items() if name.startswith(prefix)}


def _differences(before: dict[str, Any], now: dict[str, Any]) -> list[str]:
    names = (before.keys() | now.keys()) - set(SAME_NUMBERS)
    if now.get(NUM_EPOCHS, 0) > before.get(NUM_EPOCHS, 0):
        names.discard(NUM_EPOCHS)
    return sorted(name for name in names if before.get(name) != now.get(name))
