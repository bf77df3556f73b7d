"""Commands as real processes, where it is the process that is tried."""

from __future__ import annotations

import os
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from tests.hostile.fork_server import SECONDS, environment
from tests.hostile.outcome import Ended

PATIENCE = 0.02
"""Seconds between two looks."""


class Process:
    """``python -m betty.MODULE ARGUMENTS`` in a session of its own.

    Args:
        folder: where it runs.
        module: without ``betty.``.
        arguments: of the command line.
        address_space: bytes that it may map at most.
    """

    def __init__(
        self, folder: Path, module: str, arguments: tuple[str, ...], address_space: int = resource.RLIM_INFINITY
    ) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", f"betty.{module}", *arguments],
            cwd=folder,
            env=environment(),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
            start_new_session=True,
            preexec_fn=lambda: _prepare(address_space),
        )

    def __enter__(self) -> Process:
        return self

    def __exit__(self, *_: object) -> None:
        if self._group_is_alive():
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.communicate()

    @property
    def is_running(self) -> bool:
        return self._process.poll() is None

    @property
    def child(self) -> int | None:
        """The process that it watches, once there is one."""
        pid = self._process.pid
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        return int(children[0]) if children else None

    def send(self, number: int, to_group: bool = False) -> None:
        """Send a signal, unless the process has ended."""
        if not to_group:
            self._process.send_signal(number)
        elif self._group_is_alive():
            os.killpg(self._process.pid, number)

    def end(self, seconds: float = SECONDS) -> Ended:
        """Wait for its end; none in time is an end too."""
        try:
            output, errors = self._process.communicate(timeout=seconds)
        except subprocess.TimeoutExpired:
            os.killpg(self._process.pid, signal.SIGKILL)
            output, errors = self._process.communicate()
            return Ended(None, output, errors)
        return Ended(self._process.returncode, output, errors)

    def leaves_nobody(self) -> bool:
        """Whether all processes of its session end within a second."""
        return wait_until(lambda: not self._group_is_alive(), 1)

    def _group_is_alive(self) -> bool:
        return any(_is_of_session(folder, self._process.pid) for folder in Path("/proc").glob("[0-9]*"))


def _prepare(address_space: int) -> None:
    """What a process does before it becomes the command."""
    # A shell in the background has its processes ignore interrupts.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    resource.setrlimit(resource.RLIMIT_AS, (address_space, resource.RLIM_INFINITY))


def _is_of_session(folder: Path, session: int) -> bool:
    """Whether a process of ``/proc`` is of a session, and more than the remains that nobody has asked for."""
    try:
        state, _, _, its_session = (folder / "stat").read_text().rpartition(")")[2].split()[:4]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return int(its_session) == session and state != "Z"


def wait_until(condition: Callable[[], object], seconds: float) -> bool:
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(PATIENCE)
    return True
