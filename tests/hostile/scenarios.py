"""Commands that are to be disturbed, each with the state in which it starts and the ways on afterwards."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from tests.hostile.file_operations import Interference
from tests.hostile.outcome import Ended, Outcome, judge
from tests.hostile.scene import FINISHED, INTERRUPTED, Command, Scene, comparison, generator, training, weights

OTHER_FLAGS = ("--lr", "0.1")
OVERWRITING = training(FINISHED, *OTHER_FLAGS, "--overwrite")


@dataclass(frozen=True)
class WayOn:
    """A command after the disturbance.

    Args:
        command: to go on with.
        expected_of: the command whose undisturbed result is the right one.
        may_refuse: whether one line will do as well.
    """

    command: Command
    expected_of: Command
    may_refuse: bool = False


@dataclass(frozen=True)
class Scenario:
    """A command to be disturbed.

    Args:
        name: in a few words.
        without: names in the scene that are not there.
        command: the one to be disturbed.
        ways_on: what to do afterwards, each from the state in which the disturbance left everything.
        run: the folder of the run that is written, if one is.
    """

    name: str
    without: tuple[str, ...]
    command: Command
    ways_on: tuple[WayOn, ...]
    run: str | None = None


NEW = training("new")
SCENARIOS = (
    Scenario("generator", ("*",), generator(), (WayOn(generator(), generator()),)),
    Scenario(
        "trainer",
        (FINISHED, INTERRUPTED, "parts"),
        NEW,
        (WayOn(NEW.plus("--resume"), NEW),),
        "new",
    ),
    Scenario(
        "--overwrite",
        (INTERRUPTED,),
        OVERWRITING,
        (
            WayOn(OVERWRITING, OVERWRITING),
            WayOn(training(FINISHED, *OTHER_FLAGS, "--resume"), OVERWRITING, may_refuse=True),
            WayOn(training(FINISHED, "--resume"), training(FINISHED, "--overwrite"), may_refuse=True),
        ),
        FINISHED,
    ),
    Scenario(
        "--resume",
        (FINISHED,),
        training(INTERRUPTED, "--resume"),
        (WayOn(training(INTERRUPTED, "--resume"), training(INTERRUPTED, "--resume")),),
        INTERRUPTED,
    ),
)


class Stage:
    """A scenario in a scene, to be disturbed again and again."""

    def __init__(self, scene: Scene, scenario: Scenario) -> None:
        self.scene = scene
        self.scenario = scenario
        self._expected = {
            way_on.expected_of: scene.expected(way_on.expected_of, *scenario.without) for way_on in scenario.ways_on
        }
        with self.start() as folder:
            self.operations = scene.run(folder, scenario.command).operations

    def start(self) -> AbstractContextManager[Path]:
        """A folder in the state in which the command starts."""
        return self.scene.copy(*self.scenario.without)

    def disturbed(self, folder: Path, interference: Interference) -> Ended:
        return self.scene.run(folder, self.scenario.command, interference)

    def has_the_result(self, folder: Path, ended: Ended, trial: str) -> Outcome:
        """The outcome of a disturbed command, by what the same one does undisturbed.

        Where its log says that it did without a file, that has to be made good by the way on.
        """
        way_on = self.scenario.ways_on[0]
        is_same = self.scenario.command.result(folder, ended) == self._expected[way_on.expected_of]
        if not is_same and "has to be made again" in ended.errors:
            return self.go_on(folder, way_on, trial)
        return judge(trial, ended, is_same)

    def ways_on(self, folder: Path, trial: str) -> Iterator[Outcome]:
        """Every way on from the state of a folder, which stays as it is."""
        for way_on in self.scenario.ways_on:
            with copied(folder) as copy:
                yield self.go_on(copy, way_on, trial)
        if self.scenario.run:
            yield self._compared(folder, trial)

    def go_on(self, folder: Path, way_on: WayOn, trial: str) -> Outcome:
        """One way on, in the folder itself."""
        trial = f"{trial}, then {' '.join(way_on.command.arguments[-3:])}"
        ended = self.scene.run(folder, way_on.command)
        is_same = way_on.command.result(folder, ended) == self._expected[way_on.expected_of]
        outcome = judge(trial, ended, is_same)
        if outcome.kind == "refused" and not way_on.may_refuse:
            return Outcome("lost", trial, outcome.detail)
        return outcome

    def _compared(self, folder: Path, trial: str) -> Outcome:
        """What ``betty.compare`` says of the run has to be true of the weights beside it."""
        ended = self.scene.run(folder, comparison(self.scenario.run))
        told = ended.output, weights(folder / self.scenario.run)
        return judge(f"{trial}, then compared", ended, any(matches(told, result) for result in self._expected.values()))


def matches(told: tuple[str, dict[str, bytes]], result: Any) -> bool:
    """Whether a table of ``betty.compare`` and weights are of a run with this result."""
    table, its_weights = told
    expected_weights, epochs, _ = result
    return its_weights == expected_weights and f"| {epochs[-1]['loss']:.4f} |" in table


@contextmanager
def copied(folder: Path) -> Iterator[Path]:
    with TemporaryDirectory(dir=folder.parent) as copy:
        shutil.copytree(folder, copy, symlinks=True, dirs_exist_ok=True)
        yield Path(copy)
