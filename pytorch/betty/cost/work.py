"""How much there is to compute, by kind of operation: what a layer states next to its memory."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields

FRESH_BYTES = 32 << 20
"""Size from which on the C library asks the kernel for the pages of every new tensor, which then has to clear them."""

ITEM_BYTES = 4
"""Of float32, in which work is counted."""


@dataclass(frozen=True)
class Operations:
    """A number for every kind of operation: how many units of it there are, or how many seconds a unit takes.

    Each kind is a kernel, or a few that are always called together, whose speed differs from that of the others.

    Args:
        call: a call of an operation of PyTorch, whatever it does.
        stream: an element read or written in the order in which it lies in memory.
        fresh: a byte of a new tensor of at least :data:`FRESH_BYTES`.
        multiply: an addition or multiplication of a matrix product.
        sum: a channel of an edge, gathered and added up.
        transpose: an edge, when lists of sources are turned into lists of destinations.
        maximum: a channel of an edge, gathered and compared; backward a channel of a destination, scattered.
        gate: a channel of an edge that passes through the gates of an LSTM, matrix products aside.
        softmax: an edge and head, whose attention is computed.
        weigh: a channel of an edge and head, gathered, weighted and added up; or gathered at both ends and multiplied.
        dropout: an element hashed.
        draw: an element with a random number of PyTorch's.
        gather: an element of rows gathered in host memory.
        scatter: an element of rows added to rows in host memory.
        cut: an edge cut out of a full batch.
        transfer: a byte brought to the device.
    """

    call: float = 0.0
    stream: float = 0.0
    fresh: float = 0.0
    multiply: float = 0.0
    sum: float = 0.0
    transpose: float = 0.0
    maximum: float = 0.0
    gate: float = 0.0
    softmax: float = 0.0
    weigh: float = 0.0
    dropout: float = 0.0
    draw: float = 0.0
    gather: float = 0.0
    scatter: float = 0.0
    cut: float = 0.0
    transfer: float = 0.0

    def __add__(self, other: Operations) -> Operations:
        return Operations(*(getattr(self, kind) + getattr(other, kind) for kind in KINDS))

    def dot_product(self, other: Operations) -> float:
        """The sum of the products of both numbers of every kind: of amounts and seconds per unit, seconds."""
        return sum(getattr(self, kind) * getattr(other, kind) for kind in KINDS)


KINDS = tuple(field.name for field in fields(Operations))


@dataclass(frozen=True)
class Work:
    """What a computation takes.

    Args:
        forward: without what is done for the sake of gradients.
        backward: beside it.
    """

    forward: Operations = Operations()
    backward: Operations = Operations()

    def __add__(self, other: Work) -> Work:
        return Work(self.forward + other.forward, self.backward + other.backward)


def new_tensor(*shape: int) -> Operations:
    """To make a tensor of float32 and to write it once."""
    elements = math.prod(shape)
    num_bytes = ITEM_BYTES * elements
    return Operations(call=1, stream=elements, fresh=num_bytes if num_bytes >= FRESH_BYTES else 0)
