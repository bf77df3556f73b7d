"""What a run writes: its configuration, an object an epoch, a summary, checkpoints and the trained weights."""

from __future__ import annotations

import json
import platform
import sys
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, Literal

import torch
from safetensors.torch import save

from betty.errors import BettyError
from betty.files import read_json, whole_file, write_json

IfExists = Literal["refuse", "resume", "overwrite"]

SAME_NUMBERS = ("output", "resume", "overwrite", "quiet", "data_root", "full_batch_root", "log_every")
"""Flags that change no number: an interrupted run may go on with others."""

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
class Checkpoint:
    """A run as it stood at the end of an epoch.

    Args:
        run: number of the run, from 0.
        epoch: the epoch that ended, from 0.
        model: the model's state dict.
        optimizer: the optimizer's state dict.
        metrics_bytes: length of ``metrics.jsonl`` at that moment.
    """

    run: int
    epoch: int
    model: dict[str, Any]
    optimizer: dict[str, Any]
    metrics_bytes: int


class RunFolder:
    """The output folder of one command.

    ``config.json`` says what was asked for, ``metrics.jsonl`` holds one object an epoch, ``checkpoint.pt`` the last
    epoch's state, ``model.safetensors`` the last run's weights and ``summary.json`` the outcome. An interrupted command
    is continued from its checkpoint and ends in the same numbers as one that was not interrupted.

    Making one writes nothing; :meth:`begin` does.

    Args:
        path: the folder; made by :meth:`begin` if it is missing.
        config: all flags and versions.
        if_exists: what to do with a run that the folder holds.

    Raises:
        BettyError: the folder holds a run that is not to be replaced, or one with other flags is to be resumed.
    """

    def __init__(self, path: Path, config: dict[str, Any], if_exists: IfExists) -> None:
        self.path = path
        self._flags_and_environment = config
        self._resumes = if_exists == "resume" and self._config.exists()
        if path.exists() and not path.is_dir():
            raise BettyError(f"{path} is a file; choose another --output")
        if if_exists == "refuse" and self._config.exists():
            raise BettyError(f"{path} holds a run already; add --resume or --overwrite, or choose another --output")
        if self._resumes:
            self._check_same_flags(config)

    def begin(self) -> Checkpoint | None:
        """Make the folder ready for the first epoch to be trained.

        Returns:
            Where to go on, or ``None`` at the beginning. What ``metrics.jsonl`` got after the checkpoint is cut off.

        Raises:
            BettyError: the folder cannot be written, or the checkpoint to go on from is broken.
        """
        try:
            if not self._resumes:
                self._remove()
                write_json(self._config, self._flags_and_environment)
                return None
            return self._load_checkpoint()
        except OSError as error:
            raise BettyError(f"cannot write to {self.path}: {error.strerror}; choose another --output") from error

    @property
    def plot(self) -> Path:
        """Where the picture of the run belongs."""
        return self.path / "run.png"

    @property
    def _config(self) -> Path:
        return self.path / "config.json"

    @property
    def _metrics(self) -> Path:
        return self.path / "metrics.jsonl"

    @property
    def _checkpoint(self) -> Path:
        return self.path / "checkpoint.pt"

    def _remove(self) -> None:
        # config.json goes first: a folder without it holds no run.
        for name in (
            "config.json",
            "summary.json",
            "metrics.jsonl",
            "micro_batches.json",
            "checkpoint.pt",
            "model.safetensors",
            "run.png",
        ):
            (self.path / name).unlink(missing_ok=True)

    def _check_same_flags(self, config: dict[str, Any]) -> None:
        before, now = read_json(self._config)["flags"], config["flags"]
        names = (before.keys() | now.keys()) - set(SAME_NUMBERS)
        changed = sorted(name for name in names if before.get(name) != now.get(name))
        if changed:
            flags = ", ".join(f"--{name.replace('_', '-')}" for name in changed)
            raise BettyError(f"{self.path} holds a run with other flags ({flags}); resume it with the same ones")

    def append_epoch(self, metrics: dict[str, Any]) -> None:
        """Add an epoch's object to ``metrics.jsonl``."""
        with open(self._metrics, "a", encoding="utf-8") as file:
            file.write(json.dumps(metrics) + "\n")

    def epochs(self) -> list[dict[str, Any]]:
        """The epochs' objects so far."""
        if not self._metrics.exists():
            return []
        return [json.loads(line) for line in self._metrics.read_text(encoding="utf-8").splitlines()]

    def save_checkpoint(self, run: int, epoch: int, model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> None:
        """Write the state at the end of an epoch, replacing the one before."""
        content = {
            "run": run,
            "epoch": epoch,
            "model": model.state_dict(),
            "optimizer": optimizer.state_dict(),
            "metrics_bytes": self._metrics.stat().st_size,
        }
        with whole_file(self._checkpoint) as partial:
            torch.save(content, partial)

    def _load_checkpoint(self) -> Checkpoint | None:
        if not self._checkpoint.exists():
            self._metrics.unlink(missing_ok=True)
            return None
        try:
            checkpoint = Checkpoint(**torch.load(self._checkpoint, map_location="cpu", weights_only=True))
        except Exception as error:
            reason = str(error).partition("\n")[0] or type(error).__name__
            raise BettyError(f"{self._checkpoint} cannot be read ({reason}); start anew with --overwrite") from error
        with open(self._metrics, "a", encoding="utf-8") as file:
            file.truncate(checkpoint.metrics_bytes)
        return checkpoint

    def write_batches(self, batches: list[dict[str, Any]]) -> None:
        """Write the sizes and times of the last epoch's micro-batches to ``micro_batches.json``."""
        write_json(self.path / "micro_batches.json", batches)

    def batches(self) -> list[dict[str, Any]]:
        """What :meth:`write_batches` wrote."""
        return read_json(self.path / "micro_batches.json")

    def save_weights(self, model: torch.nn.Module) -> None:
        """Write the trained weights to ``model.safetensors``."""
        with whole_file(self.path / "model.safetensors") as partial:
            partial.write_bytes(save({name: value.contiguous() for name, value in model.state_dict().items()}))

    def write_summary(self, summary: dict[str, Any]) -> None:
        """Write ``summary.json``, the last file of a finished command."""
        write_json(self.path / "summary.json", summary)
