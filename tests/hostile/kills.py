"""A command killed before every operation that changes a file, and in the midst of what it writes."""

from __future__ import annotations

from collections.abc import Iterator

from tests.hostile.file_operations import Interference
from tests.hostile.outcome import Outcome, judge
from tests.hostile.scenarios import Scenario, Stage
from tests.hostile.scene import Scene


def kills(scene: Scene, scenario: Scenario, step: int = 1, first: int = 0) -> Iterator[Outcome]:
    """Kills before the operations ``first``, ``first + step``, …, and in the midst of what the operation before wrote.

    The last one is beyond the end: the command has to end by itself there.
    """
    stage = Stage(scene, scenario)
    for at in range(first, len(stage.operations), step):
        yield from _killed(stage, Interference("kill", at))
        if at > 0 and stage.operations[at - 1].startswith("open"):
            yield from _killed(stage, Interference("tear", at))
    with stage.start() as folder:
        ended = stage.disturbed(folder, Interference("kill", 10 * len(stage.operations)))
        yield judge(f"{scenario.name} not killed", ended, is_same=True)


def _killed(stage: Stage, interference: Interference) -> Iterator[Outcome]:
    operation = stage.operations[interference.at]
    trial = f"{stage.scenario.name}, {interference.kind} at operation {interference.at} ({operation})"
    with stage.start() as folder:
        ended = stage.disturbed(folder, interference)
        if not ended.was_killed:
            # What is stored in the background of the training may come later than it came at first.
            yield judge(trial, ended, is_same=False) if ended.exit_code else Outcome("nothing", trial)
            return
        yield from stage.ways_on(folder, trial)
