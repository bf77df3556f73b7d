"""Processes that come to a violent end: the command's own and the one that watches it."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator

from tests.hostile.outcome import Outcome, judge
from tests.hostile.processes import Process, wait_until
from tests.hostile.scene import FINISHED, INTERRUPTED, Scene, training

SIGNALS = (signal.SIGSEGV, signal.SIGABRT, signal.SIGKILL, signal.SIGBUS)
LONG = ("--num-epochs", "100000")


def crashes(scene: Scene, number: int) -> Iterator[Outcome]:
    """The child crashes, as a library makes it: one line of its parent's."""
    command = training("new", *LONG)
    for trial in range(number):
        with (
            scene.copy(FINISHED, INTERRUPTED) as folder,
            Process(folder, command.module, command.arguments) as process,
        ):
            name = f"crash {trial}"
            if not wait_until(lambda process=process: process.child, 20):
                yield Outcome("crash", name, "there is no child that a crash would end alone")
                continue
            time.sleep(0.5 * (trial % 5))
            fatal = SIGNALS[trial % len(SIGNALS)]
            name = f"{fatal.name} of the child, {0.5 * (trial % 5)} s after its start"
            os.kill(process.child, fatal)
            ended = process.end()
            yield judge(name, ended, is_same=False)


def orphans(scene: Scene, number: int) -> Iterator[Outcome]:
    """The parent is killed at moments from its start on: the child ends too."""
    command = training("new", *LONG)
    for trial in range(number):
        with (
            scene.copy(FINISHED, INTERRUPTED) as folder,
            Process(folder, command.module, command.arguments) as process,
        ):
            has_child = wait_until(lambda process=process: process.child, 20)
            time.sleep(0.5 * trial)
            process.send(signal.SIGKILL)
            name = f"SIGKILL of the parent, {0.5 * trial} s after its child's start"
            if not has_child:
                yield Outcome("nothing", name)
            else:
                yield Outcome("same", name) if process.leaves_nobody() else Outcome("hang", name, "the child goes on")
