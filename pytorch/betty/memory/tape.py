"""A forward and a backward pass played through with sizes instead of tensors, to see how much is alive at once."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

import torch

CUDA_GRANULARITY = 512
"""Bytes of which PyTorch's CUDA allocator makes every tensor a multiple."""


class Held:
    """Memory that is alive as long as somebody holds it.

    Args:
        kind: what it is for, a field of :class:`~betty.memory.MemoryEstimate`.
        nbytes: its size.
        holders: how many will have to let it go.
    """

    __slots__ = ("holders", "kind", "nbytes")

    def __init__(self, kind: str, nbytes: int, holders: int = 1) -> None:
        self.kind = kind
        self.nbytes = nbytes
        self.holders = holders


class Tape:
    """Plays a training step through and remembers what was alive at its peak.

    A layer states what it takes in a context manager: what it allocates before its ``yield`` is its forward, what comes
    behind is its backward. Layers entered one inside the other run backward in the reverse order, as autograd does. At
    the start of a layer's backward :attr:`gradient` is the gradient of its result, which it lets go and replaces by the
    gradient of its input.

    Args:
        dtype: in which the model computes.
        device_type: ``"cuda"`` or ``"cpu"``: kernels differ in their temporaries.
        trains: whether a backward follows. If not, nothing is saved for it.

    Attributes:
        gradient: what flows backward; ``None`` where the input needs none.
        waiting: gradients of inputs other than that one, last one first, until the backward comes to what made them.
        alive: bytes by kind, at present.
        at_peak: bytes by kind, at the peak so far.
    """

    def __init__(self, dtype: torch.dtype, device_type: str = "cpu", trains: bool = True) -> None:
        self.dtype = dtype
        self.device_type = device_type
        self.trains = trains
        self.gradient: Held | None = None
        self.waiting: list[Held] = []
        self.alive: dict[str, int] = {}
        self.at_peak: dict[str, int] = {}
        self._granularity = CUDA_GRANULARITY if device_type == "cuda" else 1
        self._total = 0
        self._peak = 0

    @property
    def peak(self) -> int:
        """Bytes at the peak so far."""
        return self._peak

    def allocate(self, kind: str, *shape: int, dtype: torch.dtype | None = None) -> Held:
        """A new tensor, held by the caller.

        Args:
            kind: what it is for.
            shape: of the tensor.
            dtype: the model's if not given.
        """
        nbytes = self._rounded(math.prod(shape) * (dtype or self.dtype).itemsize)
        self._add(kind, nbytes)
        return Held(kind, nbytes)

    def hold_tensors(self, kind: str, sizes: Iterable[int]) -> None:
        """Tensors of so many bytes each that are alive from now on, whatever comes."""
        self._add(kind, sum(map(self._rounded, sizes)))

    def _rounded(self, nbytes: int) -> int:
        return -(-nbytes // self._granularity) * self._granularity

    def _add(self, kind: str, nbytes: int) -> None:
        self.alive[kind] = self.alive.get(kind, 0) + nbytes
        self._total += nbytes
        if self._total > self._peak:
            self._peak = self._total
            self.at_peak = self.alive.copy()

    def save(self, held: Held) -> Held:
        """Hold something for the backward, where there is one."""
        held.holders += self.trains
        return held

    def share(self, held: Held) -> Held:
        """Hold something once more."""
        held.holders += 1
        return held

    def free(self, *helds: Held | None) -> None:
        """Let go; what nobody holds any more is gone."""
        for held in helds:
            if held is None:
                continue
            held.holders -= 1
            if held.holders == 0:
                self.alive[held.kind] -= held.nbytes
                self._total -= held.nbytes

    @contextmanager
    def temporary(self, kind: str, *shape: int, dtype: torch.dtype | None = None) -> Iterator[None]:
        """A tensor that is alive inside the ``with``."""
        held = self.allocate(kind, *shape, dtype=dtype)
        yield
        self.free(held)

    def touch(self, kind: str, *shape: int, dtype: torch.dtype | None = None) -> None:
        """A tensor that comes and goes."""
        self.free(self.allocate(kind, *shape, dtype=dtype))

    def add_gradient(self, *shape: int) -> None:
        """The gradient of a parameter, which is alive until the backward has ended."""
        self.allocate("gradients", *shape)

    def replace_gradient(self, *shape: int) -> None:
        """Compute a gradient of this shape from the present one, which goes then."""
        before = self.gradient
        self.gradient = self.allocate("backward", *shape)
        self.free(before)
