"""How a GraphSAGE layer reduces the neighbours of a node to one vector.

To add an aggregator, derive from :class:`Aggregator` and enter the class in :data:`AGGREGATORS`.
"""

from abc import ABC, abstractmethod

import torch
from torch import Tensor, nn

from betty.blocks import Block
from betty.errors import BettyError
from betty.models.neighbour_reduction import max_neighbours, sum_neighbours
from betty.models.neighbour_sequences import neighbour_sequences


class Aggregator(ABC):
    """Reduces the neighbours of every destination node to one vector.

    It keeps no weights: they belong to the convolution, so that they bear the names that ``dgl.nn.SAGEConv`` gives
    them and weights can be exchanged with it.
    """

    is_linear = False
    """Whether it commutes with a linear map, so that features can be projected before they are aggregated."""

    includes_self = False
    """Whether the destination's own features are part of what it returns."""

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


class Sum(Aggregator):
    """The sum over the neighbours."""

    is_linear = True

    def __call__(self, layers: nn.Module, block: Block, x: Tensor) -> Tensor:
        return sum_neighbours(block, x)


class Mean(Aggregator):
    """The mean over the neighbours (Hamilton, Ying, Leskovec: Inductive Representation Learning, 2017, section 3.3)."""

    is_linear = True

    def __call__(self, layers: nn.Module, block: Block, x: Tensor) -> Tensor:
        degrees = block.in_degrees().clamp(min=1)
        return sum_neighbours(block, x).div_(degrees.unsqueeze(1))


class GCN(Aggregator):
    """The mean over the neighbours and the node itself (the same paper, equation 2)."""

    is_linear = True
    includes_self = True

    def __call__(self, layers: nn.Module, block: Block, x: Tensor) -> Tensor:
        degrees = block.in_degrees() + 1
        return (sum_neighbours(block, x) + x[: block.num_dst]).div_(degrees.unsqueeze(1))


class Pool(Aggregator):
    """The maximum over the neighbours, each sent through a layer of its own first (the same paper, equation 3)."""

    def make_layers(self, in_feats: int) -> dict[str, nn.Module]:
        return {"fc_pool": nn.Linear(in_feats, in_feats)}

    def __call__(self, layers: nn.Module, block: Block, x: Tensor) -> Tensor:
        return max_neighbours(block, layers.fc_pool(x).relu())


class LSTM(Aggregator):
    """The last state of an LSTM that reads the neighbours in the block's order of edges (the same paper, section 3.3).

    Destinations of one degree are read together, so that there is no padding. A packed sequence of all of them would
    be one call, but on the CPU its backward fills a zero tensor of all edges for every time step.
    """

    def make_layers(self, in_feats: int) -> dict[str, nn.Module]:
        return {"lstm": nn.LSTM(in_feats, in_feats, batch_first=True)}

    def __call__(self, layers: nn.Module, block: Block, x: Tensor) -> Tensor:
        unread = x.new_zeros(block.num_dst, x.shape[1])
        if block.num_edges == 0:
            return unread
        sequences = neighbour_sequences(block)
        # One gather, cut into groups: a gather per group would make a gradient of all sources for each.
        groups = x.index_select(0, sequences.sources).split(sequences.group_edges)
        last_states = [
            self._last_states(layers.lstm, group.unflatten(0, (-1, length)))
            for group, length in zip(groups, sequences.group_lengths, strict=True)
        ]
        return unread.index_copy(0, sequences.destinations, torch.cat(last_states))

    @staticmethod
    def _last_states(lstm: nn.LSTM, sequences: Tensor) -> Tensor:
        """``[count, channels]`` out of ``[count, length, channels]``."""
        _, (last_states, _) = lstm(sequences)
        return last_states.squeeze(0)


AGGREGATORS: dict[str, type[Aggregator]] = {"mean": Mean, "sum": Sum, "gcn": GCN, "pool": Pool, "lstm": LSTM}


def make_aggregator(name: str) -> Aggregator:
    """The aggregator of that name.

    Raises:
        BettyError: there is none.
    """
    if name not in AGGREGATORS:
        raise BettyError(f"unknown aggregator {name!r}; choose one of {', '.join(AGGREGATORS)}")
    return AGGREGATORS[name]()
