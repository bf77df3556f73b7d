"""How a trial may end, and which ends are defects."""

from __future__ import annotations

import signal
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

FINE = {
    "same": "success, with the result without any trouble",
    "refused": "one line on the error stream and the exit code for it",
    "believed": "success with what a file says that was written on purpose, with a checksum that is right",
    "nothing": "what was to happen did not come about",
}
DEFECTS = {
    "different": "success with another result",
    "traceback": "a traceback",
    "crash": "death by a signal of which nobody tells",
    "hang": "no end in time, or a process left behind",
    "unclear": "neither success nor one line and the exit code for it",
    "unnoticed": "a damaged file was made again, and the log says nothing of it or says it twice",
    "lost": "what had to go on was refused",
    "outside": "a file outside the folders was changed",
}
"""The ends of a trial."""


@dataclass(frozen=True)
class Ended:
    """A command that ended.

    Args:
        exit_code: negative for death by a signal, ``None`` for no end in time.
        output: what it printed.
        errors: what it printed on the error stream: its log and errors.
        operations: what it changed below its folder, a line each.
    """

    exit_code: int | None
    output: str
    errors: str
    operations: list[str] = field(default_factory=list)

    @property
    def was_killed(self) -> bool:
        return self.exit_code == -signal.SIGKILL

    @property
    def messages(self) -> list[str]:
        """The lines that speak for the command itself."""
        return [line for line in self.errors.splitlines() if line.startswith("python -m betty.")]

    def notices_of(self, name: str) -> list[str]:
        """Lines of the log that say that a file is made again."""
        return [line for line in self.errors.splitlines() if "made again" in line and name in line]


@dataclass(frozen=True)
class Outcome:
    """How a trial ended, and of a defect what it was."""

    kind: str
    trial: str
    detail: str = ""

    @property
    def is_defect(self) -> bool:
        return self.kind in DEFECTS

    def __str__(self) -> str:
        return f"{self.kind}: {self.trial}" + (f": {self.detail}" if self.detail else "")


def failure(trial: str, ended: Ended, told_by: int = 2) -> Outcome | None:
    """What is wrong with the way in which a command ended; ``None`` of success, and of one line with its exit code."""
    last_line = (ended.errors.splitlines() or [""])[-1]
    if ended.exit_code is None:
        return Outcome("hang", trial, last_line)
    if "Traceback" in ended.errors:
        return Outcome("traceback", trial, last_line)
    if ended.exit_code < 0:
        return Outcome("crash", trial, signal.Signals(-ended.exit_code).name)
    if ended.exit_code == 0:
        return None
    if ended.exit_code != told_by or ended.messages != [last_line]:
        return Outcome("unclear", trial, f"exit code {ended.exit_code}, {ended.errors[-300:]!r}")
    return None


def judge(trial: str, ended: Ended, is_same: bool, mended: str | None = None, told_by: int = 2) -> Outcome:
    """The outcome of a trial.

    Args:
        trial: in a few words.
        ended: its command.
        is_same: whether the result is the one without any trouble.
        mended: the name of a damaged file that is to be made again with one notice.
        told_by: the exit code beside one line.
    """
    wrong = failure(trial, ended, told_by)
    if wrong:
        return wrong
    if ended.exit_code == told_by:
        return Outcome("refused", trial, ended.messages[0])
    if not is_same:
        return Outcome("different", trial, (ended.errors.splitlines() or [""])[-1])
    if mended is not None and len(ended.notices_of(mended)) != 1:
        return Outcome("unnoticed", trial, f"{len(ended.notices_of(mended))} notices: {ended.errors[-300:]!r}")
    return Outcome("same", trial)


def defects(outcomes: Iterable[Outcome]) -> list[str]:
    return [str(outcome) for outcome in outcomes if outcome.is_defect]


def tally(outcomes: Iterable[Outcome]) -> Counter[str]:
    """How many ended how."""
    return Counter(outcome.kind for outcome in outcomes)
