"""A disk without room, at any moment; and again with room."""

from __future__ import annotations

import random
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.hostile.file_operations import Interference
from tests.hostile.outcome import Ended, Outcome, judge
from tests.hostile.scenarios import SCENARIOS, Scenario, Stage
from tests.hostile.scene import Scene

LARGEST_FILE = 120_000
"""Bytes; no file of the scene is larger."""


def full_disks(scene: Scene, number: int, seed: int) -> Iterator[Outcome]:
    """A disk that gets full at operations spread over all scenarios, for good or for a moment."""
    chance = random.Random(seed)
    stages = [Stage(scene, scenario) for scenario in SCENARIOS]
    for trial in range(number):
        stage = stages[trial % len(stages)]
        at = chance.randrange(len(stage.operations))
        size = chance.choice((0, chance.randrange(LARGEST_FILE)))
        kind = ("full", "full once")[trial // len(stages) % 2]
        with stage.start() as folder:
            ended = stage.disturbed(folder, Interference(kind, at, size))
            name = f"{stage.scenario.name}, disk {kind} at operation {at} ({stage.operations[at]}), files of {size}"
            yield _end_and_way_on(stage, folder, ended, name)


def small_disks(scene: Scene, scenario: Scenario, sizes: list[int]) -> Iterator[Outcome]:
    """A real file system of some sizes in KiB.

    Raises:
        PermissionError: nothing can be mounted here.
    """
    stage = Stage(scene, scenario)
    for size in sizes:
        with scene.empty() as folder, mounted(folder, size) as disk:
            ended = scene.run(disk, scenario.command)
            mount("-o", "remount,size=16M", str(disk))
            yield _end_and_way_on(stage, disk, ended, f"{scenario.name} on a disk of {size} KiB")


def _end_and_way_on(stage: Stage, folder: Path, ended: Ended, trial: str) -> Outcome:
    # Where the command could do without, its result has to be that of a larger disk.
    end = judge(trial, ended, is_same=True)
    if end.is_defect:
        return end
    if ended.exit_code == 0:
        return stage.has_the_result(folder, ended, trial)
    on = stage.go_on(folder, stage.scenario.ways_on[0], trial)
    return on if on.is_defect else end


@contextmanager
def mounted(folder: Path, kibibytes: int) -> Iterator[Path]:
    mount("-t", "tmpfs", "-o", f"size={kibibytes}k", "tmpfs", str(folder))
    try:
        yield folder
    finally:
        subprocess.run(["umount", str(folder)], check=True)


def mount(*arguments: str) -> None:
    try:
        subprocess.run(["mount", *arguments], check=True, capture_output=True, text=True)
    except (subprocess.CalledProcessError, FileNotFoundError) as error:
        raise PermissionError(f"cannot mount: {getattr(error, 'stderr', error)}") from error
