"""Independent random streams out of one seed."""

import zlib
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch

from betty.errors import BettyError


def derive_seed(seed: int, *keys: int | str) -> int:
    """Mix a seed with what it is for, so that every use has a stream of its own.

    Args:
        seed: the user's seed, any non-negative integer.
        keys: what the stream is for, e.g. ``("sampling", epoch, batch)``. The same keys give the same stream on every
            machine.

    Returns:
        An integer in ``[0, 2**31)``, which every library in use takes as a seed.

    Raises:
        BettyError: the seed is negative.
    """
    if seed < 0:
        raise BettyError(f"a seed of {seed} is below 0; give 0 or more")
    words = [zlib.crc32(key.encode()) if isinstance(key, str) else key for key in keys]
    # NumPy does not tell a sequence from the same with zeros behind it; their number does.
    return int(np.random.SeedSequence([len(words), seed, *words]).generate_state(1)[0] >> 1)


def generator(seed: int, *keys: int | str) -> torch.Generator:
    """A CPU generator seeded by :func:`derive_seed`."""
    return torch.Generator().manual_seed(derive_seed(seed, *keys))


@contextmanager
def seeded(device: torch.device, seed: int, *keys: int | str) -> Iterator[None]:
    """Seed PyTorch's global generators, for code that knows no other (initial weights, dropout).

    Afterwards they are as they were before.
    """
    devices = [device] if device.type == "cuda" else []
    with torch.random.fork_rng(devices):
        torch.manual_seed(derive_seed(seed, *keys))
        yield
