"""A baseline that sees features only, to show what the neighbours add."""

from torch import Tensor, nn

from betty.blocks import Block
from betty.models.layered_model import LayeredModel


class MLP(LayeredModel):
    """Linear layers on the output nodes' own features, with ReLU, then dropout, between them.

    It takes the blocks of a graph neural network of as many layers and uses nothing of them but the output nodes.

    Args:
        in_feats: channels of the features.
        num_hidden: channels between layers.
        num_classes: channels of the result.
        num_layers: at least 1.
        dropout: probability in ``[0, 1)``.

    Raises:
        BettyError: a number is out of range.
    """

    def __init__(self, in_feats: int, num_hidden: int, num_classes: int, num_layers: int, dropout: float = 0.5) -> None:
        super().__init__(_OwnFeatures, in_feats, num_hidden, num_classes, num_layers, dropout)


class _OwnFeatures(nn.Linear):
    def forward(self, block: Block, x: Tensor) -> Tensor:
        return super().forward(x[: block.num_dst])
