"""The maximum over the neighbours of every destination node, without a row per edge."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager

import numpy as np
import torch
from torch import Tensor
from torch.autograd.function import FunctionCtx, once_differentiable
from torch.nn.functional import max_pool2d

from betty.blocks import Block, index_dtype
from betty.cost.work import Operations, Work, new_tensor
from betty.memory.tape import Held, Tape
from betty.models.autocast import float32_backward, float32_forward
from betty.models.chunks import SERIAL_ELEMENTS, row_chunks
from betty.models.neighbour_reduction import in_one_dtype, lists_dtype, lists_memory
from betty.models.neighbour_sequences import descending_degrees

SORTED_ELEMENTS = 1 << 16
"""Edges times channels from which on it is worth to sort, and to start threads as PyTorch does for any pooling."""

POOLED_ELEMENTS = 1 << 21
"""Of the neighbours that are gathered and pooled together. Half as many are as fast on an idle machine, with twice as
many starts of threads."""

SIMILAR_DEGREE = 0.8
"""Share of the largest degree of a group that the smallest one has at least."""


EDGE_CHANNELS = 16
"""Channels that take as long as it takes to arrange an edge among others."""

MAXIMUM_CALLS = 100
"""Calls of operations for some ten groups of destinations."""


def max_neighbours(block: Block, x: Tensor) -> Tensor:
    """Take the channel-wise maximum over the neighbours of every destination node.

    The gradient of a maximum goes to the first of the neighbours that reach it. Between forward and backward one
    source id is kept for every maximum.

    Measured on two CPU threads with 50,000 destinations, 487,000 edges, 234,000 sources and 128 float32 channels, in
    milliseconds forward and backward: this function with a ReLU of the maxima 38 and 80, DGL's maximum of ReLUs 53 and
    104, PyTorch's ``embedding_bag`` 250 and 125; stepping through the neighbours with ``torch.maximum`` 45 forward.

    Args:
        block: with ``num_src`` sources.
        x: floating ``[num_src, channels]``, a row per source node.

    Returns:
        ``[num_dst, channels]``; zeros where a destination has no neighbour.
    """
    method = _method(block, x.shape[1], x.device.type)
    return method.apply(x, *in_one_dtype(block.indptr, block.indices))


def maximum_memory(tape: Tape, block: Block, channels: int) -> AbstractContextManager[Held]:
    """What :func:`max_neighbours` takes, see :class:`~betty.memory.tape.Tape`."""
    return _method(block, channels, tape.device_type).memory(tape, block, channels)


def maximum_work(block: Block, channels: int) -> Work:
    """What :func:`max_neighbours` computes; its input always needs a gradient."""
    result = new_tensor(block.num_dst, channels)
    # The time of an edge itself is that of some channels.
    forward = Operations(call=MAXIMUM_CALLS, maximum=block.num_edges * (channels + EDGE_CHANNELS))
    backward = Operations(maximum=block.num_dst * channels)
    return Work(forward + result + result, backward + new_tensor(block.num_src, channels))


def _method(block: Block, channels: int, device_type: str) -> type[MaximumByPooling | MaximumByBags]:
    pools = device_type == "cpu" and block.num_edges * channels >= SORTED_ELEMENTS
    return MaximumByPooling if pools else MaximumByBags


class MaximumByBags(torch.autograd.Function):
    """:func:`max_neighbours` on any device."""

    @staticmethod
    @float32_forward
    def forward(ctx: FunctionCtx, x: Tensor, indptr: Tensor, indices: Tensor) -> Tensor:
        # torch.embedding_bag and not its wrapper in torch.nn.functional, which drops the position of each maximum.
        maximum = 2
        maxima, _, _, winners = torch.embedding_bag(x, indices, indptr, mode=maximum, include_last_offset=True)
        ctx.save_for_backward(indptr, winners)
        ctx.num_src = x.shape[0]
        return maxima

    @staticmethod
    @once_differentiable
    @float32_backward
    def backward(ctx: FunctionCtx, gradient: Tensor) -> tuple[Tensor, None, None]:
        indptr, winners = ctx.saved_tensors
        # Where there are no neighbours the winner is 0 on the CPU and -1 on CUDA, and neither has won anything.
        gradient = gradient.masked_fill((indptr.diff() == 0).unsqueeze(1), 0)
        winners = winners.clamp(min=0).long()
        into_sources = gradient.new_zeros(ctx.num_src, gradient.shape[1])
        return into_sources.scatter_add_(0, winners, gradient), None, None

    @staticmethod
    @contextmanager
    def memory(tape: Tape, block: Block, channels: int) -> Iterator[Held]:
        dtype, size = lists_dtype(block), (block.num_dst, channels)
        lists = lists_memory(tape, block, dtype)
        with tape.temporary("aggregator", block.num_edges + block.num_dst, dtype=dtype):
            result = tape.allocate("aggregator", *size)
            winners = tape.allocate("aggregator", *size, dtype=dtype)
        yield result
        with tape.temporary("backward", *size), tape.temporary("backward", *size, dtype=torch.int64):
            tape.replace_gradient(block.num_src, channels)
        tape.free(winners, *lists)


class MaximumByPooling(torch.autograd.Function):
    """:func:`max_neighbours` on the CPU, where PyTorch's maximum of bags is slow, but that of pooling is not.

    Destinations of about the same degree are images of as many pixels. Winners stay in the order of degrees.
    """

    @staticmethod
    @float32_forward
    def forward(ctx: FunctionCtx, x: Tensor, indptr: Tensor, indices: Tensor) -> Tensor:
        degrees, order = indptr.diff().sort(descending=True, stable=True)
        num_lists = int(degrees.count_nonzero())
        degrees, order = degrees[:num_lists], order[:num_lists]
        maxima = x.new_zeros(indptr.numel() - 1, x.shape[1])
        winners = indices.new_empty(num_lists, x.shape[1])
        # One for all groups, because new memory takes longer than what is done in it.
        rows = x.new_empty(min(indices.numel(), max(1, POOLED_ELEMENTS // x.shape[1])), x.shape[1])
        sizes = _group_sizes(degrees, max_edges=len(rows))
        groups = zip(*(tensor.split(sizes) for tensor in (degrees, order, winners)), strict=True)
        for lengths, destinations, winners_of_group in groups:
            sources = _padded_lists(indices, indptr.index_select(0, destinations), lengths)
            reduce = _maximum_of_lists if sources.numel() <= len(rows) else _maximum_of_long_list
            maxima.index_copy_(0, destinations, reduce(x, sources, rows, winners_of_group))
        ctx.save_for_backward(order, winners)
        ctx.num_src = x.shape[0]
        return maxima

    @staticmethod
    @once_differentiable
    @float32_backward
    def backward(ctx: FunctionCtx, gradient: Tensor) -> tuple[Tensor, None, None]:
        order, winners = ctx.saved_tensors
        channels = gradient.shape[1]
        into_sources = gradient.new_zeros(ctx.num_src * channels)
        columns = torch.arange(channels, dtype=index_dtype(into_sources.numel()))
        for sources, destinations in row_chunks(SERIAL_ELEMENTS, winners, order):
            positions = torch.add(columns, sources.to(columns.dtype), alpha=channels)
            into_sources.index_add_(0, positions.view(-1), gradient.index_select(0, destinations).view(-1))
        return into_sources.view(ctx.num_src, channels), None, None

    @staticmethod
    @contextmanager
    def memory(tape: Tape, block: Block, channels: int) -> Iterator[Held]:
        dtype, item = lists_dtype(block), tape.dtype.itemsize
        lists = lists_memory(tape, block, dtype)
        degrees = descending_degrees(block)
        with tape.temporary("aggregator", block.num_dst, dtype=dtype):
            order = tape.allocate("aggregator", block.num_dst, dtype=torch.int64)
            result = tape.allocate("aggregator", block.num_dst, channels)
            winners = tape.allocate("aggregator", degrees.size, channels, dtype=dtype)
            num_rows = min(block.num_edges, max(1, POOLED_ELEMENTS // channels))
            with tape.temporary("aggregator", num_rows, channels):
                sizes = np.array(_group_sizes(torch.from_numpy(degrees), max_edges=num_rows), dtype=np.int64)
                lists_bytes = sizes * degrees[np.cumsum(sizes) - sizes] * dtype.itemsize
                of_groups = lists_bytes + np.maximum(lists_bytes, sizes * channels * (item + 8))
                tape.touch("aggregator", int(of_groups.max(initial=0)), dtype=torch.uint8)
        tape.free(*lists)
        yield result
        before = tape.gradient
        tape.gradient = tape.allocate("backward", block.num_src, channels)
        rows = min(degrees.size, max(1, SERIAL_ELEMENTS // channels))
        index_item = index_dtype(block.num_src * channels).itemsize
        tape.touch("backward", rows, channels, index_item + item, dtype=torch.uint8)
        tape.free(before, order, winners)


def _group_sizes(degrees: Tensor, max_edges: int) -> list[int]:
    """Cut destinations into groups of similar degree.

    Args:
        degrees: ``[num_dst]``, descending, above 0.
        max_edges: of a group, unless it is a single destination.
    """
    ascending = -degrees.numpy()
    sizes, start = [], 0
    while start < len(ascending):
        longest = -int(ascending[start])
        num_similar = int(np.searchsorted(ascending, -SIMILAR_DEGREE * longest, side="right")) - start
        sizes.append(min(num_similar, max(1, max_edges // longest)))
        start += sizes[-1]
    return sizes


def _padded_lists(indices: Tensor, starts: Tensor, lengths: Tensor) -> Tensor:
    """``[num_lists, longest]``, lists of sources; shorter ones repeat their last source, which changes no maximum.

    Args:
        indices: all lists.
        starts: ``[num_lists]``, where each begins in ``indices``.
        lengths: ``[num_lists]``, descending, above 0.
    """
    steps = torch.arange(int(lengths[0]), dtype=starts.dtype).minimum(lengths.unsqueeze(1) - 1)
    edges = steps.add_(starts.unsqueeze(1))
    return indices.index_select(0, edges.view(-1)).view(edges.shape)


def _maximum_of_lists(x: Tensor, sources: Tensor, rows: Tensor, winners: Tensor) -> Tensor:
    """The maxima over lists of sources; of equals the first one wins.

    Args:
        x: ``[num_src, channels]``.
        sources: ``[num_lists, length]``.
        rows: ``[at least num_lists * length, channels]``, for what is gathered.
        winners: ``[num_lists, channels]``, for the sources that the maxima are from.

    Returns:
        ``[num_lists, channels]``.
    """
    rows = torch.index_select(x, 0, sources.view(-1), out=rows[: sources.numel()])
    images = rows.view(*sources.shape, 1, x.shape[1]).permute(0, 3, 1, 2)
    maxima, steps = max_pool2d(images, (sources.shape[1], 1), return_indices=True)
    torch.gather(sources, 1, steps.flatten(1), out=winners)
    return maxima.flatten(1)


def _maximum_of_long_list(x: Tensor, sources: Tensor, rows: Tensor, winners: Tensor) -> Tensor:
    """:func:`_maximum_of_lists` of one list that is longer than ``rows``, piece by piece."""
    pieces = sources.squeeze(0).split(len(rows))
    winners_of_pieces = winners.new_empty(len(pieces), x.shape[1])
    maxima = [
        _maximum_of_lists(x, piece.unsqueeze(0), rows, into.unsqueeze(0))
        for piece, into in zip(pieces, winners_of_pieces, strict=True)
    ]
    maximum, best = torch.cat(maxima).max(dim=0, keepdim=True)
    torch.gather(winners_of_pieces, 0, best, out=winners)
    return maximum
