"""The attention of destination nodes to their neighbours: a number per edge and head."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor
from torch.autograd.function import FunctionCtx, once_differentiable
from torch.nn.functional import embedding_bag, leaky_relu_, linear

from betty.blocks import Block
from betty.cost.work import Operations, Work, new_tensor
from betty.memory.tape import Held, Tape
from betty.models.autocast import float32_backward, float32_forward
from betty.models.linear import linear_work
from betty.models.neighbour_reduction import transpose, transpose_memory


def score_nodes(x: Tensor, vectors: Tensor) -> tuple[Tensor, Tensor]:
    """Take the dot product of every node's features with some vectors, and pass the features on.

    What else is computed from the features is to be computed from those returned, by one operation only: its gradient
    comes back here, and this function's part is added to it in place. Otherwise there would be two gradients of the
    size of the features.

    Args:
        x: floating ``[num_nodes, channels]``.
        vectors: ``[num_vectors, channels]``, of the same dtype.

    Returns:
        The scores ``[num_nodes, num_vectors]``, and ``x``.
    """
    return _ScoreNodes.apply(x, vectors) if x.requires_grad else (linear(x, vectors), x)


@contextmanager
def score_nodes_memory(
    tape: Tape, x: Held, num_nodes: int, channels: int, num_vectors: int, needs_gradient: bool
) -> Iterator[Held]:
    """What :func:`score_nodes` takes, see :class:`~betty.memory.tape.Tape`; the gradient of the scores is waiting."""
    tape.save(x)
    yield tape.allocate("aggregator", num_nodes, num_vectors)
    of_scores = tape.waiting.pop()
    tape.touch("backward", num_vectors, channels)
    tape.free(of_scores, x)


def score_nodes_work(num_nodes: int, channels: int, num_vectors: int, needs_gradient: bool) -> Work:
    """What :func:`score_nodes` computes."""
    return linear_work(num_nodes, channels, num_vectors, needs_gradient)


def edge_softmax(block: Block, source_scores: Tensor, destination_scores: Tensor, negative_slope: float) -> Tensor:
    """The attention that every destination node pays to each of its neighbours.

    Veličković, Cucurull, Casanova, Romero, Liò, Bengio: Graph Attention Networks, 2018, equation 3, where the scores of
    both ends are the two halves of the product with the vector a.

    Args:
        block: with ``num_src`` sources and ``num_dst`` destinations.
        source_scores: floating ``[num_src, num_heads]``.
        destination_scores: ``[num_dst, num_heads]``, of the same dtype.
        negative_slope: of the leaky ReLU that the sum of both scores goes through.

    Returns:
        ``[num_edges, num_heads]`` in the block's order of edges; over the edges into a destination it sums to 1.
    """
    return _EdgeSoftmax.apply(source_scores, destination_scores, block.indptr, block.indices, negative_slope)


@contextmanager
def edge_softmax_memory(tape: Tape, block: Block, num_heads: int) -> Iterator[Held]:
    """What :func:`edge_softmax` takes, see :class:`~betty.memory.tape.Tape`; the attention's gradient is waiting."""
    size, dtype = (block.num_edges, num_heads), block.indices.dtype
    with tape.temporary("aggregator", block.num_edges, dtype=dtype):
        result = tape.allocate("aggregator", *size)
        is_positive = tape.allocate("aggregator", *size, dtype=torch.bool)
        tape.touch("aggregator", *size)
    tape.save(result)
    if not tape.trains:
        tape.free(is_positive)
    yield result
    of_attention = tape.waiting.pop()
    with tape.temporary("backward", *size), tape.temporary("backward", *size):
        tape.touch("backward", block.num_edges, dtype=dtype)
        with transpose_memory(tape, block):
            of_sources = tape.allocate("backward", block.num_src, num_heads)
            of_destinations = tape.allocate("backward", block.num_dst, num_heads)
    tape.free(of_attention, result, is_positive)
    of_scores = tape.allocate("backward", block.num_src, 2 * num_heads)
    tape.free(of_sources, of_destinations)
    tape.waiting.append(of_scores)


def edge_softmax_work(block: Block, num_heads: int) -> Work:
    """What :func:`edge_softmax` computes."""
    numbers = new_tensor(block.num_edges, num_heads)
    edges = Operations(call=12, softmax=block.num_edges * num_heads)
    return Work(edges + numbers + numbers, edges + numbers + numbers + Operations(transpose=block.num_edges))


@contextmanager
def edge_ids_memory(tape: Tape, block: Block) -> Iterator[None]:
    """What the ids of both ends of every edge take, that dropout of attention keeps."""
    ids = tape.allocate("aggregator", 2, block.num_edges, dtype=torch.int64)
    yield
    tape.free(ids)


def edge_destinations(indptr: Tensor, indices: Tensor) -> Tensor:
    """``[num_edges]``, the destination of every edge."""
    destinations = torch.arange(indptr.numel() - 1, dtype=indices.dtype, device=indices.device)
    return destinations.repeat_interleave(indptr.diff(), output_size=indices.numel())


def edges_by_source(indices: Tensor, num_src: int) -> tuple[Tensor, Tensor]:
    """``(offsets, edges)``: ``[num_src + 1]`` and the edges out of every source ``[num_edges]``."""
    every_edge = torch.arange(indices.numel() + 1, dtype=indices.dtype, device=indices.device)
    return transpose(every_edge, indices, num_src)


class _ScoreNodes(torch.autograd.Function):
    @staticmethod
    @float32_forward
    def forward(ctx: FunctionCtx, x: Tensor, vectors: Tensor) -> tuple[Tensor, Tensor]:
        ctx.save_for_backward(x, vectors)
        return linear(x, vectors), x

    @staticmethod
    @once_differentiable
    @float32_backward
    def backward(ctx: FunctionCtx, of_scores: Tensor, of_x: Tensor) -> tuple[Tensor, Tensor]:
        x, vectors = ctx.saved_tensors
        return of_x.addmm_(of_scores, vectors), of_scores.t() @ x


class _EdgeSoftmax(torch.autograd.Function):
    """Keeps the result and the sign of what went into the leaky ReLU."""

    @staticmethod
    @float32_forward
    def forward(
        ctx: FunctionCtx,
        source_scores: Tensor,
        destination_scores: Tensor,
        indptr: Tensor,
        indices: Tensor,
        negative_slope: float,
    ) -> Tensor:
        destinations = edge_destinations(indptr, indices)
        scores = source_scores.index_select(0, indices)
        scores += destination_scores.index_select(0, destinations)
        is_positive = scores > 0
        leaky_relu_(scores, negative_slope)
        scores -= _reduce_rows(scores, "max", indptr).index_select(0, destinations)
        attention = scores.exp_()
        attention /= _reduce_rows(attention, "sum", indptr).index_select(0, destinations)
        ctx.save_for_backward(attention, is_positive, indptr, indices)
        ctx.num_src, ctx.negative_slope = source_scores.shape[0], negative_slope
        return attention

    @staticmethod
    @once_differentiable
    @float32_backward
    def backward(ctx: FunctionCtx, gradient: Tensor) -> tuple[Tensor | None, ...]:
        attention, is_positive, indptr, indices = ctx.saved_tensors
        gradient = attention * gradient
        scratch = _reduce_rows(gradient, "sum", indptr).index_select(0, edge_destinations(indptr, indices))
        gradient.addcmul_(attention, scratch, value=-1)
        torch.mul(gradient, ctx.negative_slope, out=scratch)
        torch.where(is_positive, gradient, scratch, out=gradient)
        offsets, edges = edges_by_source(indices, ctx.num_src)
        of_sources = embedding_bag(edges, gradient, offsets, mode="sum", include_last_offset=True)
        return of_sources, _reduce_rows(gradient, "sum", indptr), None, None, None


def _reduce_rows(values: Tensor, reduction: str, indptr: Tensor) -> Tensor:
    """``[num_dst, num_heads]`` out of ``[num_edges, num_heads]``."""
    return torch.segment_reduce(values, reduction, offsets=indptr)
