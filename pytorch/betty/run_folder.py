"""What a run writes: its configuration, an object an epoch, a summary, checkpoints and the trained weights."""

from __future__ import annotations

import io
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
from betty.files import hold_lock, read_json, whole_file, write_json

IfExists = Literal["refuse", "resume", "overwrite"]

SAME_NUMBERS = ("output", "resume", "overwrite", "quiet", "data_root", "full_batch_root", "log_every")
"""Flags that change no number: an interrupted run may go on with others."""

WRITTEN = (
    "config.json",
    "summary.json",
    "metrics.jsonl",
    "micro_batches.json",
    "checkpoint.pt",
    "model.safetensors",
    "run.png",
)

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

    Nothing is written, and nothing of an old run removed, before the first epoch is recorded.

    Args:
        path: the folder; made by :meth:`open` if it is missing.
        flags: of the command line.
        if_exists: what to do with a run that the folder holds.

    Raises:
        BettyError: the folder holds a run that is not to be replaced, or one with other flags is to be resumed.
    """

    def __init__(self, path: Path, flags: dict[str, Any], if_exists: IfExists) -> None:
        self.path = path
        self._if_exists = if_exists
        self._config = {"flags": flags}
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
        self._check_what_is_there()
        self._is_begun = self._if_exists == "resume" and self._path("checkpoint.pt").exists()
        return self._load_checkpoint() if self._is_begun else None

    def _check_what_is_there(self) -> None:
        if not self._path("config.json").exists():
            return
        if self._if_exists == "refuse":
            raise BettyError(
                f"{self.path} holds a run already; add --resume or --overwrite, or choose another --output"
            )
        if self._if_exists == "resume":
            self._check_same_config()

    def _check_same_config(self) -> None:
        path = self._path("config.json")
        before = read_json(path)
        if not isinstance(before, dict) or not isinstance(before.get("flags"), dict):
            raise BettyError(f"{path} is not the configuration of a run; start anew with --overwrite")
        changed = _differences(before["flags"], self._config["flags"])
        if changed:
            flags = ", ".join(f"--{name.replace('_', '-')}" for name in changed)
            raise BettyError(f"{self.path} holds a run with other flags ({flags}); resume it with the same ones")
        if "data" in self._config and before.get("data") != self._config["data"]:
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
        batches: list[dict[str, Any]],
        model: torch.nn.Module,
        optimizer: torch.optim.Optimizer,
    ) -> None:
        """Write what an epoch left, so that it need not be trained again.

        Args:
            run: number of the run, from 0.
            epoch: number of the epoch, from 0.
            metrics: the epoch's object for ``metrics.jsonl``.
            batches: sizes and times of its micro-batches, for ``micro_batches.json``.
            model: to go on from.
            optimizer: to go on from.
        """
        if not self._is_begun:
            self._begin()
        write_json(self._path("micro_batches.json"), batches)
        with open(self._path("metrics.jsonl"), "a", encoding="utf-8") as file:
            file.write(json.dumps(metrics, allow_nan=False) + "\n")
        checkpoint = Checkpoint(
            run, epoch, model.state_dict(), optimizer.state_dict(), self._path("metrics.jsonl").stat().st_size
        )
        content = io.BytesIO()
        torch.save(vars(checkpoint), content)
        with whole_file(self._path("checkpoint.pt")) as partial:
            partial.write_bytes(content.getbuffer())

    def _begin(self) -> None:
        # config.json goes first and comes last: a folder without it holds no run.
        for name in WRITTEN:
            self._path(name).unlink(missing_ok=True)
        write_json(self._path("config.json"), self._config)
        self._is_begun = True

    def _load_checkpoint(self) -> Checkpoint:
        path = self._path("checkpoint.pt")
        try:
            checkpoint = Checkpoint(**torch.load(path, map_location="cpu", weights_only=True))
            if not isinstance(checkpoint.run, int) or not isinstance(checkpoint.epoch, int):
                raise ValueError("run and epoch are not numbers")
            with open(self._path("metrics.jsonl"), "r+b") as file:
                until_checkpoint = file.read(checkpoint.metrics_bytes)
                if len(until_checkpoint) < checkpoint.metrics_bytes:
                    raise ValueError("metrics.jsonl is shorter than it was")
                for line in until_checkpoint.splitlines():
                    json.loads(line)
                file.truncate(checkpoint.metrics_bytes)
        except Exception as error:
            raise self.broken_checkpoint(error) from error
        return checkpoint

    def broken_checkpoint(self, error: Exception) -> BettyError:
        """What to raise where a checkpoint turns out to be of no use."""
        reason = str(error).partition("\n")[0] or type(error).__name__
        return BettyError(f"{self._path('checkpoint.pt')} cannot be used ({reason}); start anew with --overwrite")

    def epochs(self) -> list[dict[str, Any]]:
        """The objects of ``metrics.jsonl``."""
        return [json.loads(line) for line in self._path("metrics.jsonl").read_text(encoding="utf-8").splitlines()]

    def batches(self) -> list[dict[str, Any]]:
        """The objects of ``micro_batches.json``."""
        return read_json(self._path("micro_batches.json"))

    def save_weights(self, model: torch.nn.Module) -> None:
        """Write the trained weights to ``model.safetensors``."""
        with whole_file(self._path("model.safetensors")) as partial:
            partial.write_bytes(save({name: value.contiguous() for name, value in model.state_dict().items()}))

    def write_summary(self, summary: dict[str, Any]) -> None:
        """Write ``summary.json``, the last file of a finished command."""
        write_json(self._path("summary.json"), summary)


def _differences(before: dict[str, Any], now: dict[str, Any]) -> list[str]:
    names = (before.keys() | now.keys()) - set(SAME_NUMBERS)
    return sorted(name for name in names if before.get(name) != now.get(name))
