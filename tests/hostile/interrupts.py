"""Ctrl-C from the first millisecond on, to the command alone and to all its processes as a terminal does it."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator
from pathlib import Path

from tests.hostile.fork_server import PROJECT
from tests.hostile.outcome import Ended, Outcome, judge
from tests.hostile.processes import Process
from tests.hostile.scene import FINISHED, INTERRUPTED, Command, Scene, run_result, training

FIRST_SECONDS = 0.3
EXIT_CODE = 130


def interrupts(scene: Scene, number: int) -> Iterator[Outcome]:
    """None, then half of the moments in the first 0.3 s and half spread over the rest of a training."""
    command = training("new")
    with scene.copy(FINISHED, INTERRUPTED) as folder:
        start = time.monotonic()
        with Process(folder, command.module, command.arguments) as process:
            ended = process.end()
        seconds = time.monotonic() - start
        # The same as in a fork of the server.
        expected = scene.expected(command, FINISHED, INTERRUPTED)
        yield judge("not interrupted", ended, command.result(folder, ended) == expected)
    early = -(-number // 2)
    late = number - early
    moments = [0.001 + FIRST_SECONDS * trial / early for trial in range(early)]
    moments += [FIRST_SECONDS + (seconds - FIRST_SECONDS) * trial / late for trial in range(late)]
    for trial, moment in enumerate(moments):
        yield _interrupted(scene, command, moment, to_group=trial % 2 == 1)


def _interrupted(scene: Scene, command: Command, moment: float, to_group: bool) -> Outcome:
    trial = f"interrupt of {'all processes' if to_group else 'the process'} after {1000 * moment:.0f} ms"
    with scene.copy(FINISHED, INTERRUPTED) as folder:
        with Process(folder, command.module, command.arguments) as process:
            time.sleep(moment)
            was_running = process.is_running
            process.send(signal.SIGINT, to_group)
            ended = process.end()
            if not process.leaves_nobody():
                return Outcome("hang", trial, "it left a process behind")
        if not was_running or ended_before_betty(ended):
            return Outcome("nothing", trial)
        is_whole = ended.exit_code == 0 and run_result(folder / "new") is not None
        return judge(trial, ended, is_whole, told_by=EXIT_CODE)


def ended_before_betty(ended: Ended) -> bool:
    """Whether Python ended before the first line of Betty's code ran, which is Python's own way to end.

    A traceback tells: no frame of it is in a file of Betty. Earlier still, the signal ends the process without a word.
    """
    is_starting = ended.exit_code == 1 and "Fatal Python error: init_import_site" in ended.errors
    if ended.exit_code != -signal.SIGINT and not is_starting:
        return False
    files = [line for line in ended.errors.splitlines() if line.startswith("  File ")]
    return not any(str(Path(PROJECT, "pytorch", "betty")) in line for line in files)
