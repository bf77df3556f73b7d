"""How a GraphSAGE layer reduces the neighbours of a node to one vector.

To add an aggregator, derive from :class:`Aggregator` and enter the class in :data:`AGGREGATORS`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager

import torch
from torch import Tensor, nn

from betty.blocks import Block
from betty.cost.work import Operations, Work, new_tensor
from betty.errors import BettyError
from betty.memory.tape import Held, Tape
from betty.models.linear import Linear
from betty.models.lstm_aggregation import last_lstm_states, lstm_memory, lstm_work
from betty.models.neighbour_maximum import max_neighbours, maximum_memory, maximum_work
from betty.models.neighbour_reduction import (
    destination_rows,
    destination_rows_memory,
    destination_rows_work,
    sum_memory,
    sum_neighbours,
    sum_work,
)


class Aggregator(ABC):
    """Reduces the neighbours of every destination node to one vector.

    It keeps no weights: they belong to the convolution, so that they bear the names that ``dgl.nn.SAGEConv`` gives
    them and weights can be exchanged with it.
    """

    is_linear = False
    """Whether it commutes with a linear map, so that features can be projected before they are aggregated."""

    includes_self = False
    """Whether the destination's own features are part of what it returns."""

    has_weights = False
    """Whether :meth:`make_layers` makes any."""

    def make_layers(self, in_feats: int) -> dict[str, nn.Module]:
        """The layers with weights that the convolution holds for it, by name."""
        return {}

    @abstractmethod
    def __call__(self, layers: nn.Module, block: Block, x: Tensor) -> Tensor:
        """Aggregate.

        Args:
            layers: has those of :meth:`make_layers` as attributes.
            block: the layer's block.
            x: floating ``[num_src, channels]``, a row per source node.

        Returns:
            ``[num_dst, channels]``; zeros for a destination without neighbours, unless ``includes_self``.
        """

    @abstractmethod
    def memory(
        self, layers: nn.Module, tape: Tape, block: Block, x: Held, channels: int, needs_gradient: bool
    ) -> AbstractContextManager[Held]:
        """What the aggregation takes, see :class:`~betty.memory.tape.Tape`.

        Args:
            layers: as above.
            tape: to be played on.
            block: the layer's block.
            x: the input.
            channels: of the input.
            needs_gradient: whether the input needs one.
        """

    @abstractmethod
    def work(self, layers: nn.Module, block: Block, channels: int, needs_gradient: bool) -> Work:
        """What the aggregation computes.

        Args:
            layers: as above.
            block: the layer's block, of which only the degrees and the numbers of nodes count.
            channels: of the input.
            needs_gradient: whether the input needs one.
        """


class Sum(Aggregator):
    """The sum over the neighbours."""

    is_linear = True

    def __call__(self, layers: nn.Module, block: Block, x: Tensor) -> Tensor:
        return sum_neighbours(block, x)

    def memory(
        self, layers: nn.Module, tape: Tape, block: Block, x: Held, channels: int, needs_gradient: bool
    ) -> AbstractContextManager[Held]:
        return sum_memory(tape, block, channels, needs_gradient)

    def work(self, layers: nn.Module, block: Block, channels: int, needs_gradient: bool) -> Work:
        return sum_work(block, channels, needs_gradient)


class Mean(Aggregator):
    """The mean over the neighbours (Hamilton, Ying, Leskovec: Inductive Representation Learning, 2017, section 3.3)."""

    is_linear = True

    def __call__(self, layers: nn.Module, block: Block, x: Tensor) -> Tensor:
        degrees = block.in_degrees().clamp(min=1)
        return sum_neighbours(block, x).div_(degrees.unsqueeze(1))

    @contextmanager
    def memory(
        self, layers: nn.Module, tape: Tape, block: Block, x: Held, channels: int, needs_gradient: bool
    ) -> Iterator[Held]:
        with (
            sum_memory(tape, block, channels, needs_gradient) as result,
            _division_memory(tape, block, channels, needs_gradient),
        ):
            yield result

    def work(self, layers: nn.Module, block: Block, channels: int, needs_gradient: bool) -> Work:
        return sum_work(block, channels, needs_gradient) + _division_work(block, channels, needs_gradient)


class GCN(Aggregator):
    """The mean over the neighbours and the node itself (the same paper, equation 2)."""

    is_linear = True
    includes_self = True

    def __call__(self, layers: nn.Module, block: Block, x: Tensor) -> Tensor:
        degrees = block.in_degrees() + 1
        return sum_neighbours(block, x).add_(destination_rows(block, x)).div_(degrees.unsqueeze(1))

    @contextmanager
    def memory(
        self, layers: nn.Module, tape: Tape, block: Block, x: Held, channels: int, needs_gradient: bool
    ) -> Iterator[Held]:
        with sum_memory(tape, block, channels, needs_gradient) as result:
            with _division_memory(tape, block, channels, needs_gradient):
                yield result
            # The gradient of the destinations' own features is that of the sum.
            of_own = tape.share(tape.gradient) if needs_gradient else None
            of_own = destination_rows_memory(tape, of_own, block.num_dst)
        tape.free(*of_own)

    def work(self, layers: nn.Module, block: Block, channels: int, needs_gradient: bool) -> Work:
        of_own = destination_rows_work(block.num_dst, channels, needs_gradient)
        sums = sum_work(block, channels, needs_gradient)
        added = Work(Operations(call=1, stream=2 * block.num_dst * channels))
        return sums + added + _division_work(block, channels, needs_gradient) + of_own


@contextmanager
def _division_memory(tape: Tape, block: Block, channels: int, needs_gradient: bool) -> Iterator[None]:
    """What it takes to divide sums by degrees, in place."""
    with tape.temporary("aggregator", block.num_dst, dtype=torch.int64):
        degrees = tape.allocate("aggregator", block.num_dst, dtype=torch.int64)
    if not (tape.trains and needs_gradient):
        tape.free(degrees)
        yield
        return
    yield
    tape.replace_gradient(block.num_dst, channels)
    tape.free(degrees)


def _division_work(block: Block, channels: int, needs_gradient: bool) -> Work:
    forward = Operations(call=4, stream=2 * block.num_dst * channels)
    return Work(forward, new_tensor(block.num_dst, channels)) if needs_gradient else Work(forward)


class Pool(Aggregator):
    """The maximum over the neighbours, each sent through a layer of its own first (the same paper, equation 3)."""

    has_weights = True

    def make_layers(self, in_feats: int) -> dict[str, nn.Module]:
        return {"fc_pool": Linear(in_feats, in_feats)}

    def __call__(self, layers: nn.Module, block: Block, x: Tensor) -> Tensor:
        # The ReLU of the maximum is the maximum of the ReLUs, of which there would be more.
        return max_neighbours(block, layers.fc_pool(x)).relu_()

    @contextmanager
    def memory(
        self, layers: nn.Module, tape: Tape, block: Block, x: Held, channels: int, needs_gradient: bool
    ) -> Iterator[Held]:
        with (
            layers.fc_pool.memory(tape, x, block.num_src, needs_gradient, kind="aggregator") as pooled,
            maximum_memory(tape, block, channels) as result,
        ):
            tape.free(pooled)
            saved = tape.save(result)
            yield result
            tape.replace_gradient(block.num_dst, channels)
            tape.free(saved)

    def work(self, layers: nn.Module, block: Block, channels: int, needs_gradient: bool) -> Work:
        rectified = new_tensor(block.num_dst, channels)
        pooled = layers.fc_pool.work(block.num_src, needs_gradient) + maximum_work(block, channels)
        return pooled + Work(rectified, rectified)


class LSTM(Aggregator):
    """The last state of an LSTM that reads the neighbours in the order of edges (the same paper, section 3.3)."""

    has_weights = True

    def make_layers(self, in_feats: int) -> dict[str, nn.Module]:
        return {"lstm": nn.LSTM(in_feats, in_feats, batch_first=True)}

    def __call__(self, layers: nn.Module, block: Block, x: Tensor) -> Tensor:
        return last_lstm_states(block, x, layers.lstm)

    def memory(
        self, layers: nn.Module, tape: Tape, block: Block, x: Held, channels: int, needs_gradient: bool
    ) -> AbstractContextManager[Held]:
        return lstm_memory(tape, block, x, layers.lstm, needs_gradient)

    def work(self, layers: nn.Module, block: Block, channels: int, needs_gradient: bool) -> Work:
        return lstm_work(block, layers.lstm, needs_gradient)


AGGREGATORS: dict[str, type[Aggregator]] = {"mean": Mean, "sum": Sum, "gcn": GCN, "pool": Pool, "lstm": LSTM}


def make_aggregator(name: str) -> Aggregator:
    """The aggregator of that name.

    Raises:
        BettyError: there is none.
    """
    if name not in AGGREGATORS:
        raise BettyError(f"unknown aggregator {name!r}; choose one of {', '.join(AGGREGATORS)}")
    return AGGREGATORS[name]()
