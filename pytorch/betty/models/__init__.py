"""Models on blocks, and the aggregators they are made of."""

from betty.models.aggregators import AGGREGATORS, Aggregator
from betty.models.graphsage import GraphSAGE
from betty.models.layered_model import LayeredModel
from betty.models.mlp import MLP
from betty.models.sage_conv import SAGEConv

__all__ = ["AGGREGATORS", "MLP", "Aggregator", "GraphSAGE", "LayeredModel", "SAGEConv"]
