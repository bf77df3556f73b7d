"""What changes files below a folder, told one by one; and something that goes wrong at one of them."""

from __future__ import annotations

import errno
import os
import resource
import signal
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

CHANGES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC
PATHS = {
    "open": 1,
    "os.rename": 2,
    "os.remove": 1,
    "os.mkdir": 1,
    "os.rmdir": 1,
    "os.truncate": 1,
    "os.link": 2,
    "os.symlink": 2,
    "os.chmod": 1,
}
"""Audited operations, with the number of paths among their arguments. ``os.fsync`` is not audited and is wrapped."""

NEEDS_ROOM = ("os.mkdir", "os.rename", "os.link", "os.symlink", "os.fsync")


@dataclass(frozen=True)
class Interference:
    """What goes wrong before the operation with the number ``at``, counted from 0.

    ``kill`` ends the process; ``tear`` too, with the file that was written last cut half-way through what was written.
    ``full`` leaves no room on the disk from then on: nothing new can be made, no file grows beyond ``size`` bytes.
    ``full once`` is a disk without room at this operation alone.
    """

    kind: Literal["kill", "tear", "full", "full once"]
    at: int
    size: int = 0


class _Watch:
    def __init__(self, folder: Path, report: int, interference: Interference | None) -> None:
        self._folder = os.path.realpath(folder)
        self._report = report
        self._interference = interference
        self._count = 0
        self._written: tuple[str, int] | None = None

    def audit(self, event: str, arguments: tuple[Any, ...]) -> None:
        if event not in PATHS or (event == "open" and not (arguments[2] or 0) & CHANGES):
            return
        self.happens(event, arguments[: PATHS[event]])

    def happens(self, event: str, places: tuple[Any, ...]) -> None:
        paths = [path for path in map(self._path, places) if path.startswith(self._folder + os.sep)]
        if not paths:
            return
        number, self._count = self._count, self._count + 1
        os.write(self._report, f"{event} {' '.join(os.path.relpath(path, self._folder) for path in paths)}\n".encode())
        if self._interference and number >= self._interference.at:
            needs_room = event in NEEDS_ROOM or (event == "open" and not os.path.lexists(paths[0]))
            self._go_wrong(needs_room, number == self._interference.at)
        if event == "open":
            self._written = paths[0], os.path.getsize(paths[0]) if os.path.exists(paths[0]) else 0

    def _path(self, place: Any) -> str:
        if isinstance(place, int):
            return os.readlink(f"/proc/self/fd/{place}")
        return os.path.abspath(os.fsdecode(place))

    def _go_wrong(self, needs_room: bool, is_first: bool) -> None:
        interference = self._interference
        match interference.kind:
            case "tear":
                self._interference = None
                self._cut_what_was_written()
                os.kill(os.getpid(), signal.SIGKILL)
            case "kill":
                os.kill(os.getpid(), signal.SIGKILL)
            case "full":
                # Of a file that is there, no open fails for want of room, but the write that makes it larger.
                resource.setrlimit(resource.RLIMIT_FSIZE, (interference.size, resource.RLIM_INFINITY))
                if needs_room:
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            case "full once" if is_first and needs_room:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def _cut_what_was_written(self) -> None:
        if self._written is None or not os.path.exists(self._written[0]):
            return
        path, before = self._written
        now = os.stat(path).st_size
        if now > before:
            descriptor = os.open(path, os.O_WRONLY | os.O_NOFOLLOW)
            os.ftruncate(descriptor, before + (now - before) // 2)


def interfere(folder: Path, report: int, interference: Interference | None) -> None:
    """Watch this process from now on.

    Args:
        folder: what happens below it counts.
        report: a descriptor; a line is written to it before every operation.
        interference: what is to go wrong.
    """
    watch = _Watch(folder, report, interference)
    fsync = os.fsync

    def watched_fsync(descriptor: int) -> None:
        watch.happens("os.fsync", (descriptor,))
        fsync(descriptor)

    os.fsync = watched_fsync
    sys.addaudithook(watch.audit)
