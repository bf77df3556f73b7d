"""Where the planner gets parts from: any number of them, or one part in two."""

from __future__ import annotations

from typing import Protocol

from torch import Tensor

from betty.blocks import FullBatch
from betty.micro_batch_train.graph_partitioner import Partitioner, halves


class PartSource(Protocol):
    """Makes parts of one full batch.

    Parts are int64 tensors of positions in the full batch's ``output_ids``, as :func:`~betty.partition` returns them.
    Neighbours in the list should share more than others, since micro-batches are filled with runs of them. A source
    that puts the output nodes in an order and cuts it into segments has what it takes.
    """

    def parts(self, num_parts: int) -> list[Tensor]:
        """The whole full batch in so many parts, or in fewer where some come out empty.

        From one output node per part on, every output node is a part.
        """

    def halves(self, part: Tensor) -> list[Tensor]:
        """A part of several output nodes in two parts or more."""


class MethodParts:
    """The parts of a partitioning method: those of :func:`~betty.partition`, what they have in common made once.

    METIS numbers the parts of its recursive bisection in the order of its tree, so that neighbours share the most.

    Args:
        full_batch: in host memory.
        method: a name in :data:`~betty.micro_batch_train.METHODS`, in any case.
        seed: the same seed gives the same parts.

    Raises:
        BettyError: no such method.
    """

    def __init__(self, full_batch: FullBatch, method: str, seed: int) -> None:
        self._full_batch = full_batch
        self._method = method
        self._seed = seed
        self._partitioner = Partitioner(full_batch, method, seed)

    def parts(self, num_parts: int) -> list[Tensor]:
        return self._partitioner.parts(num_parts)

    def halves(self, part: Tensor) -> list[Tensor]:
        return halves(self._full_batch, part, self._method, self._seed)
