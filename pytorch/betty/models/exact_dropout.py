"""Dropout whose masks are a function of a key, the node and the channel, and of nothing else.

Micro-batches compute some hidden nodes again. With masks out of a stream of random numbers each of them would drop
other channels of such a node, and their gradients would not sum to the full batch's. Here a counter-based generator
(Salmon, Moraes, Dror, Shaw: Parallel Random Numbers: As Easy as 1, 2, 3, 2011) hashes the key, the node's global id and
the channel to 32 bits, so that a node loses the same channels wherever it is computed: in any micro-batch, row, chunk
or thread, in any dtype, on the CPU and on CUDA.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager

import torch
from torch import Tensor, nn
from torch.autograd.function import FunctionCtx

from betty.cost.work import Operations, Work, new_tensor
from betty.errors import BettyError
from betty.memory.tape import Held, Tape
from betty.models.chunks import SERIAL_ELEMENTS, row_chunks
from betty.seeds import derive_seed

CUDA_CHUNK_ELEMENTS = 1 << 22
"""Elements that are hashed at a time on devices other than the CPU."""


def exact_dropout(x: Tensor, node_ids: Tensor, probability: float, key: int) -> Tensor:
    """Set channels to zero at random and scale the others by ``1 / (1 - probability)``.

    Nothing but ``node_ids`` is kept for the backward, which computes the mask again and can itself be differentiated.

    ``scripts/benchmark_kernels.sh`` compares its time with ``torch.nn.functional.dropout``'s.

    Args:
        x: floating ``[num_nodes, channels]``.
        node_ids: int64 ``[num_nodes]``, global ids, on the same device.
        probability: of a channel to be dropped, in ``[0, 1)``; kept to within 2⁻³².
        key: what distinguishes masks of the same node: mix seed, step and layer with
            :func:`~betty.seeds.derive_seed`.

    Returns:
        ``[num_nodes, channels]``.

    Raises:
        BettyError: the probability is out of range.
    """
    return _dropout(x, probability, key, node_ids)


def exact_edge_dropout(values: Tensor, src_ids: Tensor, dst_ids: Tensor, probability: float, key: int) -> Tensor:
    """:func:`exact_dropout` of values on edges, by the global ids of both ends.

    Parallel edges share a mask.

    Args:
        values: floating ``[num_edges, channels]``, e.g. a channel per attention head.
        src_ids: int64 ``[num_edges]``, global ids of the source nodes.
        dst_ids: int64 ``[num_edges]``, global ids of the destination nodes.
        probability: of a channel to be dropped, in ``[0, 1)``.
        key: as for :func:`exact_dropout`.

    Returns:
        ``[num_edges, channels]``.

    Raises:
        BettyError: the probability is out of range.
    """
    return _dropout(values, probability, key, src_ids, dst_ids)


class Dropout(nn.Module, ABC):
    """What the two modes of dropout share.

    Args:
        probability: of a channel to be dropped, in ``[0, 1)``.

    Raises:
        BettyError: the probability is out of range.
    """

    def __init__(self, probability: float) -> None:
        super().__init__()
        _check(probability)
        self.probability = probability

    def forward(self, x: Tensor, *ids: Tensor) -> Tensor:
        """Drop channels in training mode, and return ``x`` otherwise.

        Args:
            x: floating ``[num_rows, channels]``.
            ids: int64 ``[num_rows]`` each: the global id of each row's node, or of an edge's source and destination.

        Returns:
            ``[num_rows, channels]``.
        """
        return self.drop(x, *ids) if self.training and self.probability > 0 else x

    @abstractmethod
    def drop(self, x: Tensor, *ids: Tensor) -> Tensor:
        """What :meth:`forward` does in training mode."""

    @abstractmethod
    def memory(self, tape: Tape, num_rows: int, channels: int) -> AbstractContextManager[Held]:
        """What :meth:`drop` takes, see :class:`~betty.memory.tape.Tape`."""

    @abstractmethod
    def work(self, num_rows: int, channels: int) -> Work:
        """What :meth:`drop` computes."""

    def extra_repr(self) -> str:
        return f"probability={self.probability}"


class ExactDropout(Dropout):
    """:func:`exact_dropout` and :func:`exact_edge_dropout` as a module.

    Inside of :func:`dropout_key` all calls drop the same channels of the same node. Outside of it, every call draws a
    key from PyTorch's global CPU generator, so that it drops others each time, as ``torch.nn.Dropout`` does.

    Args:
        probability: of a channel to be dropped, in ``[0, 1)``.

    Attributes:
        key: that of the next calls, or ``None`` for a new one each; :func:`dropout_key` sets it.

    Raises:
        BettyError: the probability is out of range.
    """

    def __init__(self, probability: float) -> None:
        super().__init__(probability)
        self.key: int | None = None

    def drop(self, x: Tensor, *ids: Tensor) -> Tensor:
        key = int(torch.randint(1 << 62, ())) if self.key is None else self.key
        return _dropout(x, self.probability, key, *ids)

    @contextmanager
    def memory(self, tape: Tape, num_rows: int, channels: int) -> Iterator[Held]:
        yield _drop_memory(tape, "hidden", num_rows, channels)
        before = tape.gradient
        tape.gradient = _drop_memory(tape, "backward", num_rows, channels)
        tape.free(before)

    def work(self, num_rows: int, channels: int) -> Work:
        dropped = Operations(call=20, dropout=num_rows * channels) + new_tensor(num_rows, channels)
        return Work(dropped, dropped)


class TorchDropout(Dropout):
    """PyTorch's dropout, which draws other masks in every micro-batch that computes a node.

    Args:
        probability: of a channel to be dropped, in ``[0, 1)``.

    Raises:
        BettyError: the probability is out of range.
    """

    def drop(self, x: Tensor, *ids: Tensor) -> Tensor:
        return nn.functional.dropout(x, self.probability)

    @contextmanager
    def memory(self, tape: Tape, num_rows: int, channels: int) -> Iterator[Held]:
        # PyTorch keeps what it multiplied with; on CUDA a mask.
        dtype = torch.bool if tape.device_type == "cuda" else tape.dtype
        mask = tape.allocate("hidden", num_rows, channels, dtype=dtype)
        yield tape.allocate("hidden", num_rows, channels)
        tape.replace_gradient(num_rows, channels)
        tape.free(mask)

    def work(self, num_rows: int, channels: int) -> Work:
        written = new_tensor(num_rows, channels)
        return Work(Operations(draw=num_rows * channels) + written + written, written)


DROPOUT_MODES: dict[str, type[Dropout]] = {"exact": ExactDropout, "torch": TorchDropout}


def make_dropout(mode: str, probability: float) -> Dropout:
    """The dropout of that mode.

    Raises:
        BettyError: there is no such mode, or the probability is out of range.
    """
    if mode not in DROPOUT_MODES:
        raise BettyError(f"unknown dropout mode {mode!r}; choose one of {', '.join(DROPOUT_MODES)}")
    return DROPOUT_MODES[mode](probability)


@contextmanager
def dropout_key(model: nn.Module, key: int) -> Iterator[None]:
    """Let all calls of a model inside the ``with`` drop the same channels of the same nodes.

    It reaches every :class:`ExactDropout` in the model, each of which gets a stream of its own; a model without any is
    left alone. The backward may run later.

    Args:
        model: any module.
        key: a non-negative integer, another one in every optimizer step.

    Raises:
        BettyError: the key is negative.
    """
    if key < 0:
        raise BettyError(f"the key of dropout is {key}; it has to be 0 or above")
    dropouts = [module for module in model.modules() if isinstance(module, ExactDropout)]
    before = [dropout.key for dropout in dropouts]
    for layer, dropout in enumerate(dropouts):
        dropout.key = derive_seed(key, "dropout", layer)
    try:
        yield
    finally:
        for dropout, previous in zip(dropouts, before, strict=True):
            dropout.key = previous


def _check(probability: float) -> None:
    if not 0 <= probability < 1:
        raise BettyError(f"dropout {probability} is not a probability from 0 to below 1")


def _dropout(x: Tensor, probability: float, key: int, *ids: Tensor) -> Tensor:
    _check(probability)
    return _ExactDropout.apply(x, probability, key, *ids) if probability > 0 else x


class _ExactDropout(torch.autograd.Function):
    """Linear, and the same map backward as forward."""

    @staticmethod
    def forward(ctx: FunctionCtx, x: Tensor, probability: float, key: int, *ids: Tensor) -> Tensor:
        ctx.save_for_backward(*ids)
        ctx.probability, ctx.key = probability, key
        return _drop(x, probability, key, *ids)

    @staticmethod
    def backward(ctx: FunctionCtx, gradient: Tensor) -> tuple[Tensor | None, ...]:
        dropped = _ExactDropout.apply(gradient, ctx.probability, ctx.key, *ctx.saved_tensors)
        return dropped, None, None, *[None for _ in ctx.saved_tensors]


def _drop(x: Tensor, probability: float, key: int, *ids: Tensor) -> Tensor:
    elements = _chunk_elements(x.device.type)
    low, high = _halves(torch.cat([_hash(key, *chunk) for chunk in row_chunks(elements, *ids)]))
    # No node has a negative id, so that no channel has the word of a node.
    channels, _ = _halves(_hash(key, torch.arange(-x.shape[1], 0, device=x.device)))
    threshold = min(round(probability * 2**32), 2**32 - 1) - 2**31

    result = x * (1 / (1 - probability))
    num_rows = _chunk_rows(elements, x.shape[1])
    hashed, shifted = torch.empty(2, *x[:num_rows].shape, dtype=torch.int32, device=x.device)
    kept = torch.empty_like(hashed, dtype=x.dtype)
    for result_chunk, *words in row_chunks(elements, result, low, high):
        hashed, shifted, kept = (buffer[: len(result_chunk)] for buffer in (hashed, shifted, kept))
        _hash_channels(*words, channels.T, out=hashed, scratch=shifted)
        # Compared into numbers: PyTorch takes several times longer to compare into bool and to use that.
        result_chunk.mul_(torch.ge(hashed, threshold, out=kept))
    return result


def _drop_memory(tape: Tape, kind: str, num_rows: int, channels: int) -> Held:
    """What :func:`_drop` takes; holds its result."""
    elements = _chunk_elements(tape.device_type)
    with tape.temporary(kind, num_rows, dtype=torch.int64):
        # The words of all chunks, before they are joined; or the last chunk and what is shifted.
        tape.touch(kind, max(num_rows, 2 * min(num_rows, elements)), dtype=torch.int64)
        result = tape.allocate(kind, num_rows, channels)
        rows = min(num_rows, _chunk_rows(elements, channels))
        # Two of numbers that are hashed, one of those that PyTorch compares before it converts them.
        with tape.temporary(kind, 3, rows, channels, dtype=torch.int32):
            tape.touch(kind, rows, channels)
    return result


def _chunk_elements(device_type: str) -> int:
    return SERIAL_ELEMENTS if device_type == "cpu" else CUDA_CHUNK_ELEMENTS


def _chunk_rows(elements: int, channels: int) -> int:
    return max(1, elements // max(1, channels))


def _hash(key: int, *ids: Tensor) -> Tensor:
    """A hash of 64 bits of every row's ids, as int64."""
    words, *others = ids
    words = _mix_64_(_mix_64_(words + _signed(0x9E3779B97F4A7C15, 64)).add_(key))
    for other in others:
        words = _mix_64_(words.add_(other))
    return words


def _hash_channels(low: Tensor, high: Tensor, channels: Tensor, out: Tensor, scratch: Tensor) -> None:
    """Hash rows and channels to 32 bits, of which the upper ones, at which the threshold looks, depend on all input.

    Args:
        low: int32 ``[num_rows, 1]``, half of the rows' words.
        high: int32 ``[num_rows, 1]``, the other half, without which pairs of channels of some nodes would go together.
        channels: int32 ``[1, num_channels]``, the channels' words.
        out: int32 ``[num_rows, num_channels]``, for the result.
        scratch: the same again.
    """
    # The shifts copy the sign. That costs one bit of 32 and saves a mask each time.
    torch.bitwise_xor(low, channels, out=out)
    out.bitwise_xor_(torch.bitwise_right_shift(out, 16, out=scratch)).mul_(_signed(0x7FEB352D, 32)).add_(high)
    out.bitwise_xor_(torch.bitwise_right_shift(out, 15, out=scratch)).mul_(_signed(0x846CA68B, 32))


def _mix_64_(words: Tensor) -> Tensor:
    """Stafford's thirteenth mixer of 64 bits (Steele, Lea, Flood: Fast Splittable Pseudorandom Number Generators)."""
    words = _xor_shift_64_(words, 30).mul_(_signed(0xBF58476D1CE4E5B9, 64))
    words = _xor_shift_64_(words, 27).mul_(_signed(0x94D049BB133111EB, 64))
    return _xor_shift_64_(words, 31)


def _xor_shift_64_(words: Tensor, bits: int) -> Tensor:
    """``words ^= words >> bits`` of unsigned numbers, which PyTorch does not shift."""
    return words.bitwise_xor_((words >> bits).bitwise_and_((1 << (64 - bits)) - 1))


def _halves(words: Tensor) -> tuple[Tensor, Tensor]:
    """The two halves of int64 ``[num_words]``, as int32 ``[num_words, 1]``."""
    return words.unsqueeze(1).view(torch.int32).split(1, dim=1)


def _signed(constant: int, width: int) -> int:
    """The signed integer of ``width`` bits that has the bits of an unsigned one."""
    return constant - (1 << width) if constant >> (width - 1) else constant
