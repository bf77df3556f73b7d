"""How a command of a figure ended, in a file beside what it wrote."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

from betty import BettyError
from betty.files import read_json, write_json

FILE = "outcome.json"
RESULTS = ("summary.json", "measurement.json")
"""The last file of a finished run, and that of a measurement."""


@dataclass(frozen=True)
class Outcome:
    """How a command ended.

    Args:
        command: the words of it that decide on the numbers.
        ended: that it is finished, or that there was too little memory.
        message: the error, where there was one.
        result_sha256: of the file that it finished with.
    """

    command: list[str]
    ended: Literal["finished", "out of memory"]
    message: str | None
    result_sha256: str | None


def read_outcome(folder: Path) -> Outcome | None:
    """The outcome that a folder holds; ``None`` where it holds none that can be read."""
    try:
        return Outcome(**read_json(folder / FILE))
    except (BettyError, TypeError):
        return None


def write_outcome(folder: Path, outcome: Outcome) -> None:
    """Note the outcome in a folder, which is made if it is missing."""
    write_json(folder / FILE, asdict(outcome))
