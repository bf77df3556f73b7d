"""Sums over the neighbours of every destination node, without a row per edge."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import scipy.sparse
import torch
from torch import Tensor
from torch.autograd.function import FunctionCtx, once_differentiable
from torch.nn.functional import embedding_bag

from betty.blocks import Block, index_dtype
from betty.cost.work import Operations, Work, new_tensor
from betty.memory.tape import Held, Tape
from betty.models.autocast import float32_backward, float32_forward


def sum_neighbours(block: Block, x: Tensor) -> Tensor:
    """Add up the neighbours of every destination node.

    Measured on one CPU thread with 50,000 destinations, 490,000 edges, 187,000 sources and 128 float32 channels, in
    milliseconds forward and backward: this function 17 and 37, ``embedding_bag`` with PyTorch's own backward 18 and
    86, a product with a CSR matrix 52 and 113, DGL's message passing 24 and 42.

    Args:
        block: with ``num_src`` sources.
        x: floating ``[num_src, channels]``, a row per source node.

    Returns:
        ``[num_dst, channels]``; zeros where a destination has no neighbour.
    """
    return _SumNeighbours.apply(x, *in_one_dtype(block.indptr, block.indices))


_BAG_NUMBERS = 2
"""Integers per row of its result that ``embedding_bag`` makes and nobody asked for."""


@contextmanager
def sum_memory(tape: Tape, block: Block, channels: int, needs_gradient: bool) -> Iterator[Held]:
    """What :func:`sum_neighbours` takes of ``channels``, see :class:`~betty.memory.tape.Tape`."""
    lists = lists_memory(tape, block, lists_dtype(block))
    with tape.temporary("aggregator", _BAG_NUMBERS * block.num_dst, dtype=lists_dtype(block)):
        result = tape.allocate("aggregator", block.num_dst, channels)
        _bags_memory(tape, "aggregator", block)
    if not (tape.trains and needs_gradient):
        tape.free(*lists)
        yield result
        return
    yield result
    bags = _BAG_NUMBERS * block.num_src
    with transpose_memory(tape, block), tape.temporary("backward", bags, dtype=lists_dtype(block)):
        before = tape.gradient
        tape.gradient = tape.allocate("backward", block.num_src, channels)
        _bags_memory(tape, "backward", block)
        tape.free(before)
    tape.free(*lists)


def sum_work(block: Block, channels: int, needs_gradient: bool) -> Work:
    """What :func:`sum_neighbours` computes."""
    gathered = Operations(sum=block.num_edges * channels)
    forward = gathered + new_tensor(block.num_dst, channels)
    if not needs_gradient:
        return Work(forward)
    return Work(forward, gathered + new_tensor(block.num_src, channels) + Operations(transpose=block.num_edges))


def _bags_memory(tape: Tape, kind: str, block: Block) -> None:
    """In float64 ``embedding_bag`` has no kernel of its own on the CPU and notes the bag of every edge, twice."""
    if tape.device_type == "cpu" and tape.dtype == torch.float64:
        tape.touch(kind, 2 * block.num_edges, dtype=lists_dtype(block))


@contextmanager
def transpose_memory(tape: Tape, block: Block) -> Iterator[None]:
    """What :func:`transpose` takes, and its result inside the ``with``; on the CPU that is no memory of PyTorch's."""
    if tape.device_type == "cpu":
        yield
        return
    dtype = lists_dtype(block)
    with tape.temporary("backward", block.num_src + block.num_edges, dtype=dtype):
        # Sorted sources and their order, destinations, and as much again for sorting.
        tape.touch("backward", block.num_edges, 2 * (dtype.itemsize + 8) + dtype.itemsize, dtype=torch.uint8)
        yield


def lists_dtype(block: Block) -> torch.dtype:
    """The dtype of :func:`in_one_dtype`."""
    return torch.promote_types(block.indices.dtype, index_dtype(block.num_edges))


def lists_memory(tape: Tape, block: Block, dtype: torch.dtype) -> list[Held]:
    """What it takes to have ``indptr`` and ``indices`` in one dtype: those that are made anew."""
    sizes = ((block.indptr.dtype, block.num_dst + 1), (block.indices.dtype, block.num_edges))
    return [tape.allocate("aggregator", size, dtype=dtype) for before, size in sizes if before != dtype]


def destination_rows(block: Block, x: Tensor) -> Tensor:
    """The destinations' own features, ``x[: block.num_dst]``.

    The gradient of a slice is a tensor of zeros as large as ``x``, which is added to the gradient that comes from the
    neighbours. Here it is a sparse tensor, of which autograd adds the rows that there are: in place where this function
    is called last, and then the backward of a layer takes a third less time and memory.

    Args:
        block: with ``num_src`` sources.
        x: floating ``[num_src, channels]``, from which the layer's result depends on neighbours, too.

    Returns:
        ``[num_dst, channels]``.
    """
    return _DestinationRows.apply(x, block.num_dst)


def destination_rows_memory(tape: Tape, gradient: Held | None, num_dst: int) -> tuple[Held, ...]:
    """What the backward of :func:`destination_rows` holds until the neighbours' gradient is there to be added to.

    Args:
        tape: to be played on.
        gradient: of the rows, held from here on; ``None`` where none is needed.
        num_dst: how many there are.
    """
    return () if gradient is None else (gradient, tape.allocate("backward", num_dst, dtype=torch.int64))


def destination_rows_work(num_dst: int, channels: int, needs_gradient: bool) -> Work:
    """What :func:`destination_rows` computes: to add up gradients."""
    return Work(backward=Operations(call=3, stream=3 * num_dst * channels * needs_gradient))


def transpose(indptr: Tensor, indices: Tensor, num_src: int) -> tuple[Tensor, Tensor]:
    """Turn the lists of sources per destination into lists of destinations per source.

    Args:
        indptr: int32 or int64 ``[num_dst + 1]``.
        indices: ``[num_edges]``, of the same dtype; source ids.
        num_src: the number of sources.

    Returns:
        ``(indptr, indices)`` of one dtype: ``[num_src + 1]`` and ``[num_edges]``, destinations ascending in each row.
    """
    method = transpose_by_counting if indices.device.type == "cpu" else transpose_by_sorting
    return method(indptr, indices, num_src)


def transpose_by_sorting(indptr: Tensor, indices: Tensor, num_src: int) -> tuple[Tensor, Tensor]:
    """:func:`transpose` on any device."""
    sources, order = indices.sort(stable=True)
    destinations = torch.arange(indptr.numel() - 1, dtype=indices.dtype, device=indices.device)
    destinations = destinations.repeat_interleave(indptr.diff(), output_size=indices.numel())
    starts = torch.arange(num_src + 1, dtype=indices.dtype, device=indices.device)
    by_source = torch.searchsorted(sources, starts, out_int32=indices.dtype == torch.int32)
    return by_source, destinations.index_select(0, order)


def transpose_by_counting(indptr: Tensor, indices: Tensor, num_src: int) -> tuple[Tensor, Tensor]:
    """:func:`transpose` on the CPU, several times faster there than sorting."""
    values = np.ones(indices.numel(), dtype=np.int8)
    shape = (indptr.numel() - 1, num_src)
    by_source = scipy.sparse.csr_matrix((values, indices.numpy(), indptr.numpy()), shape=shape).tocsc()
    return in_one_dtype(torch.from_numpy(by_source.indptr), torch.from_numpy(by_source.indices))


def in_one_dtype(indptr: Tensor, indices: Tensor) -> tuple[Tensor, Tensor]:
    """Both in the one dtype that ``embedding_bag`` asks for, which is int32 where the numbers allow it."""
    dtype = torch.promote_types(indices.dtype, index_dtype(indices.numel()))
    return indptr.to(dtype), indices.to(dtype)


class _SumNeighbours(torch.autograd.Function):
    """The backward is the same sum over the transposed lists, which beats scattering every edge into the gradient."""

    @staticmethod
    @float32_forward
    def forward(ctx: FunctionCtx, x: Tensor, indptr: Tensor, indices: Tensor) -> Tensor:
        ctx.save_for_backward(indptr, indices)
        ctx.num_src = x.shape[0]
        return embedding_bag(indices, x, indptr, mode="sum", include_last_offset=True)

    @staticmethod
    @once_differentiable
    @float32_backward
    def backward(ctx: FunctionCtx, gradient: Tensor) -> tuple[Tensor, None, None]:
        indptr, indices = transpose(*ctx.saved_tensors, ctx.num_src)
        gradient = gradient.contiguous()
        return embedding_bag(indices, gradient, indptr, mode="sum", include_last_offset=True), None, None


class _DestinationRows(torch.autograd.Function):
    @staticmethod
    def forward(ctx: FunctionCtx, x: Tensor, num_dst: int) -> Tensor:
        ctx.shape = x.shape
        return x[:num_dst]

    @staticmethod
    @once_differentiable
    def backward(ctx: FunctionCtx, gradient: Tensor) -> tuple[Tensor, None]:
        rows = torch.arange(gradient.shape[0], device=gradient.device).unsqueeze(0)
        sparse = torch.sparse_coo_tensor(rows, gradient, ctx.shape, check_invariants=False, is_coalesced=True)
        return sparse, None
