"""A stored file cut short."""

from __future__ import annotations

import random
from collections.abc import Iterator

from tests.hostile.outcome import Outcome
from tests.hostile.readers import cases, in_rounds
from tests.hostile.scene import Scene


def truncations(scene: Scene, number: int, seed: int) -> Iterator[Outcome]:
    """Cuts of all kinds of files in turn: to half, to all but one byte, to nothing, to one byte, anywhere."""
    chance = random.Random(seed)
    for place, case in in_rounds(cases(scene), number, chance):
        size = len(case.content)
        kept = (size // 2, size - 1, 0, 1, chance.randrange(size))[place % 5]
        yield case.with_content(case.content[:kept], f"cut to {kept} of {size} bytes")
