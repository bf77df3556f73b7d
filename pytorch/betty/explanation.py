"""Errors as the command lines tell them: in one line, where the user can put them right."""

from __future__ import annotations

from betty.errors import BettyError
from betty.memory.shortage import explain_shortage


def explain(error: BaseException) -> str | None:
    """What to tell the user of an error, in one line; ``None`` of one that is a defect of the program."""
    message = explain_shortage(error) or _explain_other(error)
    return message and " ".join(message.split())


def _explain_other(error: BaseException) -> str | None:
    if isinstance(error, BettyError):
        return str(error)
    if isinstance(error, OSError):
        place = f"{error.filename}: " if error.filename else ""
        return f"{place}{error.strerror or error}; choose another place or make it writable and roomy"
    return None
