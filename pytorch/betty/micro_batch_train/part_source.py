"""Where the planner gets parts from: any number of them, small ones to be joined, or one part in two."""

from __future__ import annotations

from typing import Protocol

from torch import Tensor


class PartSource(Protocol):
    """Makes parts of one full batch, as :class:`~betty.micro_batch_train.graph_partitioner.Partitioner` does.

    Parts are int64 tensors of positions in the full batch's ``output_ids``, as :func:`~betty.partition` returns them.
    """

    @property
    def refines(self) -> bool:
        """Whether parts are better than runs of segments: it is worth while to try a smaller number of them."""
        ...

    def parts(self, num_parts: int) -> list[Tensor]:
        """The whole full batch in so many parts, or in fewer where some come out empty.

        From one output node per part on, every output node is a part.
        """

    def segments(self, num_segments: int) -> list[Tensor]:
        """The same in small parts: neighbours in the list should share more than others, since runs are joined."""

    def halves(self, part: Tensor) -> list[Tensor]:
        """A part of several output nodes in two parts or more."""
