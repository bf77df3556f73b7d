"""One bit of a stored file flipped."""

from __future__ import annotations

import random
from collections.abc import Iterator

from tests.hostile.outcome import Outcome
from tests.hostile.readers import cases, in_rounds
from tests.hostile.scene import Scene

HEADER_BYTES = 200


def flips(scene: Scene, number: int, seed: int) -> Iterator[Outcome]:
    """Flips in all kinds of files in turn: the first byte, the last, in the header, anywhere."""
    chance = random.Random(seed)
    for place, case in in_rounds(cases(scene), number, chance):
        content = bytearray(case.content)
        last = len(content) - 1
        position = (chance.randint(0, last), last, chance.randint(0, min(last, HEADER_BYTES)), 0)[place % 4]
        bit = chance.randrange(8)
        content[position] ^= 1 << bit
        yield case.with_content(bytes(content), f"bit {bit} of byte {position} flipped")
