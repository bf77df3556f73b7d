"""How fast a device is at every kind of operation."""

from __future__ import annotations

from dataclasses import dataclass

from betty.cost.work import Operations, Work


@dataclass(frozen=True)
class Speed:
    """Seconds that a unit of every kind of operation takes.

    Args:
        forward: in a forward, and in what surrounds a micro-batch.
        backward: in a backward, where kernels are others.
    """

    forward: Operations
    backward: Operations

    def seconds_forward(self, work: Work) -> float:
        """What the forward takes."""
        return self.forward.dot_product(work.forward)

    def seconds_backward(self, work: Work) -> float:
        """What the backward takes beside it."""
        return self.backward.dot_product(work.backward)
