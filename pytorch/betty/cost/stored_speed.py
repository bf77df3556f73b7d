"""Speeds on disk, so that a device is measured once and choices that rest on them stay the same."""

from __future__ import annotations

import logging
from dataclasses import asdict
from pathlib import Path

import msgspec
import torch

from betty.cost.measured_speed import measured_speed
from betty.cost.speed import Speed
from betty.envelope import digest_of, read_sealed_json, write_sealed_json
from betty.errors import BettyError
from betty.files import locked

logger = logging.getLogger(__name__)

FORMAT_VERSION = 1
"""To be raised when kinds of operations, or what they are measured by, become others."""


def stored_speed(folder: Path, device: torch.device) -> Speed:
    """The speed of a device as it was measured first, stored in a folder under all that it depends on.

    A file that is damaged or of something else counts as not there, and what cannot be written is measured another
    time; both are logged.

    Args:
        folder: made if missing.
        device: where to compute.
    """
    made_from = _made_from(device)
    path = folder / f"speed_{digest_of(made_from)[:16]}.json"
    speed = _load(path, made_from)
    if speed is None:
        speed = measured_speed(device)
        _save(path, made_from, speed)
    return speed


def _made_from(device: torch.device) -> dict[str, object]:
    """All that a speed depends on; another processor of the same number of threads is not told from this one."""
    on_cuda = device.type == "cuda"
    name = torch.cuda.get_device_name(device) if on_cuda else device.type
    threads = torch.get_num_threads()
    return {"format_version": FORMAT_VERSION, "device": name, "num_threads": threads, "torch": str(torch.__version__)}


def _load(path: Path, made_from: dict[str, object]) -> Speed | None:
    if not path.exists():
        return None
    try:
        content = read_sealed_json(path)
        if content.get("made_from") != made_from:
            raise BettyError(f"{path} is of another device")
        return msgspec.convert(content.get("speed"), Speed)
    except (BettyError, msgspec.ValidationError) as error:
        logger.warning("%s cannot be used (%s); the speed is measured again", path, error)
        return None


def _save(path: Path, made_from: dict[str, object], speed: Speed) -> None:
    try:
        with locked(path.parent):
            write_sealed_json(path, {"made_from": made_from, "speed": asdict(speed)})
    except OSError as error:
        logger.warning("%s cannot be written (%s); the speed has to be measured again", path, error.strerror or error)
