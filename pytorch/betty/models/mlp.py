"""A baseline that sees features only, to show what the neighbours add."""

from collections.abc import Iterator
from contextlib import contextmanager

from torch import Tensor

from betty.blocks import Block
from betty.cost.work import Work, new_tensor
from betty.memory.tape import Held, Tape
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
        dropout: float = 0.5,
        dropout_mode: str = "exact",
        norm: str = "none",
    ) -> None:
        super().__init__(_OwnFeatures, in_feats, num_hidden, num_classes, num_layers, dropout, dropout_mode, norm=norm)


class _OwnFeatures(Linear):
    def forward(self, block: Block, x: Tensor) -> Tensor:
        return super().forward(x[: block.num_dst])

    @contextmanager
    def memory(self, tape: Tape, block: Block, x: Held, needs_gradient: bool) -> Iterator[Held]:
        with super().memory(tape, x, block.num_dst, needs_gradient) as result:
            yield result
        if needs_gradient:
            # The gradient of a slice is as large as what it was cut from.
            tape.replace_gradient(block.num_src, self.in_features)

    def work(self, block: Block, needs_gradient: bool) -> Work:
        of_slice = Work(backward=new_tensor(block.num_src, self.in_features)) if needs_gradient else Work()
        return super().work(block.num_dst, needs_gradient) + of_slice
