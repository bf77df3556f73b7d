"""Seals as Betty makes them, for files that are forged with the right one."""

from __future__ import annotations

from typing import Any


def sealed(document: Any) -> Any:
    """A document with the seal that Betty would give it; as it is, while Betty seals nothing."""
    # Until betty.envelope is there: the function that seals what is written belongs here.
    return document
