"""A small data set with everything that Betty stores of it, to be copied and spoiled; commands with their results."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from tests.hostile.file_operations import Interference
from tests.hostile.fork_server import ForkServer
from tests.hostile.outcome import Ended

PLACES = ("--dataset", "synthetic-tiny", "--data-root", "data", "--full-batch-root", "batches", "--fan-out", "3,4")
TRAINING = (*PLACES, "--num-epochs", "2", "--num-hidden", "8", "--num-batch", "2", "--eval", "--eval-every", "1")
FINISHED, INTERRUPTED = "finished", "interrupted"
"""The folders of runs in the scene."""


@dataclass(frozen=True)
class Command:
    """A command line, and how to tell what came of it.

    Args:
        module: without ``betty.``.
        arguments: of the command line.
        result: of the folder in which it ran and of how it ended; equal where nothing went wrong.
    """

    module: str
    arguments: tuple[str, ...]
    result: Callable[[Path, Ended], Any] = field(compare=False)

    def plus(self, *arguments: str) -> Command:
        return replace(self, arguments=(*self.arguments, *arguments))


def generator(num_epochs: int = 2) -> Command:
    return Command("full_batch", (*PLACES, "--num-epochs", str(num_epochs)), lambda folder, _: stored_files(folder))


def training(output: str, *more: str) -> Command:
    arguments = (*TRAINING, "--output", output, *more)
    return Command("micro_batch_train", arguments, lambda folder, _: run_result(folder / output))


def plan() -> Command:
    return Command("micro_batch_train", (*TRAINING, "--output", "plan", "--plan-only"), lambda _, ended: ended.output)


def comparison(output: str) -> Command:
    return Command("compare", (output,), lambda _, ended: ended.output)


def stored_files(folder: Path) -> dict[str, Any]:
    """Everything that the generator stores, by name: bytes, of JSON what it says."""
    paths = [path for root in ("data", "batches") for path in (folder / root).rglob("*")]
    return {
        str(path.relative_to(folder)): content_of(path)
        for path in paths
        if path.is_file() and path.name != ".lock" and path.parent.name != "parts"
    }


def content_of(path: Path) -> Any:
    """The bytes of a file; of JSON what it says, if it says anything: white space is no part of it."""
    content = path.read_bytes()
    try:
        return json.loads(content) if path.suffix == ".json" else content
    except ValueError:
        return content


def run_result(run: Path) -> tuple[dict[str, bytes], list[dict[str, Any]], dict[str, Any]] | None:
    """The weights, and the numbers of epochs and of the summary without times; ``None`` where the run has no end."""
    if not all((run / name).exists() for name in ("config.json", "summary.json")):
        return None
    try:
        epochs = [without_times(json.loads(line)) for line in (run / "metrics.jsonl").read_text().splitlines()]
        summary = without_times(json.loads((run / "summary.json").read_text()))
    except ValueError:
        return None
    return weights(run), epochs, summary


def weights(run: Path) -> dict[str, bytes]:
    """The bytes of every file of trained weights, by name."""
    return {
        path.name: path.read_bytes() for path in run.glob("*.safetensors") if not path.name.startswith("checkpoint")
    }


def without_times(numbers: dict[str, Any]) -> dict[str, Any]:
    """Also without what stands for all numbers, times among them."""
    return {name: value for name, value in numbers.items() if not name.endswith("_s") and name != "seal"}


class Scene:
    """Copies of a folder with data, full batches, an order, parts, a finished run and one interrupted in its middle.

    Args:
        server: runs the commands.
        root: an empty folder for the copies.
    """

    def __init__(self, server: ForkServer, root: Path) -> None:
        self._server = server
        self._root = root
        self._expected: dict[tuple[Command, tuple[str, ...]], Any] = {}
        self.template = root / "template"
        self.template.mkdir()
        self._make(generator())
        trained = self._make(training(FINISHED))
        checkpoints = [
            at for at, line in enumerate(trained.operations) if line.startswith(f"open {FINISHED}/checkpoint")
        ]
        in_the_middle = Interference("kill", checkpoints[-1])
        ended = self.run(self.template, training(INTERRUPTED), in_the_middle)
        if not ended.was_killed or run_result(self.template / INTERRUPTED) is not None:
            raise RuntimeError(f"a training was to be killed, but ended with {ended.exit_code}: {ended.errors}")

    def _make(self, command: Command) -> Ended:
        ended = self.run(self.template, command)
        if ended.exit_code != 0:
            raise RuntimeError(f"{command.module} failed without any trouble: {ended.errors}")
        return ended

    def run(self, folder: Path, command: Command, interference: Interference | None = None) -> Ended:
        """Run a command in a folder."""
        return self._server.run(folder, command.module, command.arguments, interference)

    @contextmanager
    def copy(self, *without: str) -> Iterator[Path]:
        """A folder to spoil, without some of what is at the top of the scene."""
        with TemporaryDirectory(dir=self._root) as folder:
            shutil.copytree(self.template, folder, ignore=shutil.ignore_patterns(*without), dirs_exist_ok=True)
            yield Path(folder)

    @contextmanager
    def empty(self) -> Iterator[Path]:
        """A folder without anything."""
        with TemporaryDirectory(dir=self._root) as folder:
            yield Path(folder)

    def expected(self, command: Command, *without: str) -> Any:
        """The result of a command in a copy to which nothing happens."""
        if (command, without) not in self._expected:
            self._expected[command, without] = self._result(command, without)
        return self._expected[command, without]

    def _result(self, command: Command, without: tuple[str, ...]) -> Any:
        with self.copy(*without) as folder:
            ended = self.run(folder, command)
            result = command.result(folder, ended)
        if ended.exit_code != 0 or not result:
            raise RuntimeError(f"{command.module} failed without any trouble: {ended.errors}")
        return result


@contextmanager
def new_scene(root: Path) -> Iterator[Scene]:
    """A scene in an empty folder, with a server of its own."""
    with ForkServer() as server:
        yield Scene(server, root)
