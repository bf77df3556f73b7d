"""``docs/figures.md``: the text on every figure, with a place for its picture and its table."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

from betty import BettyError

DOCUMENT = Path(__file__).parents[2] / "docs" / "figures.md"
PLACE = re.compile(r"<!-- (?P<figure>\w+) -->\n(?P<content>.*?)<!-- end of (?P=figure) -->", re.DOTALL)


def filled(text: str, content_of: Callable[[str, str], str]) -> str:
    """The text with new content in every figure's place.

    Args:
        text: of the document.
        content_of: makes it, of the figure's name and of what is there.
    """

    def place(match: re.Match[str]) -> str:
        figure = match["figure"]
        return f"<!-- {figure} -->\n{content_of(figure, match['content'])}<!-- end of {figure} -->"

    return PLACE.sub(place, text)


def places(text: str) -> list[str]:
    """The names of the figures that have a place."""
    return [match["figure"] for match in PLACE.finditer(text)]


def read_document() -> str:
    """The text of ``docs/figures.md``.

    Raises:
        BettyError: it is not there.
    """
    try:
        return DOCUMENT.read_text(encoding="utf-8")
    except OSError as error:
        raise BettyError(f"{DOCUMENT} cannot be read: {error.strerror}") from error
