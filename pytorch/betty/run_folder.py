"""What a run writes: its configuration, an object an epoch, a summary, checkpoints and the trained weights."""

from __future__ import annotations

import hashlib
import json
import logging
import platform
import sys
from collections.abc import Sequence
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
    OtherOriginError,
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
    whole_file,
    write_json,
)

logger = logging.getLogger(__name__)

IfExists = Literal["refuse", "resume", "overwrite"]

SAME_NUMBERS = ("output", "resume", "overwrite", "quiet", "data_root", "full_batch_root", "log_every")
"""Flags that change no number: an interrupted run may go on with others."""

CONFIG, METRICS, BATCHES, SUMMARY = "config.json", "metrics.jsonl", "micro_batches.json", "summary.json"
CHECKPOINT = "checkpoint.safetensors"

WRITTEN = (CONFIG, SUMMARY, METRICS, BATCHES, CHECKPOINT, "model.safetensors", "run.png")
"""The configuration first, without which the others are no run."""

FORMAT_VERSION = 1
"""To be raised when a checkpoint is to be read in another way."""

MODEL, OPTIMIZER = "model.", "optimizer."
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
    """One micro-batch's (or mini-batch's) share of an epoch: its size in nodes and edges, and its seconds."""

    output_nodes: int
    input_nodes: int
    edges: int
    compute_s: float


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
    """

    run: int
    epoch: int
    metrics_bytes: int
    metrics_sha256: str
    batches: tuple[BatchRecord, ...]
    learned: dict[str, int | float]


@dataclass(frozen=True, eq=False)
class Checkpoint:
    """A run as it stood at the end of an epoch.

    Args:
        progress: how far it had come.
        model: the model's state dict.
        optimizer: the optimizer's state of every parameter, by the parameter's position and the state's name.
    """

    progress: Progress
    model: dict[str, Tensor]
    optimizer: dict[int, dict[str, Tensor]]


class RunFolder:
    """The output folder of one command.

    ``config.json`` says what was asked for, ``metrics.jsonl`` holds one object an epoch, ``checkpoint.safetensors`` the
    last epoch's state, ``model.safetensors`` the last run's weights and ``summary.json`` the outcome. An interrupted
    command is continued from its checkpoint and ends in the same numbers as one that was not interrupted.

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
        self.batches: tuple[BatchRecord, ...] = ()
        require_folder(path)
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
        return self._load_checkpoint() if self._is_begun else None

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
        before = _configuration(self._path(CONFIG))
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
        """
        if not self._is_begun:
            self._begin()
        line = (json.dumps(metrics, allow_nan=False) + "\n").encode()
        append(self._path(METRICS), line)
        self._metrics_digest.update(line)
        self._metrics_bytes += len(line)
        self.batches = tuple(batches)
        progress = Progress(run, epoch, self._metrics_bytes, self._metrics_digest.hexdigest(), self.batches, learned)
        tensors = {f"{MODEL}{name}": value for name, value in model.state_dict().items()}
        for position, state in optimizer.state_dict()["state"].items():
            tensors |= {f"{OPTIMIZER}{position}.{name}": value for name, value in state.items()}
        write_sealed(self._path(CHECKPOINT), tensors, self._made_from(), asdict(progress))

    def _made_from(self) -> dict[str, Any]:
        return _made_from(self._config["flags"], self._config["data"])

    def _begin(self) -> None:
        remove_files(self.path, WRITTEN)
        write_sealed_json(self._path(CONFIG), self._config)
        self._is_begun = True

    def _load_checkpoint(self) -> Checkpoint:
        try:
            checkpoint = SealedTensors(self._path(CHECKPOINT), self._made_from())
            progress = checkpoint.facts(Progress)
            tensors = {name: checkpoint[name].clone() for name in checkpoint.unchecked}
            self._take_metrics(progress)
            self.batches = progress.batches
        except (OtherOriginError, DamagedError, OSError) as error:
            raise self.broken_checkpoint(error) from error
        optimizer: dict[int, dict[str, Tensor]] = {}
        for name in tensors:
            position, _, state_name = name.removeprefix(OPTIMIZER).partition(".")
            if name.startswith(OPTIMIZER) and position.isdecimal():
                optimizer.setdefault(int(position), {})[state_name] = tensors[name]
        model = {name.removeprefix(MODEL): value for name, value in tensors.items() if name.startswith(MODEL)}
        return Checkpoint(progress, model, optimizer)

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
        """The objects of ``metrics.jsonl``."""
        lines = self._path(METRICS).read_bytes().splitlines()
        return [parse_json(line, self._path(METRICS), dict[str, Any]) for line in lines]

    def save_weights(self, model: torch.nn.Module) -> None:
        """Write the trained weights to ``model.safetensors``."""
        with whole_file(self._path("model.safetensors")) as file:
            file.write(save({name: value.contiguous() for name, value in model.state_dict().items()}))

    def write_summary(self, summary: dict[str, Any]) -> None:
        """Write ``micro_batches.json`` of the last epoch, and ``summary.json``, the last file of a finished command."""
        write_json(self._path(BATCHES), [asdict(batch) for batch in self.batches])
        write_sealed_json(self._path(SUMMARY), {**summary, MADE_FROM: digest_of(self._made_from())})


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


def require_folder(path: Path) -> None:
    """Refuse a file in the place of an output folder.

    Raises:
        BettyError: there is one.
    """
    if path.exists() and not path.is_dir():
        raise BettyError(f"{path} is a file; choose another --output")


def _made_from(flags: dict[str, Any], data: dict[str, str]) -> dict[str, Any]:
    """What decides on a run's numbers."""
    decisive = {name: value for name, value in flags.items() if name not in SAME_NUMBERS}
    return {"format_version": FORMAT_VERSION, "flags": decisive, "data": data}


def _differences(before: dict[str, Any], now: dict[str, Any]) -> list[str]:
    names = (before.keys() | now.keys()) - set(SAME_NUMBERS)
    return sorted(name for name in names if before.get(name) != now.get(name))
