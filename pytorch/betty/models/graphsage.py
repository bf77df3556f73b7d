"""GraphSAGE (Hamilton, Ying, Leskovec: Inductive Representation Learning on Large Graphs, 2017)."""

from functools import partial

from betty.models.layered_model import LayeredModel
from betty.models.sage_conv import SAGEConv


class GraphSAGE(LayeredModel):
    """GraphSAGE layers with ReLU, then dropout, between them.

    Args:
        in_feats: channels of the features.
        num_hidden: channels between layers.
        num_classes: channels of the result.
        num_layers: at least 1.
        aggre: the aggregator, a name in :data:`betty.models.AGGREGATORS`.
        dropout: probability in ``[0, 1)``.
        dropout_mode: ``"exact"`` or ``"torch"``, see :class:`~betty.models.LayeredModel`.
        residual: whether every layer but the input layer adds to its result what goes into it, the last one (also where
            it is the only one) after a projection to the classes unless it is as wide.
        norm: of what goes into an activation, a name in :data:`betty.models.norms.NORMS`.

    Raises:
        BettyError: there is no such aggregator, mode or norm, or a number is out of range.
    """

    def __init__(
        self,
        in_feats: int,
        num_hidden: int,
        num_classes: int,
        num_layers: int,
        aggre: str = "mean",
        dropout: float = 0.5,
        dropout_mode: str = "exact",
        residual: bool = False,
        norm: str = "none",
    ) -> None:
        make_layer = partial(SAGEConv, aggregator=aggre, residual=residual)
        super().__init__(
            make_layer,
            in_feats,
            num_hidden,
            num_classes,
            num_layers,
            dropout,
            dropout_mode,
            make_first_layer=partial(SAGEConv, aggregator=aggre),
            make_last_layer=make_layer,
            norm=norm,
        )
