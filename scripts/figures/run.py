"""Runs the commands of a figure, read one a line: leaves out what is finished, goes on with what was interrupted.

A command with ``--output`` is finished when the folder's ``outcome.json`` holds the same command and the result that it
left there is unchanged. An error that says that memory ran out is an outcome too, and is not tried again; any other
ends the figure. Stored full batches are made only for a run that needs them, and what writes no folder of its own, the
drawing, is always done.
"""

from __future__ import annotations

import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from outcome import RESULTS, Outcome, read_outcome, write_outcome

from betty import BettyError
from betty.command_line import CommandLineParser, run_command
from betty.files import sha256

GENERATOR = "betty.full_batch"
ALWAYS_ALLOWED = ("--quiet", "--resume")
PATHS = ("--output", "--data-root", "--full-batch-root")
STORE = "full-batches"
"""The folder in a run's own that holds its parts, see ``common.sh``."""

OUT_OF_MEMORY = ("the device is out of memory", "this machine is out of memory", "even as a micro-batch of its own")
"""What the error line of a trainer that ran out of memory says, see :mod:`betty.memory.shortage`."""

HOLDS_ANOTHER_RUN = ("holds a run with other flags", "holds a run on other data", "start anew with --overwrite")
"""What it says where a folder's run cannot be gone on with."""


@dataclass(frozen=True)
class Command:
    """What follows the interpreter in a line: ``-m``, a module and its flags, or a script and its flags."""

    words: tuple[str, ...]

    @classmethod
    def parse(cls, line: str) -> Command:
        words = shlex.split(line)
        interpreter = next(position for position, word in enumerate(words) if "=" not in word)
        return cls(tuple(words[interpreter + 1 :]))

    @property
    def is_generator(self) -> bool:
        return self.words[:2] == ("-m", GENERATOR)

    @property
    def needs_stored_batches(self) -> bool:
        return "--load-full-batch" in self.words

    @property
    def output(self) -> Path | None:
        """The folder that it writes, if it has one of its own."""
        return Path(self.words[self.words.index("--output") + 1]) if "--output" in self.words else None

    @property
    def name(self) -> str:
        return self.output.name if self.output else Path(self.words[self.words[0] == "-m"]).name

    @property
    def asked(self) -> list[str]:
        """The words that decide on the numbers: without places, and what may be said or not."""
        kept = [word for word in self.words if word not in ALWAYS_ALLOWED]
        return [word for before, word in zip(["", *kept], kept, strict=False) if not {before, word} & set(PATHS)]

    @property
    def anew(self) -> Command:
        """The same, in place of what its folder holds."""
        return replace(self, words=tuple("--overwrite" if word == "--resume" else word for word in self.words))


Execute = Callable[[Command], tuple[int, str]]
"""Runs a command and returns its exit code and the last line of its error stream."""


def in_process_of_its_own(command: Command) -> tuple[int, str]:
    """Start Python once more; its error stream is passed on as it comes, but for a refusal that is made up for."""
    process = subprocess.Popen([sys.executable, *command.words], stderr=subprocess.PIPE, text=True, errors="replace")
    last_line = ""
    try:
        for line in process.stderr:
            if not any(text in line for text in HOLDS_ANOTHER_RUN):
                sys.stderr.write(line)
            last_line = line.strip() or last_line
        return process.wait(), last_line
    finally:
        if process.poll() is None:
            process.terminate()
            process.wait()


def is_done(command: Command) -> bool:
    """Whether a command's folder holds what the same command left there."""
    outcome = read_outcome(command.output)
    if outcome is None or outcome.command != command.asked:
        return False
    result = result_of(command.output)
    return outcome.result_sha256 == (sha256(result) if result else None)


def result_of(folder: Path) -> Path | None:
    """The last file that a finished run or measurement writes."""
    return next((folder / name for name in RESULTS if (folder / name).exists()), None)


def run(command: Command, execute: Execute) -> str:
    """Run a command with a folder of its own, and note how it ended.

    Returns:
        A word on that.

    Raises:
        BettyError: it failed for another reason than a lack of memory.
    """
    empty_store(command.output)
    code, error = execute(command)
    if code == 2 and any(text in error for text in HOLDS_ANOTHER_RUN):
        code, error = execute(command.anew)
    if code == 2 and any(text in error for text in OUT_OF_MEMORY):
        # What is there is of an earlier command, or half of this one.
        for name in RESULTS:
            (command.output / name).unlink(missing_ok=True)
        write_outcome(command.output, Outcome(command.asked, "out of memory", error, None))
        return "out of memory"
    stop_unless_ended_well(command, code)
    empty_store(command.output)
    write_outcome(command.output, Outcome(command.asked, "finished", None, sha256(result_of(command.output))))
    return "done"


def empty_store(folder: Path) -> None:
    """Remove the parts that an earlier attempt stored: loading them is not what partitioning takes."""
    shutil.rmtree(folder / STORE, ignore_errors=True)


def stop_unless_ended_well(command: Command, code: int) -> None:
    if code in (130, -signal.SIGINT, -signal.SIGTERM):
        raise KeyboardInterrupt
    if code:
        raise BettyError(f"{command.name} failed with exit code {code}; see its message above")


def run_all(title: str, lines: Sequence[str], execute: Execute) -> None:
    """Run all commands, in their order."""
    commands = [Command.parse(line) for line in lines if line.strip()]
    generators: list[Command] = []
    num_runs, number = sum(command.output is not None for command in commands), 0
    for command in commands:
        number += command.output is not None
        say = f"{title}: [{number}/{num_runs}] {command.name}"
        if command.is_generator:
            generators.append(command)
        elif command.output is None:
            stop_unless_ended_well(command, execute(command)[0])
        elif is_done(command):
            print(f"{say}: finished before", flush=True)
        else:
            for generator in generators if command.needs_stored_batches else ():
                stop_unless_ended_well(generator, execute(generator)[0])
            start = time.perf_counter()
            ended = run(command, execute)
            print(f"{say}: {ended} in {time.perf_counter() - start:.1f} s", flush=True)


def stop(*_: object) -> None:
    raise KeyboardInterrupt


def main(arguments: list[str] | None = None) -> None:
    """Run the command line."""
    parser = CommandLineParser("scripts/figures/run.py", "Run the commands on the standard input, one a line.")
    parser.add_argument("--title", default="figure", help="what to begin every line with")
    flags = parser.parse_args(arguments)
    signal.signal(signal.SIGTERM, stop)
    lines = sys.stdin.read().splitlines()
    try:
        run_command(flags.title, lambda: run_all(flags.title, lines, in_process_of_its_own))
    except KeyboardInterrupt:
        print(f"{flags.title}: interrupted", file=sys.stderr)
        sys.exit(130)


if __name__ == "__main__":
    main()
