"""Sums over the neighbours of every destination node, weighted by attention, in the memory of nodes.

In neither direction is there a row of features per edge: heads are summed up one after the other by ``embedding_bag``,
and gradients of attention are dot products that ``torch.sparse.sampled_addmm`` makes out of the rows of both ends.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor
from torch.autograd.function import FunctionCtx, once_differentiable
from torch.nn.functional import embedding_bag

from betty.blocks import Block, index_dtype
from betty.cost.work import Operations, Work, new_tensor
from betty.memory.tape import Held, Tape
from betty.models.attention import edge_destinations, edges_by_source
from betty.models.autocast import float32_backward, float32_forward
from betty.models.neighbour_reduction import lists_memory, transpose_memory

PIECE_COLUMNS = 32
"""Columns of a tensor of all sources that are computed at a time.

The C library asks the kernel for new pages for every tensor of more than 32 MiB, which takes longer than to fill it.
With 187,000 sources 16 columns took as long as 32, and all 128 at once a tenth more.
"""

EDGE_CHANNELS = 16
"""Channels that take as long as what is done for an edge and a head whatever their number."""

with warnings.catch_warnings():
    # PyTorch says at the first such tensor, and never again, that they are in beta.
    warnings.simplefilter("ignore")
    torch.sparse_csr_tensor([0, 0], [], [], size=(1, 1))


def attend(block: Block, values: Tensor, attention: Tensor) -> Tensor:
    """Sum the values of the neighbours of every destination node, weighted by attention.

    Args:
        block: with ``num_src`` sources.
        values: floating ``[num_src, num_heads, channels]``.
        attention: ``[num_edges, num_heads]``, of the same dtype.

    Returns:
        ``[num_dst, num_heads, channels]``; zeros where a destination has no neighbour.
    """
    return _Attend.apply(values, attention, *_edges(block, num_rows=values.shape[0] * values.shape[1]))


def attend_and_project(block: Block, x: Tensor, weight: Tensor, attention: Tensor) -> Tensor:
    """:func:`attend` to ``x`` projected by every head's own matrix, computed as the projection of a weighted sum.

    There are fewer destinations to project than sources, and between forward and backward nothing is kept but the
    arguments.

    Args:
        block: with ``num_src`` sources.
        x: floating ``[num_src, in_channels]``.
        weight: ``[num_heads, out_channels, in_channels]``, of the same dtype.
        attention: ``[num_edges, num_heads]``, of the same dtype.

    Returns:
        ``[num_dst, num_heads, out_channels]``; zeros where a destination has no neighbour.
    """
    return _AttendAndProject.apply(x, weight, attention, *_edges(block, num_rows=x.shape[0]))


@contextmanager
def attend_memory(
    tape: Tape, block: Block, values: Held, attention: Held, num_heads: int, channels: int
) -> Iterator[Held]:
    """What :func:`attend` takes, see :class:`~betty.memory.tape.Tape`; leaves the attention's gradient waiting."""
    dtype = _index_dtype(block, block.num_src * num_heads)
    saved = [tape.save(values), tape.save(attention), *lists_memory(tape, block, dtype)]
    result = tape.allocate("aggregator", block.num_dst, num_heads, channels)
    with tape.temporary("aggregator", block.num_edges), tape.temporary("aggregator", block.num_edges, dtype=dtype):
        tape.touch("aggregator", block.num_dst, channels)
    yield result
    before = tape.gradient
    with transpose_memory(tape, block), tape.temporary("backward", block.num_edges, dtype=dtype):
        tape.gradient = tape.allocate("backward", block.num_src, num_heads, channels)
        of_attention = tape.allocate("backward", block.num_edges, num_heads)
        with tape.temporary("backward", block.num_edges), tape.temporary("backward", block.num_dst, channels):
            with tape.temporary("backward", block.num_edges, dtype=dtype):
                _edge_dots_memory(tape, block)
            with tape.temporary("backward", block.num_edges):
                tape.touch("backward", block.num_src, channels)
    tape.waiting.append(of_attention)
    tape.free(before, *saved)


@contextmanager
def attend_and_project_memory(
    tape: Tape,
    block: Block,
    x: Held,
    attention: Held,
    in_channels: int,
    num_heads: int,
    out_channels: int,
    needs_gradient: bool,
) -> Iterator[Held]:
    """What :func:`attend_and_project` takes; leaves the attention's gradient waiting."""
    dtype = _index_dtype(block, block.num_src)
    saved = [tape.save(x), tape.save(attention), *lists_memory(tape, block, dtype)]
    result = tape.allocate("aggregator", block.num_dst, num_heads, out_channels)
    with tape.temporary("aggregator", block.num_edges), tape.temporary("aggregator", block.num_dst, in_channels):
        tape.touch("aggregator", block.num_dst, out_channels)
    yield result
    before = tape.gradient
    with transpose_memory(tape, block), tape.temporary("backward", block.num_edges, dtype=dtype):
        tape.gradient = tape.allocate("backward", block.num_src, in_channels) if needs_gradient else None
        of_attention = tape.allocate("backward", block.num_edges, num_heads)
        with tape.temporary("backward", block.num_edges):
            tape.add_gradient(num_heads * out_channels, in_channels)
            with tape.temporary("backward", block.num_dst, in_channels):
                _edge_dots_memory(tape, block)
            if needs_gradient:
                columns = min(PIECE_COLUMNS, in_channels)
                with tape.temporary("backward", block.num_edges):
                    tape.touch("backward", block.num_dst + block.num_src, columns)
    tape.waiting.append(of_attention)
    tape.free(before, *saved)


def attend_work(block: Block, num_heads: int, channels: int) -> Work:
    """What :func:`attend` computes."""
    edges = block.num_edges * num_heads * (channels + EDGE_CHANNELS)
    forward = _of_heads(num_heads, new_tensor(block.num_dst, channels)) + new_tensor(block.num_dst, num_heads, channels)
    backward = _of_heads(num_heads, new_tensor(block.num_src, channels))
    backward += new_tensor(block.num_src, num_heads, channels)
    return Work(forward + Operations(weigh=edges), backward + Operations(weigh=2 * edges, transpose=block.num_edges))


def attend_and_project_work(
    block: Block, in_channels: int, num_heads: int, out_channels: int, needs_gradient: bool
) -> Work:
    """What :func:`attend_and_project` computes."""
    edges = block.num_edges * num_heads * (in_channels + EDGE_CHANNELS)
    product = 2 * block.num_dst * num_heads * in_channels * out_channels
    sums = _of_heads(num_heads, new_tensor(block.num_dst, in_channels))
    forward = sums + Operations(weigh=edges, multiply=product)
    backward = sums + sums + Operations(weigh=2 * edges, multiply=2 * product, transpose=block.num_edges)
    if needs_gradient:
        added = Operations(weigh=edges, multiply=product, stream=2 * num_heads * block.num_src * in_channels)
        backward += added + new_tensor(block.num_src, in_channels)
    return Work(forward, backward)


def _of_heads(num_heads: int, of_head: Operations) -> Operations:
    """What is done for one head after the other, in tensors of its own, with the calls around it."""
    return sum(num_heads * [of_head + Operations(call=5)], start=Operations())


def _edge_dots_memory(tape: Tape, block: Block) -> None:
    """What :func:`_edge_dots` takes; PyTorch copies the lists to int64."""
    with tape.temporary("backward", 2 * block.num_edges, dtype=torch.promote_types(tape.dtype, torch.float32)):
        tape.touch("backward", block.num_edges + block.num_dst, dtype=torch.int64)


class _Attend(torch.autograd.Function):
    """All heads' values are one table, in which source ``s`` has the rows from ``s * num_heads`` on."""

    @staticmethod
    @float32_forward
    def forward(ctx: FunctionCtx, values: Tensor, attention: Tensor, offsets: Tensor, indices: Tensor) -> Tensor:
        ctx.save_for_backward(values, attention, offsets, indices)
        num_heads = values.shape[1]
        table = values.flatten(0, 1)
        result = values.new_empty(offsets.numel() - 1, *values.shape[1:])
        for head, head_attention in _heads(attention):
            result[:, head] = _weighted_sum(offsets, indices * num_heads + head, table, head_attention)
        return result

    @staticmethod
    @once_differentiable
    @float32_backward
    def backward(ctx: FunctionCtx, gradient: Tensor) -> tuple[Tensor | None, ...]:
        values, attention, offsets, indices = ctx.saved_tensors
        num_heads = values.shape[1]
        table = values.flatten(0, 1)
        by_source, edges = edges_by_source(indices, values.shape[0])
        destinations = edge_destinations(offsets, indices).index_select(0, edges)
        of_values, of_attention = torch.empty_like(values), torch.empty_like(attention)
        for head, head_attention in _heads(attention):
            of_result = gradient[:, head].contiguous()
            of_attention[:, head] = _edge_dots(offsets, indices * num_heads + head, of_result, table)
            of_values[:, head] = _weighted_sum(
                by_source, destinations, of_result, head_attention.index_select(0, edges)
            )
        return of_values, of_attention, None, None


class _AttendAndProject(torch.autograd.Function):
    """The backward computes each head's weighted sum again, which is less work than to write it and read it again."""

    @staticmethod
    @float32_forward
    def forward(
        ctx: FunctionCtx, x: Tensor, weight: Tensor, attention: Tensor, offsets: Tensor, indices: Tensor
    ) -> Tensor:
        ctx.save_for_backward(x, weight, attention, offsets, indices)
        result = x.new_empty(offsets.numel() - 1, *weight.shape[:2])
        for head, head_attention in _heads(attention):
            result[:, head] = _weighted_sum(offsets, indices, x, head_attention) @ weight[head].t()
        return result

    @staticmethod
    @once_differentiable
    @float32_backward
    def backward(ctx: FunctionCtx, gradient: Tensor) -> tuple[Tensor | None, ...]:
        x, weight, attention, offsets, indices = ctx.saved_tensors
        by_source, edges = edges_by_source(indices, x.shape[0])
        destinations = edge_destinations(offsets, indices).index_select(0, edges)
        of_x = torch.zeros_like(x) if ctx.needs_input_grad[0] else None
        of_weight, of_attention = torch.empty_like(weight), torch.empty_like(attention)
        for head, head_attention in _heads(attention):
            of_result = gradient[:, head]
            of_weight[head] = of_result.t() @ _weighted_sum(offsets, indices, x, head_attention)
            of_attention[:, head] = _edge_dots(offsets, indices, of_result @ weight[head], x)
            if of_x is not None:
                by_source_attention = head_attention.index_select(0, edges)
                for of_columns, columns in _columns(of_x, weight[head]):
                    of_columns += _weighted_sum(by_source, destinations, of_result @ columns, by_source_attention)
        return of_x, of_weight, of_attention, None, None


def _weighted_sum(offsets: Tensor, indices: Tensor, rows: Tensor, weights: Tensor) -> Tensor:
    return embedding_bag(indices, rows, offsets, mode="sum", include_last_offset=True, per_sample_weights=weights)


def _columns(*matrices: Tensor) -> Iterator[tuple[Tensor, ...]]:
    """The same columns of all matrices, some at a time."""
    return zip(*(matrix.split(PIECE_COLUMNS, 1) for matrix in matrices), strict=True)


def _edge_dots(offsets: Tensor, indices: Tensor, at_destinations: Tensor, at_sources: Tensor) -> Tensor:
    """The dot product of the rows of both ends of every edge.

    Measured on one CPU thread with 490,000 edges and 128 channels, in milliseconds: 36 where the rows are in main
    memory; gathered, multiplied and added up by 2,048 edges, 39. Where 106,000 edges' rows are in the cache, 1.2 and 6.
    """
    # On the CPU, PyTorch has this for these two dtypes only.
    dtype = torch.promote_types(at_sources.dtype, torch.float32)
    size = (at_destinations.shape[0], at_sources.shape[0])
    overwritten = at_sources.new_zeros(indices.numel(), dtype=dtype)
    edges = torch.sparse_csr_tensor(offsets, indices, overwritten, size, check_invariants=False)
    return torch.sparse.sampled_addmm(edges, at_destinations.to(dtype), at_sources.to(dtype).t(), beta=0).values()


def _heads(attention: Tensor) -> Iterator[tuple[int, Tensor]]:
    """The number of every head and its attention ``[num_edges]``, contiguous as ``embedding_bag`` wants it."""
    for head in range(attention.shape[1]):
        yield head, attention[:, head].contiguous()


def _edges(block: Block, num_rows: int) -> tuple[Tensor, Tensor]:
    """``indptr`` and ``indices`` in the one dtype that ``embedding_bag`` asks for, wide enough for all rows."""
    dtype = _index_dtype(block, num_rows)
    return block.indptr.to(dtype), block.indices.to(dtype)


def _index_dtype(block: Block, num_rows: int) -> torch.dtype:
    return torch.promote_types(block.indices.dtype, index_dtype(max(block.num_edges, num_rows)))
