"""Who reads which file back, to see what becomes of a damaged one."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from tests.hostile.outcome import Outcome, judge
from tests.hostile.scene import FINISHED, INTERRUPTED, Command, Scene, comparison, generator, plan, training


@dataclass(frozen=True)
class Reader:
    """A command that reads a kind of file.

    Args:
        files: a pattern below the scene's folder.
        command: the reader.
        mends: whether a damaged file is made again, with one notice.
    """

    files: str
    command: Command
    mends: bool = False


DATA = "data/*/*"
FULL_BATCHES = "batches/*/fan-out*/epoch*.safetensors"
MANIFEST = "batches/*/fan-out*/manifest.json"
ORDER = "batches/*/locality-order*.safetensors"
PARTS = "batches/*/fan-out*/parts/*.safetensors"
RESUMED = training(INTERRUPTED, "--resume")

READERS = (
    Reader(DATA, training("new"), mends=True),
    # Not features, which it does without; their check is still running when it ends.
    Reader(DATA, plan()),
    Reader(FULL_BATCHES, generator(), mends=True),
    Reader(FULL_BATCHES, training("new", "--load-full-batch")),
    Reader(MANIFEST, generator()),
    Reader(MANIFEST, training("new", "--load-full-batch")),
    Reader(ORDER, training("new"), mends=True),
    Reader(PARTS, training("new"), mends=True),
    Reader(f"{INTERRUPTED}/checkpoint*", RESUMED),
    Reader(f"{INTERRUPTED}/config.json", RESUMED),
    Reader(f"{INTERRUPTED}/metrics.jsonl", RESUMED),
    Reader(f"{FINISHED}/micro_batches.json", training(FINISHED, "--resume")),
    Reader(f"{FINISHED}/metrics.jsonl", training(FINISHED, "--resume")),
    Reader(f"{FINISHED}/summary.json", comparison(FINISHED)),
)


class Case:
    """A file of the scene with its reader."""

    def __init__(self, scene: Scene, reader: Reader, file: Path) -> None:
        self._scene = scene
        self.reader = reader
        self.file = file
        # Of the order the parts are made: with these on the disk nobody would read it.
        self._without = ("parts",) if reader.files == ORDER else ()

    @property
    def content(self) -> bytes:
        return (self._scene.template / self.file).read_bytes()

    def with_content(self, content: bytes, damage: str, is_forged: bool = False) -> Outcome:
        """What the reader makes of another content of the file; a forged one has the right checksum."""
        trial = f"{self.file}, {damage}, read by {self.reader.command.module} {self.reader.command.arguments[-1]}"
        if content == self.content:
            return Outcome("nothing", trial)
        expected = self._scene.expected(self.reader.command, *self._without)
        with self._scene.copy(*self._without) as folder:
            (folder / self.file).write_bytes(content)
            ended = self._scene.run(folder, self.reader.command)
            is_same = ended.exit_code == 0 and self.reader.command.result(folder, ended) == expected
        mended = self.file.parent.name if self.reader.files == DATA else self.file.name
        outcome = judge(trial, ended, is_same, mended if self.reader.mends and not is_forged else None)
        return Outcome("believed", trial) if is_forged and outcome.kind == "different" else outcome


def cases(scene: Scene, is_wanted: Callable[[str], bool] = lambda name: True) -> list[Case]:
    """Every reader with every file that it reads of those whose names are wanted."""
    return [
        Case(scene, reader, path.relative_to(scene.template))
        for reader in READERS
        for path in files_of(scene.template, reader.files)
        if is_wanted(path.name)
    ]


def in_rounds(all_cases: list[Case], number: int, chance: random.Random) -> Iterator[tuple[int, Case]]:
    """So many cases, each with the number of its round.

    Rounds have orders of their own, so that a small number of trials meets other files with every seed.
    """
    for trial in range(number):
        round_number, case_number = divmod(trial, len(all_cases))
        if case_number == 0:
            chance.shuffle(all_cases)
        yield round_number, all_cases[case_number]


def files_of(folder: Path, pattern: str) -> Iterator[Path]:
    paths = [path for path in sorted(folder.glob(pattern)) if path.is_file() and path.name != ".lock"]
    if not paths:
        raise RuntimeError(f"the scene has no {pattern}")
    yield from paths
