"""Independent random streams out of one seed."""

import random
import threading
import zlib
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch
from torch import Tensor

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
    with torch.random.fork_rng(_cuda_devices(device)):
        torch.manual_seed(derive_seed(seed, *keys))
        yield


@contextmanager
def random_state_kept(device: torch.device) -> Iterator[None]:
    """Leave the global generators of PyTorch, NumPy and Python afterwards as they were before.

    In the main thread only: any other one would take back what that has drawn meanwhile.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    of_python, of_numpy = random.getstate(), np.random.get_state()
    try:
        with torch.random.fork_rng(_cuda_devices(device)):
            yield
    finally:
        random.setstate(of_python)
        np.random.set_state(of_numpy)


def random_state(device: torch.device) -> tuple[Tensor, ...]:
    """The state of PyTorch's generators on the host and on a device, uint8 each."""
    return torch.get_rng_state(), *(torch.cuda.get_rng_state(cuda) for cuda in _cuda_devices(device))


def set_random_state(device: torch.device, state: tuple[Tensor, ...]) -> None:
    """Let the generators go on from a state of :func:`random_state`."""
    torch.set_rng_state(state[0])
    for cuda, of_cuda in zip(_cuda_devices(device), state[1:], strict=True):
        torch.cuda.set_rng_state(of_cuda, cuda)


def _cuda_devices(device: torch.device) -> list[torch.device]:
    return [device] if device.type == "cuda" else []
