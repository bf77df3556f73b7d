"""Trainings with little address space, as under ``ulimit -v``."""

from __future__ import annotations

import json
import math
import resource
from collections.abc import Iterable, Iterator
from pathlib import Path

from tests.hostile.outcome import Ended, Outcome, judge
from tests.hostile.processes import Process
from tests.hostile.scene import FINISHED, INTERRUPTED, Scene, training

MIB = 1 << 20
WIDE = ("--num-hidden", "128", "--num-epochs", "2", "--fan-out", "10,25")


def address_spaces(scene: Scene, aggregator: str, mebibytes: Iterable[int]) -> Iterator[Outcome]:
    """Trainings under some limits; the losses are those without one, to rounding."""
    expected: list[float] = []
    for limit in mebibytes:
        losses, ended = _train(scene, aggregator, limit * MIB)
        if losses and not expected:
            expected, _ = _train(scene, aggregator)
        is_same = len(losses) == len(expected) and all(map(is_close, losses, expected))
        yield judge(f"{aggregator} in {limit} MiB of address space", ended, is_same)


def is_close(one: float, other: float) -> bool:
    return math.isclose(one, other, rel_tol=1e-4)


def _train(scene: Scene, aggregator: str, limit: int = resource.RLIM_INFINITY) -> tuple[list[float], Ended]:
    command = training("new", *WIDE, "--aggre", aggregator)
    with scene.copy(FINISHED, INTERRUPTED) as folder:
        with Process(folder, command.module, command.arguments, limit) as process:
            ended = process.end()
        return _losses(folder / "new" / "metrics.jsonl") if ended.exit_code == 0 else [], ended


def _losses(path: Path) -> list[float]:
    return [json.loads(line)["loss"] for line in path.read_text().splitlines()]
