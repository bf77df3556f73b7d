"""Graph attention networks (Veličković, Cucurull, Casanova, Romero, Liò, Bengio: Graph Attention Networks, 2018)."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

from torch import Tensor
from torch.nn.functional import elu

from betty.blocks import Block
from betty.cost.work import Work, new_tensor
from betty.memory.tape import Held, Tape
from betty.models.gat_conv import GATConv
from betty.models.layered_model import LayeredModel


class GAT(LayeredModel):
    """Graph attention layers with ELU, then dropout, between them.

    The heads of a hidden layer stand side by side, those of the last layer are averaged (section 3.3). A node does not
    attend to itself unless the graph has that edge.

    Args:
        in_feats: channels of the features.
        num_hidden: channels between layers, per head.
        num_classes: channels of the result.
        num_layers: at least 1.
        num_heads: of every layer, at least 1.
        dropout: probability in ``[0, 1)``.
        attention_dropout: probability in ``[0, 1)`` of an edge to be left out by a head, in every layer.
        dropout_mode: ``"exact"`` or ``"torch"``, see :class:`~betty.models.LayeredModel`.
        residual: whether every layer but the input layer adds to its result what goes into it, the last one (also where
            it is the only one) after a projection to all heads' classes unless it is as wide.
        norm: of what goes into an activation, a name in :data:`betty.models.norms.NORMS`.

    Raises:
        BettyError: a number is out of range, or there is no such mode or norm.
    """

    def __init__(
        self,
        in_feats: int,
        num_hidden: int,
        num_classes: int,
        num_layers: int,
        num_heads: int = 4,
        dropout: float = 0.5,
        attention_dropout: float = 0.0,
        dropout_mode: str = "exact",
        residual: bool = False,
        norm: str = "none",
    ) -> None:
        settings = {"num_heads": num_heads, "attn_drop": attention_dropout, "dropout_mode": dropout_mode}
        super().__init__(
            lambda in_feats, _: _ConcatenatedHeads(in_feats, num_hidden, residual=residual, **settings),
            in_feats,
            num_hidden * num_heads,
            num_classes,
            num_layers,
            dropout,
            dropout_mode,
            make_first_layer=lambda in_feats, _: _ConcatenatedHeads(in_feats, num_hidden, **settings),
            make_last_layer=partial(_AveragedHeads, residual=residual, **settings),
            activation=elu,
            norm=norm,
        )


class _ConcatenatedHeads(GATConv):
    def forward(self, block: Block, x: Tensor) -> Tensor:
        return super().forward(block, x).flatten(1)


class _AveragedHeads(GATConv):
    def forward(self, block: Block, x: Tensor) -> Tensor:
        return super().forward(block, x).mean(1)

    @contextmanager
    def memory(self, tape: Tape, block: Block, x: Held, needs_gradient: bool) -> Iterator[Held]:
        with super().memory(tape, block, x, needs_gradient) as heads:
            result = tape.allocate("hidden", block.num_dst, self.out_feats)
            tape.free(heads)
            yield result
            tape.replace_gradient(block.num_dst, self.num_heads, self.out_feats)

    def work(self, block: Block, needs_gradient: bool) -> Work:
        heads = new_tensor(block.num_dst, self.num_heads, self.out_feats)
        return super().work(block, needs_gradient) + Work(heads, heads)
