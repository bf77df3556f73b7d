"""Sizes in bytes, as people write them."""

from __future__ import annotations

import re

from betty.errors import BettyError

UNITS = {"": 1, "B": 1}
UNITS |= {f"{letter}B": 1000**power for power, letter in enumerate("KMGT", start=1)}
UNITS |= {f"{letter}iB": 1024**power for power, letter in enumerate("KMGT", start=1)}
LARGEST_SIZE = 2**60


def parse_size(text: str) -> int:
    """``"20GiB"`` (powers of 1024), ``"512MB"`` (powers of 1000), ``"1.5 GiB"`` or ``"4096"`` in bytes.

    Raises:
        BettyError: it is no such size, or not from 1 byte to 2⁶⁰.
    """
    match = re.fullmatch(r"\s*([0-9]{1,19}(?:\.[0-9]{1,19})?)\s*([A-Za-z]*)\s*", text)
    units = {unit.lower(): factor for unit, factor in UNITS.items()}
    if match is None or match[2].lower() not in units:
        raise BettyError(f"{text!r} is not a size like 20GiB, 512MB or 4096 (bytes)")
    size = (
        int(float(match[1]) * units[match[2].lower()]) if "." in match[1] else int(match[1]) * units[match[2].lower()]
    )
    if not 1 <= size <= LARGEST_SIZE:
        raise BettyError(f"{text!r} is not a size from 1 byte to {size_text(LARGEST_SIZE)}")
    return size


def size_text(size: float) -> str:
    """A size in the unit that fits it, in powers of 1024: ``"1.50 GiB"``."""
    power = min(4, max(0, int(abs(size)).bit_length() - 1) // 10)
    return f"{size / 1024**power:,.{2 if power else 0}f} {('B', 'KiB', 'MiB', 'GiB', 'TiB')[power]}"
