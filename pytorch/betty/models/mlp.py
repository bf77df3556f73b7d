"""A baseline that sees features only, to show what the neighbours add."""

from torch import Tensor

from betty.blocks import Block
from betty.models.layered_model import LayeredModel
from betty.models.linear import Linear


class MLP(LayeredModel):
    """Linear layers on the output nodes' own features, with ReLU, then dropout, between them.

    It takes the blocks of a graph neural network of as many layers and uses nothing of them but the output nodes.

    Args:
        in_feats: channels of the features.
        num_hidden: channels between layers.
        num_classes: channels of the result.
        num_layers: at least 1.
        dropout: probability in ``[0, 1)``.
        dropout_mode: ``"exact"`` or ``"torch"``, see :class:`~betty.models.LayeredModel`.

    Raises:
        BettyError: a number is out of range, or there is no such mode.
    """

    def __init__(
        self,
        in_feats: int,
        num_hidden: int,
        num_classes: int,
        num_layers: int,
        dropout: float = 0.5,
        dropout_mode: str = "exact",
    ) -> None:
        super().__init__(_OwnFeatures, in_feats, num_hidden, num_classes, num_layers, dropout, dropout_mode)


class _OwnFeatures(Linear):
    def forward(self, block: Block, x: Tensor) -> Tensor:
        return super().forward(x[: block.num_dst])
