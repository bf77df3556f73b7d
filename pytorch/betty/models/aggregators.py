"""How a GraphSAGE layer reduces the neighbours of a node to one vector.

To add an aggregator, derive from :class:`Aggregator` and enter the class in :data:`AGGREGATORS`.
"""

from abc import ABC, abstractmethod

from torch import Tensor, nn

from betty.blocks import Block
from betty.errors import BettyError
from betty.models.linear import Linear
from betty.models.lstm_aggregation import last_lstm_states
from betty.models.neighbour_maximum import max_neighbours
from betty.models.neighbour_reduction import destination_rows, sum_neighbours


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
        return sum_neighbours(block, x).add_(destination_rows(block, x)).div_(degrees.unsqueeze(1))


class Pool(Aggregator):
    """The maximum over the neighbours, each sent through a layer of its own first (the same paper, equation 3)."""

    def make_layers(self, in_feats: int) -> dict[str, nn.Module]:
        return {"fc_pool": Linear(in_feats, in_feats)}

    def __call__(self, layers: nn.Module, block: Block, x: Tensor) -> Tensor:
        # The ReLU of the maximum is the maximum of the ReLUs, of which there would be more.
        return max_neighbours(block, layers.fc_pool(x)).relu_()


class LSTM(Aggregator):
    """The last state of an LSTM that reads the neighbours in the order of edges (the same paper, section 3.3)."""

    def make_layers(self, in_feats: int) -> dict[str, nn.Module]:
        return {"lstm": nn.LSTM(in_feats, in_feats, batch_first=True)}

    def __call__(self, layers: nn.Module, block: Block, x: Tensor) -> Tensor:
        return last_lstm_states(block, x, layers.lstm)


AGGREGATORS: dict[str, type[Aggregator]] = {"mean": Mean, "sum": Sum, "gcn": GCN, "pool": Pool, "lstm": LSTM}


def make_aggregator(name: str) -> Aggregator:
    """The aggregator of that name.

    Raises:
        BettyError: there is none.
    """
    if name not in AGGREGATORS:
        raise BettyError(f"unknown aggregator {name!r}; choose one of {', '.join(AGGREGATORS)}")
    return AGGREGATORS[name]()
