"""What travels through Betty: blocks, full batches and micro-batches, as tensors and nothing else."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

if TYPE_CHECKING:
    import dgl


@dataclass(frozen=True, eq=False, repr=False)
class Block:
    """The bipartite message-flow graph of one GNN layer, in CSC form: each destination node's sources in a row.

    Nodes have local ids in the block. The destination nodes come first among the source nodes, as in DGL, so that
    destination ``i`` is source ``i`` as well.

    Args:
        indptr: int64 ``[num_dst + 1]``; the sources of destination ``i`` are
            ``indices[indptr[i]:indptr[i + 1]]``.
        indices: int32 or int64 ``[num_edges]``, local ids of source nodes.
        src_ids: int64 ``[num_src]``, global ids of the source nodes; the first ``num_dst`` are the destinations.
    """

    indptr: Tensor
    indices: Tensor
    src_ids: Tensor

    @property
    def num_src(self) -> int:
        return self.src_ids.numel()

    @property
    def num_dst(self) -> int:
        return self.indptr.numel() - 1

    @property
    def num_edges(self) -> int:
        return self.indices.numel()

    @property
    def dst_ids(self) -> Tensor:
        """int64 ``[num_dst]``, global ids of the destination nodes."""
        return self.src_ids[: self.num_dst]

    @property
    def device(self) -> torch.device:
        return self.indices.device

    def in_degrees(self) -> Tensor:
        """int64 ``[num_dst]``, the number of edges into each destination node."""
        return self.indptr.diff()

    def to(self, device: torch.device | str, non_blocking: bool = False) -> Block:
        """The block on another device."""
        return Block(*(t.to(device, non_blocking=non_blocking) for t in (self.indptr, self.indices, self.src_ids)))

    def to_dgl(self) -> dgl.DGLGraph:
        """The same block as DGL's, for any layer of ``dgl.nn``.

        The global ids stand in ``srcdata[dgl.NID]`` and ``dstdata[dgl.NID]``, as after ``dgl.to_block``.
        """
        # Imported here and not above: this module is the base of all others and knows none of them.
        from betty.dgl_compat import dgl

        # DGL would take no edge ids for these very ones, but some of its kernels then fail.
        edge_ids = torch.arange(self.num_edges, device=self.device)
        csc = ("csc", (self.indptr, self.indices.long(), edge_ids))
        block = dgl.create_block(csc, num_src_nodes=self.num_src, num_dst_nodes=self.num_dst)
        block.srcdata[dgl.NID] = self.src_ids
        block.dstdata[dgl.NID] = self.dst_ids
        return block

    @classmethod
    def from_dgl(cls, block: dgl.DGLGraph) -> Block:
        """The same block as a :class:`Block`, in the block's order of edges.

        Args:
            block: of one node type and one edge type, as ``dgl.to_block`` makes it, without data on its edges.

        Raises:
            BettyError: it is not such a block.
        """
        from betty.dgl_blocks import csc_and_ids

        indptr, indices, src_ids = csc_and_ids(block)
        return cls(indptr.long(), indices.to(index_dtype(src_ids.numel())), src_ids.long())

    def __repr__(self) -> str:
        return f"Block(num_src={self.num_src}, num_dst={self.num_dst}, num_edges={self.num_edges})"


def index_dtype(num_ids: int) -> torch.dtype:
    """The smallest dtype that :attr:`Block.indices` may have for ``num_ids`` local ids."""
    return torch.int32 if num_ids <= torch.iinfo(torch.int32).max else torch.int64


@dataclass(frozen=True, eq=False)
class FullBatch:
    """A set of output nodes with the blocks sampled for them.

    The destinations of a block are the sources of the next one, in the same order. Since destinations come first
    among sources, the ids of every block are a prefix of :attr:`input_ids`: a node has one position in all of them.

    Args:
        blocks: one per layer, input layer first.
    """

    blocks: tuple[Block, ...]

    @property
    def input_ids(self) -> Tensor:
        """int64, global ids of the sources of the first block."""
        return self.blocks[0].src_ids

    @property
    def output_ids(self) -> Tensor:
        """int64, global ids of the destinations of the last block."""
        return self.blocks[-1].dst_ids

    @property
    def num_edges(self) -> int:
        return sum(block.num_edges for block in self.blocks)

    def of_layers(self, layers: range) -> FullBatch:
        """The full batch of a stage: its blocks, whose output nodes are the destinations of the last one of them."""
        return FullBatch(self.blocks[layers.start : layers.stop])


@dataclass(frozen=True, eq=False)
class MicroBatch(FullBatch):
    """The part of a full batch that computes a subset of its output nodes: exactly their rows of every block.

    Args:
        blocks: one per layer, input layer first.
        weight: its share of the full batch's output nodes; the weights of all micro-batches sum to 1.
        positions: int64 ``[num_input_nodes]``, where its input nodes stand among the full batch's, its output nodes
            first; in host memory wherever the blocks are, and ``None`` where it was not cut out of a full batch.
    """

    weight: float = 1.0
    positions: Tensor | None = None

    def to(self, device: torch.device | str, non_blocking: bool = False) -> MicroBatch:
        """The micro-batch on another device."""
        return self._map(lambda tensor: tensor.to(device, non_blocking=non_blocking))

    def pin_memory(self) -> MicroBatch:
        """The micro-batch in page-locked host memory, from which CUDA copies in the background."""
        return self._map(Tensor.pin_memory)

    def record_stream(self, stream: torch.cuda.Stream) -> None:
        """Keep the memory of a micro-batch that another stream made until ``stream`` has used it."""
        self._map(lambda tensor: tensor.record_stream(stream) or tensor)

    def _map(self, change: Callable[[Tensor], Tensor]) -> MicroBatch:
        layers = [(change(block.indptr), change(block.indices)) for block in self.blocks]
        return MicroBatch(chain_blocks(layers, change(self.input_ids)), self.weight, self.positions)


def chain_blocks(layers: Sequence[tuple[Tensor, Tensor]], node_ids: Tensor) -> tuple[Block, ...]:
    """Blocks that share one tensor of node ids.

    Args:
        layers: ``(indptr, indices)`` of every block, input layer first.
        node_ids: int64 ``[num_input_nodes]``, global ids of the first block's sources.

    Returns:
        One block per layer, whose ``src_ids`` are views of ``node_ids``.
    """
    num_src = [node_ids.numel(), *(indptr.numel() - 1 for indptr, _ in layers[:-1])]
    return tuple(
        Block(indptr, indices, node_ids[:count]) for (indptr, indices), count in zip(layers, num_src, strict=True)
    )
