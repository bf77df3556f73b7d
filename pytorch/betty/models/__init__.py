"""Models on blocks, and the aggregators they are made of."""

from betty.models.aggregators import AGGREGATORS, Aggregator
from betty.models.exact_dropout import DROPOUT_MODES, ExactDropout, dropout_key
from betty.models.gat import GAT
from betty.models.gat_conv import GATConv
from betty.models.graphsage import GraphSAGE
from betty.models.layered_model import LayeredModel
from betty.models.mlp import MLP
from betty.models.sage_conv import SAGEConv

__all__ = [
    "AGGREGATORS",
    "DROPOUT_MODES",
    "GAT",
    "MLP",
    "Aggregator",
    "ExactDropout",
    "GATConv",
    "GraphSAGE",
    "LayeredModel",
    "SAGEConv",
    "dropout_key",
]
