"""The last state of an LSTM over the neighbours of every destination node, with one number per edge kept."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import numpy as np
import torch
from torch import Tensor, nn
from torch.autograd.function import FunctionCtx, once_differentiable
from torch.nn.functional import pad

from betty.blocks import Block
from betty.cost.work import Operations, Work, new_tensor
from betty.memory.tape import Held, Tape
from betty.models.autocast import float32_backward, float32_forward
from betty.models.linear import linear_memory, linear_work
from betty.models.lstm_gates import EdgeGates, Gates, SourceGates
from betty.models.lstm_kernel import KernelLSTM, kernel_memory, kernel_steps
from betty.models.matrix_products import linear
from betty.models.neighbour_sequences import (
    SequenceChunk,
    chunk_bounds,
    descending_degrees,
    neighbour_sequences,
    step_sizes,
)

CPU_STATES = 1 << 16
"""Hidden states of a chunk, sequences times channels, with which a step stays in the cache of a core."""

CUDA_STATES = 1 << 20
"""The same on a GPU, where a step has to be large enough to pay for its kernels."""

STEPS_AT_LEAST = 4
"""Steps of a chunk of the full number of sequences that are allowed for even where there are few edges."""

CHUNKS_AT_LEAST = 16
"""Where sequences are long, a chunk holds at most so large a share of the edges, for the memory that it takes."""

EDGES_PER_PROJECTED_SOURCE = 4
"""Edges per source from which on what a source contributes to the gates is computed once for all its edges.

It makes matrices four times as wide as the features, in both directions. Measured on one CPU thread with 128 float32
channels, to fill, gather and scatter them took as long as the operations that it saved where there were 2.7 edges per
source, and where there were 10 the whole took three quarters of the time.
"""


_SORTING_NUMBERS = 8
"""int64 numbers per edge that are alive while sequences are made."""

_SORTING_NUMBERS_OF_SEQUENCE = 4
"""The same per sequence, beside those that stay."""

_STEP_CHANNELS = {SourceGates: 10, EdgeGates: 8}
"""Numbers per sequence and channel that are alive in a step forward: both states, inputs, gates."""

_EDGE_CHANNELS = 9
"""Numbers per edge and channel of a chunk that are alive backward: inputs, gates, cell states, derivatives."""


STEP_CALLS = 11
"""Calls of operations in a step forward."""

STEP_CALLS_BACK = 10
"""The same backward, what is called once for a chunk aside."""


def last_lstm_states(block: Block, x: Tensor, lstm: nn.LSTM) -> Tensor:
    """Read the neighbours of every destination node, in the block's order of edges, with an LSTM.

    Hochreiter and Schmidhuber: Long Short-Term Memory, 1997, in the form of ``torch.nn.LSTM``. Half precision is
    computed in float32, inside of ``torch.autocast`` too.

    Args:
        block: with ``num_src`` sources.
        x: floating ``[num_src, channels]``, a row per source node.
        lstm: of one layer and one direction, ``channels`` wide, with biases.

    Returns:
        ``[num_dst, channels]``; zeros where a destination has no neighbour.
    """
    chunks = neighbour_sequences(block, *_chunk_limits(block, lstm.hidden_size, x.device.type))
    with torch.autocast(x.device.type, enabled=False):
        dtype = torch.promote_types(x.dtype, torch.float32)
        features = x.to(dtype)
        parameters = tuple(parameter.to(dtype) for parameter in lstm.parameters())
        weight_ih, weight_hh, bias = _logistic_parameters(*parameters)
        if not _projects_sources(block):
            kind, operands = EdgeGates, (features, torch.cat([weight_ih, weight_hh], dim=1), bias)
        else:
            kind, operands = SourceGates, (torch.addmm(bias, features, weight_ih.T), weight_hh, None)
        if torch.is_grad_enabled() and any(tensor.requires_grad for tensor in (features, *parameters)):
            return _LastStates.apply(kind, *operands, chunks, block.num_dst).to(x.dtype)
        kernel = KernelLSTM(features, parameters) if _has_kernel(x.device.type) else None
        return _last_states(chunks, kind(*operands), block.num_dst, kernel=kernel).to(x.dtype)


def _projects_sources(block: Block) -> bool:
    return block.num_edges >= EDGES_PER_PROJECTED_SOURCE * block.num_src


def _has_kernel(device_type: str) -> bool:
    """Whether steps may be left to PyTorch's LSTM. On a GPU what cuDNN takes for itself cannot be known beforehand."""
    return device_type == "cpu"


def _chunk_limits(block: Block, channels: int, device_type: str) -> tuple[int, int]:
    """The most sequences and the most edges of a chunk."""
    max_sequences = max(1, (CUDA_STATES if device_type == "cuda" else CPU_STATES) // channels)
    return max_sequences, max(max_sequences * STEPS_AT_LEAST, block.num_edges // CHUNKS_AT_LEAST)


@contextmanager
def lstm_memory(tape: Tape, block: Block, x: Held, lstm: nn.LSTM, needs_gradient: bool) -> Iterator[Held]:
    """What :func:`last_lstm_states` takes, see :class:`~betty.memory.tape.Tape`."""
    channels, dtype = lstm.hidden_size, torch.promote_types(tape.dtype, torch.float32)
    converts = dtype != tape.dtype
    degrees = descending_degrees(block)
    bounds = np.array(chunk_bounds(degrees, *_chunk_limits(block, channels, tape.device_type)))
    chunk_sequences = np.diff(bounds)
    chunk_edges = np.diff(np.concatenate([[0], degrees.cumsum()])[bounds])
    num_sequences, num_edges = int(chunk_sequences.max(initial=0)), int(chunk_edges.max(initial=0))
    # Inputs of the gates per edge, and rows of the matrix they are multiplied with, in numbers of channels.
    num_inputs = 1 if _projects_sources(block) else 2

    with tape.temporary("aggregator", block.num_dst, dtype=torch.int64):
        order = tape.allocate("aggregator", block.num_dst, dtype=torch.int64)
        sorting = _SORTING_NUMBERS * block.num_edges + _SORTING_NUMBERS_OF_SEQUENCE * degrees.size
        tape.touch("aggregator", sorting, dtype=torch.int64)
        sources = tape.allocate("aggregator", block.num_edges, dtype=torch.int64)
    with ExitStack() as projection:
        features = tape.allocate("aggregator", block.num_src, channels, dtype=dtype) if converts else tape.share(x)
        parameters = tape.allocate("aggregator", converts * (8 * channels + 8), channels, dtype=dtype)
        scaled = [tape.allocate("aggregator", 4 * channels, channels, dtype=dtype) for _ in range(2)]
        if _projects_sources(block):
            of_features = projection.enter_context(
                linear_memory(tape, features, block.num_src, lstm.weight_ih_l0, needs_gradient, kind="aggregator")
            )
            # Counted in the model's dtype so far, of which float32 takes twice as much.
            widened = tape.allocate("aggregator", converts * block.num_src, 4 * channels)
            weights, saved, width = [], [*scaled, of_features, widened], 4 * channels
        else:
            weights, width = scaled, channels
            saved = [tape.allocate("aggregator", 8 * channels, channels, dtype=dtype), tape.share(features)]
        kept = tape.allocate("aggregator", (block.num_edges - degrees.size) * tape.trains, channels, dtype=dtype)
        result = tape.allocate("aggregator", block.num_dst, channels, dtype=dtype)
        step_channels = _STEP_CHANNELS[SourceGates if _projects_sources(block) else EdgeGates]
        tape.touch("aggregator", step_channels * num_sequences, channels, dtype=dtype)
        if _has_kernel(tape.device_type) and not tape.trains:
            for start, stop in itertools.pairwise(bounds):
                kernel_memory(tape, step_sizes(degrees[start:stop]), channels, dtype)
        tape.free(features, parameters, *weights)
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


def lstm_work(block: Block, lstm: nn.LSTM, needs_gradient: bool) -> Work:
    """What :func:`last_lstm_states` computes, on the CPU and with gradients."""
    channels = lstm.hidden_size
    degrees = descending_degrees(block)
    bounds = chunk_bounds(degrees, *_chunk_limits(block, channels, "cpu"))
    num_steps = int(degrees[bounds[:-1]].sum())
    # Products of the gates with the features and with the hidden states of an edge.
    product = 2 * block.num_edges * 4 * channels * channels
    gates = Operations(gate=block.num_edges * channels)
    result = new_tensor(block.num_dst, channels)
    kept, of_sources = new_tensor(block.num_edges - degrees.size, channels), new_tensor(block.num_src, channels)
    recurrence = Work(
        Operations(call=STEP_CALLS * num_steps) + gates + result + kept,
        Operations(call=STEP_CALLS_BACK * num_steps) + gates,
    )
    if _projects_sources(block):
        of_edges = Work(
            Operations(multiply=product), Operations(multiply=3 * product) + new_tensor(block.num_src, 4 * channels)
        )
        return linear_work(block.num_src, channels, 4 * channels, needs_gradient) + recurrence + of_edges
    of_edges = Work(Operations(multiply=2 * product), Operations(multiply=(5 + needs_gradient) * product) + of_sources)
    return recurrence + of_edges


def _logistic_parameters(
    weight_ih: Tensor, weight_hh: Tensor, bias_ih: Tensor, bias_hh: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """The parameters of the same LSTM for a form of it in which every nonlinearity is the logistic function σ.

    With ``tanh(x) = 2 σ(2 x) - 1``, and with half the hidden state and twice the cell state in place of the states,

        input, forget, candidate, output = σ(weight_ih @ x + weight_hh @ hidden + bias)
        cell = forget * cell + 4 * input * (candidate - 1/2)
        hidden = output * (σ(cell) - 1/2)

    PyTorch's σ takes a sixth of the time of its tanh on the CPU, and one pass computes all gates.

    Returns:
        ``[4 * channels, channels]`` twice, and ``[4 * channels]``.
    """
    scale = weight_ih.new_tensor([1, 1, 2, 1]).repeat_interleave(weight_hh.shape[1])
    return weight_ih * scale.unsqueeze(1), weight_hh * (2 * scale).unsqueeze(1), (bias_ih + bias_hh) * scale


class _LastStates(torch.autograd.Function):
    """Sequences are sorted by length and cut into chunks that fit the cache, which are read one after the other.

    Of every step after a sequence's first one the hidden state that it started from is kept. The backward computes
    the gates and the cell states of a chunk from them again.
    """

    @staticmethod
    @float32_forward
    def forward(
        ctx: FunctionCtx,
        kind: type[Gates],
        x: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        chunks: list[SequenceChunk],
        num_dst: int,
    ) -> Tensor:
        gates = kind(x, weight, bias)
        earlier_hidden = x.new_empty(chunks[-1].later_edges.stop if chunks else 0, gates.channels)
        last_states = _last_states(chunks, gates, num_dst, earlier_hidden)
        ctx.save_for_backward(x, weight, bias, earlier_hidden)
        ctx.kind = kind
        ctx.chunks = chunks
        return last_states

    @staticmethod
    @once_differentiable
    @float32_backward
    def backward(ctx: FunctionCtx, gradient: Tensor) -> tuple[Tensor | None, ...]:
        x, weight, bias, earlier_hidden = ctx.saved_tensors
        gates = ctx.kind(x, weight, bias)
        gates.start_gradients(needs_x=ctx.needs_input_grad[1])
        hidden_weight = weight[:, -gates.channels :].T.contiguous()
        for chunk in ctx.chunks:
            _add_gradients(chunk, gates, earlier_hidden[chunk.later_edges], hidden_weight, gradient)
        return None, gates.grad_x, gates.grad_weight, gates.grad_bias, None, None


def _last_states(
    chunks: list[SequenceChunk],
    gates: Gates,
    num_dst: int,
    earlier_hidden: Tensor | None = None,
    kernel: KernelLSTM | None = None,
) -> Tensor:
    """Read all chunks.

    Args:
        chunks: of sequences.
        gates: compute the gates of each step.
        num_dst: of the block.
        earlier_hidden: ``[later edges of all chunks, channels]``, takes the hidden states that steps start from.
        kernel: makes steps instead where it is faster; keeps nothing.

    Returns:
        ``[num_dst, channels]``.
    """
    last_states = gates.weight.new_zeros(num_dst, gates.channels)
    for chunk in chunks:
        kept = None if earlier_hidden is None else earlier_hidden[chunk.later_edges]
        last_states.index_copy_(
            0, chunk.destinations, _read(chunk, gates, kept) if kernel is None else _read_with(kernel, chunk, gates)
        )
    return last_states.mul_(2)


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
        if kept is not None and edges.start > 0:
            earlier = slice(edges.start - chunk.num_sequences, edges.stop - chunk.num_sequences)
            kept[earlier] = hidden[: edges.stop - edges.start]
        _make_step(chunk.sources[edges], gates, hidden, cell)
    return hidden


def _read_with(kernel: KernelLSTM, chunk: SequenceChunk, gates: Gates) -> Tensor:
    """The same, with the kernel for the steps from where on few sequences are left, but for the last few steps."""
    hidden = gates.weight.new_zeros(chunk.num_sequences, gates.channels)
    cell = torch.zeros_like(hidden)
    steps, calls = list(chunk.steps()), kernel_steps(chunk.step_sizes, gates.channels)
    for edges in steps[: calls.start]:
        _make_step(chunk.sources[edges], gates, hidden, cell)
    for step in calls:
        piece = slice(step, step + calls.step)
        sizes = chunk.step_sizes[piece]
        sources = chunk.sources[steps[step].start : steps[piece][-1].stop]
        # The kernel's states are those of the usual form, of which hidden is half and cell is twice.
        kernel.read(sources, sizes, hidden[: sizes[0]].mul_(2), cell[: sizes[0]].div_(2))
        hidden[: sizes[0]].div_(2)
        cell[: sizes[0]].mul_(2)
    for edges in steps[calls.start + len(calls) * calls.step :]:
        _make_step(chunk.sources[edges], gates, hidden, cell)
    return hidden


def _make_step(sources: Tensor, gates: Gates, hidden: Tensor, cell: Tensor) -> None:
    """Let the first sequences, as many as there are sources, read one neighbour each."""
    size = len(sources)
    values = gates.values(sources, gates.inputs(sources, hidden[:size]))
    input_gate, forget, candidate, output = values.chunk(4, dim=1)
    cell[:size].mul_(forget).addcmul_(input_gate, candidate.sub_(0.5), value=4)
    torch.sigmoid(cell[:size], out=hidden[:size]).sub_(0.5).mul_(output)


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
