"""What all models share: layers on blocks, with ReLU and dropout between them."""

import itertools
from collections.abc import Callable, Sequence

from torch import Tensor, nn

from betty.blocks import Block
from betty.errors import BettyError


class LayeredModel(nn.Module):
    """A stack of layers, one per block.

    Args:
        make_layer: makes a layer of so many input and output channels, which is called as ``layer(block, x)``.
        in_feats: channels of the features.
        num_hidden: channels between layers.
        num_classes: channels of the result.
        num_layers: at least 1.
        dropout: probability in ``[0, 1)``.

    Attributes:
        layers: the layers, input layer first.
        widths: ``num_layers + 1`` numbers of channels; layer ``i`` takes ``widths[i]`` and returns ``widths[i + 1]``.

    Raises:
        BettyError: ``num_layers`` or ``dropout`` is out of range.
    """

    def __init__(
        self,
        make_layer: Callable[[int, int], nn.Module],
        in_feats: int,
        num_hidden: int,
        num_classes: int,
        num_layers: int,
        dropout: float,
    ) -> None:
        super().__init__()
        if num_layers < 1:
            raise BettyError(f"a model has at least 1 layer, not {num_layers}")
        if not 0 <= dropout < 1:
            raise BettyError(f"dropout {dropout} is not a probability from 0 to below 1")
        self.widths = (in_feats, *[num_hidden] * (num_layers - 1), num_classes)
        self.layers = nn.ModuleList(make_layer(*pair) for pair in itertools.pairwise(self.widths))
        self.dropout = nn.Dropout(dropout)

    @property
    def num_layers(self) -> int:
        return len(self.layers)

    def layer_forward(self, layer_index: int, block: Block, h: Tensor) -> Tensor:
        """Compute one layer; all but the last end in ReLU, then dropout.

        Args:
            layer_index: 0 is the input layer.
            block: that layer's block.
            h: floating ``[num_src, channels]``, features or what the previous layer returned.

        Returns:
            ``[num_dst, channels]``.
        """
        h = self.layers[layer_index](block, h)
        return h if layer_index == self.num_layers - 1 else self.dropout(h.relu())

    def forward(self, blocks: Sequence[Block], x: Tensor) -> Tensor:
        """Compute the logits of the output nodes.

        Args:
            blocks: one per layer, input layer first.
            x: floating ``[num_input_nodes, in_feats]``, the features of the first block's sources.

        Returns:
            ``[num_output_nodes, num_classes]``.

        Raises:
            BettyError: the blocks do not fit the layers or the features.
        """
        if len(blocks) != self.num_layers:
            raise BettyError(
                f"{len(blocks)} blocks for a model of {self.num_layers} layers; give one fan-out per layer"
            )
        if x.shape[0] != blocks[0].num_src:
            raise BettyError(f"features of {x.shape[0]} nodes for a block with {blocks[0].num_src} sources")
        for layer_index, block in enumerate(blocks):
            x = self.layer_forward(layer_index, block, x)
        return x
