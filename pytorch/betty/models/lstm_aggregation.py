"""The last state of an LSTM over the neighbours of every destination node, with one number per edge kept."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import numpy as np
import torch
from torch import Tensor, nn
from torch.autograd.function import FunctionCtx, once_differentiable
from torch.nn.functional import pad

from betty.blocks import Block
from betty.memory.tape import Held, Tape
from betty.models.linear import linear_memory
from betty.models.lstm_gates import EdgeGates, Gates, SourceGates
from betty.models.matrix_products import linear
from betty.models.neighbour_sequences import SequenceChunk, chunk_bounds, neighbour_sequences

CPU_STATES = 1 << 16
"""Hidden states of a chunk, sequences times channels, with which a step stays in the cache of a core."""

CUDA_STATES = 1 << 22
"""The same on a GPU, where a step has to be large enough to pay for its kernels."""

STEPS_AT_LEAST = 16
"""Steps of a chunk of the full number of sequences that are allowed for even where there are few edges."""

CHUNKS_AT_LEAST = 16
"""Where sequences are long, a chunk holds at most so large a share of the edges, for the memory that it takes."""

EDGES_PER_PROJECTED_SOURCE = 4
"""Edges per source from which on what a source contributes to the gates is computed once for all its edges.

It makes matrices four times as wide as the features, in both directions. Measured on one CPU thread with 128 float32
channels, to fill, gather and scatter them took as long as the operations that it saved where there were 2.7 edges per
source, and where there were 10 the whole took three quarters of the time.
"""


SORTING_NUMBERS = 7
"""int64 numbers per edge that are alive while sequences are made."""

_STEP_CHANNELS = 12
"""Numbers per sequence and channel that are alive in a step forward: both states, inputs, gates, the gates before."""

_EDGE_CHANNELS = 9
"""Numbers per edge and channel of a chunk that are alive backward: inputs, gates, cell states, derivatives."""


def last_lstm_states(block: Block, x: Tensor, lstm: nn.LSTM) -> Tensor:
    """Read the neighbours of every destination node, in the block's order of edges, with an LSTM.

    Hochreiter and Schmidhuber: Long Short-Term Memory, 1997, in the form of ``torch.nn.LSTM``. Half precision is
    computed in float32.

    Args:
        block: with ``num_src`` sources.
        x: floating ``[num_src, channels]``, a row per source node.
        lstm: of one layer and one direction, ``channels`` wide, with biases.

    Returns:
        ``[num_dst, channels]``; zeros where a destination has no neighbour.
    """
    chunks = neighbour_sequences(block, *_chunk_limits(block, lstm.hidden_size, x.device.type))
    dtype = torch.promote_types(x.dtype, torch.float32)
    features = x.to(dtype)
    weight_ih, weight_hh, bias = _logistic_parameters(lstm, dtype)
    if not _projects_sources(block):
        operands = EdgeGates, features, torch.cat([weight_ih, weight_hh], dim=1), bias
    else:
        operands = SourceGates, torch.addmm(bias, features, weight_ih.T), weight_hh, None
    return _LastStates.apply(*operands, chunks, block.num_dst, torch.is_grad_enabled()).to(x.dtype)


def _projects_sources(block: Block) -> bool:
    return block.num_edges >= EDGES_PER_PROJECTED_SOURCE * block.num_src


def _chunk_limits(block: Block, channels: int, device_type: str) -> tuple[int, int]:
    """The most sequences and the most edges of a chunk."""
    max_sequences = max(1, (CUDA_STATES if device_type == "cuda" else CPU_STATES) // channels)
    return max_sequences, max(max_sequences * STEPS_AT_LEAST, block.num_edges // CHUNKS_AT_LEAST)


@contextmanager
def lstm_memory(tape: Tape, block: Block, x: Held, lstm: nn.LSTM, needs_gradient: bool) -> Iterator[Held]:
    """What :func:`last_lstm_states` takes, see :class:`~betty.memory.tape.Tape`."""
    channels, dtype = lstm.hidden_size, torch.promote_types(tape.dtype, torch.float32)
    converts = dtype != tape.dtype
    degrees = -np.sort(-block.in_degrees().numpy(force=True))
    degrees = degrees[: np.count_nonzero(degrees)]
    bounds = np.array(chunk_bounds(degrees, *_chunk_limits(block, channels, tape.device_type)))
    chunk_sequences = np.diff(bounds)
    chunk_edges = np.diff(np.concatenate([[0], degrees.cumsum()])[bounds])
    num_sequences, num_edges = int(chunk_sequences.max(initial=0)), int(chunk_edges.max(initial=0))
    # Inputs of the gates per edge, and rows of the matrix they are multiplied with, in numbers of channels.
    num_inputs = 1 if _projects_sources(block) else 2

    with tape.temporary("aggregator", block.num_dst, dtype=torch.int64):
        order = tape.allocate("aggregator", block.num_dst, dtype=torch.int64)
        tape.touch("aggregator", SORTING_NUMBERS, block.num_edges, dtype=torch.int64)
        sources = tape.allocate("aggregator", block.num_edges, dtype=torch.int64)
    with ExitStack() as projection:
        features = tape.allocate("aggregator", block.num_src, channels, dtype=dtype) if converts else tape.share(x)
        scaled = [tape.allocate("aggregator", 4 * channels, channels, dtype=dtype) for _ in range(2)]
        if _projects_sources(block):
            of_features = projection.enter_context(
                linear_memory(tape, features, block.num_src, lstm.weight_ih_l0, needs_gradient, kind="aggregator")
            )
            weights, saved, width = [], [*scaled, of_features], 4 * channels
        else:
            weights, width = scaled, channels
            saved = [tape.allocate("aggregator", 8 * channels, channels, dtype=dtype), tape.share(features)]
        kept = tape.allocate("aggregator", (block.num_edges - degrees.size) * tape.trains, channels, dtype=dtype)
        result = tape.allocate("aggregator", block.num_dst, channels, dtype=dtype)
        tape.touch("aggregator", _STEP_CHANNELS * num_sequences, channels, dtype=dtype)
        tape.free(features, *weights)
        if converts:
            tape.free(result)
            result = tape.allocate("aggregator", block.num_dst, channels)
        saved += [order, sources, kept]
        if not tape.trains:
            tape.free(*saved)
        yield result

        before = tape.gradient
        needs_rows = needs_gradient or _projects_sources(block)
        of_x = tape.allocate("backward", block.num_src, width, dtype=dtype) if needs_rows else None
        of_scaled = tape.allocate("gradients", 4 * num_inputs * channels, channels, dtype=dtype)
        products = 4 * num_inputs * channels
        with tape.temporary("backward", products + num_sequences, channels, dtype=dtype):
            tape.touch("backward", _EDGE_CHANNELS * num_edges + num_sequences, channels, dtype=dtype)
            tape.touch("backward", (4 + 2 * num_inputs) * num_edges + products, channels, dtype=dtype)
        tape.gradient = of_x
        tape.free(before, *saved)
        tape.add_gradient(4 * num_inputs * channels, channels)
        tape.free(of_scaled)


def _logistic_parameters(lstm: nn.LSTM, dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor]:
    """The parameters of the same LSTM for a form of it in which every nonlinearity is the logistic function σ.

    With ``tanh(x) = 2 σ(2 x) - 1``, and with half the hidden state and twice the cell state in place of the states,

        input, forget, candidate, output = σ(weight_ih @ x + weight_hh @ hidden + bias)
        cell = forget * cell + 4 * input * (candidate - 1/2)
        hidden = output * (σ(cell) - 1/2)

    PyTorch's σ takes a sixth of the time of its tanh on the CPU, and one pass computes all gates.

    Returns:
        ``[4 * channels, channels]`` twice, and ``[4 * channels]``.
    """
    weight_ih, weight_hh, bias_ih, bias_hh = (parameter.to(dtype) for parameter in lstm.parameters())
    scale = weight_ih.new_tensor([1, 1, 2, 1]).repeat_interleave(lstm.hidden_size)
    return weight_ih * scale.unsqueeze(1), weight_hh * (2 * scale).unsqueeze(1), (bias_ih + bias_hh) * scale


class _LastStates(torch.autograd.Function):
    """Sequences are sorted by length and cut into chunks that fit the cache, which are read one after the other.

    Of every step after a sequence's first one the hidden state that it started from is kept. The backward computes
    the gates and the cell states of a chunk from them again.
    """

    @staticmethod
    def forward(
        ctx: FunctionCtx,
        kind: type[Gates],
        x: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        chunks: list[SequenceChunk],
        num_dst: int,
        is_grad_enabled: bool,
    ) -> Tensor:
        gates = kind(x, weight, bias)
        keeps_states = is_grad_enabled and any(ctx.needs_input_grad)
        num_later_edges = chunks[-1].later_edges.stop if chunks and keeps_states else 0
        earlier_hidden = x.new_empty(num_later_edges, gates.channels)
        last_states = x.new_zeros(num_dst, gates.channels)
        for chunk in chunks:
            kept = earlier_hidden[chunk.later_edges] if keeps_states else None
            last_states.index_copy_(0, chunk.destinations, _read(chunk, gates, kept))
        if keeps_states:
            ctx.save_for_backward(x, weight, bias, earlier_hidden)
            ctx.kind = kind
            ctx.chunks = chunks
        return last_states.mul_(2)

    @staticmethod
    @once_differentiable
    def backward(ctx: FunctionCtx, gradient: Tensor) -> tuple[Tensor | None, ...]:
        x, weight, bias, earlier_hidden = ctx.saved_tensors
        gates = ctx.kind(x, weight, bias)
        gates.start_gradients(needs_x=ctx.needs_input_grad[1])
        hidden_weight = weight[:, -gates.channels :].T.contiguous()
        for chunk in ctx.chunks:
            _add_gradients(chunk, gates, earlier_hidden[chunk.later_edges], hidden_weight, gradient)
        return None, gates.grad_x, gates.grad_weight, gates.grad_bias, None, None, None


def _read(chunk: SequenceChunk, gates: Gates, kept: Tensor | None) -> Tensor:
    """Compute the last hidden states of a chunk's sequences.

    Args:
        chunk: the sequences.
        gates: compute the gates of each step.
        kept: ``[later edges of the chunk, channels]``, takes the hidden states that steps start from.

    Returns:
        ``[num_sequences, channels]``.
    """
    hidden = gates.weight.new_zeros(chunk.num_sequences, gates.channels)
    cell = torch.zeros_like(hidden)
    for edges in chunk.steps():
        size = edges.stop - edges.start
        if kept is not None and edges.start > 0:
            kept[edges.start - chunk.num_sequences : edges.stop - chunk.num_sequences] = hidden[:size]
        sources = chunk.sources[edges]
        values = gates.values(sources, gates.inputs(sources, hidden[:size]))
        input_gate, forget, candidate, output = values.chunk(4, dim=1)
        cell[:size].mul_(forget).addcmul_(input_gate, candidate.sub_(0.5), value=4)
        torch.sigmoid(cell[:size], out=hidden[:size]).sub_(0.5).mul_(output)
    return hidden


def _add_gradients(chunk: SequenceChunk, gates: Gates, kept: Tensor, hidden_weight: Tensor, gradient: Tensor) -> None:
    """Add what a chunk contributes to the gradients of the gates' parameters and sources.

    Args:
        chunk: the sequences.
        gates: compute the gates again, and hold the gradients.
        kept: of :func:`_read`.
        hidden_weight: ``[channels, 4 * channels]``, with which the gradient of gates becomes that of hidden states.
        gradient: ``[num_dst, channels]``, of the last hidden states of all sequences.
    """
    inputs = gates.inputs(chunk.sources, pad(kept, (0, 0, chunk.num_sequences, 0)))
    grad_last = gradient.index_select(0, chunk.destinations).mul_(2)
    grad_gates = _read_back(chunk, gates.values(chunk.sources, inputs), hidden_weight, grad_last)
    gates.add_gradients(chunk.sources, inputs, grad_gates)


def _read_back(chunk: SequenceChunk, gates: Tensor, hidden_weight: Tensor, grad_hidden: Tensor) -> Tensor:
    """Go back through a chunk's sequences.

    Args:
        chunk: the sequences.
        gates: ``[num_edges, 4 * channels]``, of all steps; overwritten.
        hidden_weight: ``[channels, 4 * channels]``, with which the gradient of gates becomes that of hidden states.
        grad_hidden: ``[num_sequences, channels]``, the gradient of the last hidden states; overwritten.

    Returns:
        ``[num_edges, 4 * channels]``, the gradient of the gates before their nonlinearity.
    """
    channels = grad_hidden.shape[1]
    into_cell, forget = _differentiate(chunk, gates)
    of_cell, of_hidden = gates[:, : 3 * channels].unflatten(1, (3, channels)), gates[:, 3 * channels :]
    grad_cell = torch.zeros_like(grad_hidden)
    for edges in reversed(list(chunk.steps())):
        size = edges.stop - edges.start
        cell, hidden = grad_cell[:size], grad_hidden[:size]
        cell.addcmul_(hidden, into_cell[edges])
        of_hidden[edges].mul_(hidden)
        of_cell[edges].mul_(cell.unsqueeze(1))
        if edges.start > 0:
            cell.mul_(forget[edges])
            hidden.copy_(linear(gates[edges], hidden_weight))
    return gates


def _differentiate(chunk: SequenceChunk, gates: Tensor) -> tuple[Tensor, Tensor]:
    """Prepare what the chain rule needs of every step and depends on no gradient.

    Args:
        chunk: the sequences.
        gates: ``[num_edges, 4 * channels]``. In their place come the derivatives of the cell state by the input gate,
            the forget gate and the candidate, and that of the hidden state by the output gate, all with respect to
            the gates before their nonlinearity.

    Returns:
        ``[num_edges, channels]`` each: the derivative of the hidden state by the cell state, and the forget gate.
    """
    input_gate, forget_gate, candidate, output = gates.chunk(4, dim=1)
    candidate.sub_(0.5)
    cell = torch.mul(input_gate, candidate).mul_(4)
    torch.addcmul(input_gate, cell, candidate, value=-1, out=candidate)
    torch.addcmul(cell, cell, input_gate, value=-1, out=input_gate)

    forget = forget_gate.clone(memory_format=torch.contiguous_format)
    _differentiate_logistic(forget_gate)
    earlier_cell = cell[:0]
    for edges in chunk.steps():
        size = edges.stop - edges.start
        if edges.start == 0:
            forget_gate[edges] = 0
        else:
            forget_gate[edges].mul_(earlier_cell[:size])
            cell[edges].addcmul_(forget[edges], earlier_cell[:size])
        earlier_cell = cell[edges]

    cell.sigmoid_()
    into_cell = torch.addcmul(cell, cell, cell, value=-1).mul_(output)
    _differentiate_logistic(output).mul_(cell.sub_(0.5))
    return into_cell, forget


def _differentiate_logistic(value: Tensor) -> Tensor:
    """Put the derivative ``σ (1 - σ)`` in place of the value σ."""
    return value.addcmul_(value, value, value=-1)
