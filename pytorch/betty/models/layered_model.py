"""What all models share: layers on blocks, with a norm, an activation and dropout between them."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager

from torch import Tensor, nn, relu

from betty.blocks import Block
from betty.cost.work import Operations, Work, new_tensor
from betty.errors import BettyError
from betty.memory.tape import Held, Tape
from betty.models.exact_dropout import make_dropout
from betty.models.norms import make_norm


class LayeredModel(nn.Module):
    """A stack of layers, one per block.

    Args:
        make_layer: makes a layer of so many input and output channels, which is called as ``layer(block, x)``.
        in_feats: channels of the features.
        num_hidden: channels between layers.
        num_classes: channels of the result.
        num_layers: at least 1.
        dropout: probability in ``[0, 1)``.
        dropout_mode: ``"exact"`` for masks that depend on the node, the same in every micro-batch inside of
            :func:`betty.dropout_key` and new ones in every call outside of it; ``"torch"`` for PyTorch's dropout.
        make_first_layer: makes the input layer, where that is of another kind.
        make_last_layer: makes the last layer, where that is of another kind; a single layer is the last one.
        activation: of what all layers but the last return.
        norm: of what all layers but the last return, before the activation; a name in
            :data:`betty.models.norms.NORMS`.

    Attributes:
        layers: the layers, input layer first.
        norms: that of every layer but the last.
        dropouts: that of every layer but the last.
        widths: ``num_layers + 1`` numbers of channels; layer ``i`` takes ``widths[i]`` and returns ``widths[i + 1]``.

    Raises:
        BettyError: ``num_layers`` or ``dropout`` is out of range, or there is no such mode or norm.
    """

    def __init__(
        self,
        make_layer: Callable[[int, int], nn.Module],
        in_feats: int,
        num_hidden: int,
        num_classes: int,
        num_layers: int,
        dropout: float,
        dropout_mode: str = "exact",
        make_first_layer: Callable[[int, int], nn.Module] | None = None,
        make_last_layer: Callable[[int, int], nn.Module] | None = None,
        activation: Callable[[Tensor], Tensor] = relu,
        norm: str = "none",
    ) -> None:
        super().__init__()
        if num_layers < 1:
            raise BettyError(f"a model has at least 1 layer, not {num_layers}")
        self.widths = (in_feats, *[num_hidden] * (num_layers - 1), num_classes)
        makers = [make_layer] * num_layers
        makers[0] = make_first_layer or make_layer
        makers[-1] = make_last_layer or make_layer
        widths = itertools.pairwise(self.widths)
        self.layers = nn.ModuleList(make(*pair) for make, pair in zip(makers, widths, strict=True))
        self.norms = nn.ModuleList(make_norm(norm, channels) for channels in self.widths[1:-1])
        self.activation = activation
        dropouts = [make_dropout(dropout_mode, dropout) for _ in range(num_layers)]
        self.dropouts = nn.ModuleList(dropouts[:-1])

    @property
    def num_layers(self) -> int:
        return len(self.layers)

    def layer_forward(self, layer_index: int, block: Block, h: Tensor) -> Tensor:
        """Compute one layer: :meth:`convolve` and, but for the last one, its norm and :meth:`activate`.

        Args:
            layer_index: 0 is the input layer.
            block: that layer's block.
            h: floating ``[num_src, channels]``, features or what the previous layer returned.

        Returns:
            ``[num_dst, channels]``.
        """
        h = self.convolve(layer_index, block, h)
        if layer_index == self.num_layers - 1:
            return h
        h = self.norms[layer_index](h)
        return self.activate(layer_index, h, block.dst_ids)

    def convolve(self, layer_index: int, block: Block, h: Tensor) -> Tensor:
        """Compute one layer without what comes after it; arguments and shape of the result as for the whole layer."""
        return self.layers[layer_index](block, h)

    def activate(self, layer_index: int, h: Tensor, node_ids: Tensor) -> Tensor:
        """The activation, then dropout, with which all layers but the last end.

        Args:
            layer_index: of such a layer.
            h: floating ``[num_nodes, channels]``, what the layer's norm returned.
            node_ids: int64 ``[num_nodes]``, global ids.

        Returns:
            ``[num_nodes, channels]``.
        """
        return self.dropouts[layer_index](self.activation(h), node_ids)

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
        self._check(blocks)
        if x.shape[0] != blocks[0].num_src:
            raise BettyError(f"features of {x.shape[0]} nodes for a block with {blocks[0].num_src} sources")
        for layer_index, block in enumerate(blocks):
            x = self.layer_forward(layer_index, block, x)
        return x

    def _check(self, blocks: Sequence[Block]) -> None:
        if len(blocks) != self.num_layers:
            raise BettyError(
                f"{len(blocks)} blocks for a model of {self.num_layers} layers; give one fan-out per layer"
            )

    @contextmanager
    def memory(self, tape: Tape, blocks: Sequence[Block], x: Held) -> Iterator[Held]:
        """What a forward and a backward take, see :class:`~betty.memory.tape.Tape`.

        Args:
            tape: to be played on.
            blocks: one per layer, input layer first; of them only the degrees and the numbers of nodes count.
            x: the features.

        Raises:
            BettyError: the blocks do not fit the layers.
        """
        self._check(blocks)
        with self.stage_memory(tape, range(self.num_layers), blocks, x) as result:
            yield result

    @contextmanager
    def stage_memory(self, tape: Tape, layers: range, blocks: Sequence[Block], x: Held) -> Iterator[Held]:
        """The same of some consecutive layers, whose input gets a gradient unless it is the features."""
        with ExitStack() as stack:
            for layer_index, block in zip(layers, blocks, strict=True):
                result = stack.enter_context(self.layer_memory(tape, layer_index, block, x))
                tape.free(x)
                x = result
            yield x

    @contextmanager
    def layer_memory(self, tape: Tape, layer_index: int, block: Block, x: Held) -> Iterator[Held]:
        """What :meth:`layer_forward` and its backward take; features, that is the input of layer 0, get no gradient."""
        with self.convolve_memory(tape, layer_index, block, x) as h:
            if layer_index == self.num_layers - 1:
                yield h
                return
            with self.norms[layer_index].memory(tape, h, block.num_dst) as normalized:
                tape.free(h)
                with self.activate_memory(tape, layer_index, block.num_dst, normalized) as activated:
                    tape.free(normalized)
                    yield activated

    def convolve_memory(self, tape: Tape, layer_index: int, block: Block, x: Held) -> AbstractContextManager[Held]:
        """What :meth:`convolve` and its backward take; features, that is the input of layer 0, get no gradient."""
        return self.layers[layer_index].memory(tape, block, x, needs_gradient=layer_index > 0)

    @contextmanager
    def activate_memory(self, tape: Tape, layer_index: int, num_rows: int, h: Held) -> Iterator[Held]:
        """What :meth:`activate` and its backward take of so many rows."""
        size = (num_rows, self.widths[layer_index + 1])
        activated = tape.allocate("hidden", *size)
        # ReLU needs its result for the backward, others what they were given.
        saved = tape.save(activated if self.activation is relu else h)
        dropout = self.dropouts[layer_index]
        if tape.trains and dropout.probability > 0:
            with dropout.memory(tape, *size) as dropped:
                tape.free(activated)
                yield dropped
        else:
            yield activated
        tape.replace_gradient(*size)
        tape.free(saved)

    def layer_work(self, layer_index: int, block: Block) -> Work:
        """What :meth:`layer_forward` and its backward compute in training.

        Args:
            layer_index: 0 is the input layer, whose input needs no gradient.
            block: of that layer; of it only the degrees and the numbers of nodes count.
        """
        work = self.layers[layer_index].work(block, needs_gradient=layer_index > 0)
        if layer_index == self.num_layers - 1:
            return work
        size = (block.num_dst, self.widths[layer_index + 1])
        activated = new_tensor(*size) + Operations(stream=size[0] * size[1])
        work += self.norms[layer_index].work(block.num_dst) + Work(activated, activated)
        dropout = self.dropouts[layer_index]
        return work + dropout.work(*size) if dropout.probability > 0 else work
