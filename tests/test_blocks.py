"""Blocks against DGL's own."""

import pytest
import torch

from betty import Block
from betty.blocks import index_dtype
from betty.dgl_compat import dgl
from tests.random_blocks import random_block, random_full_batch


def sampled_dgl_block() -> dgl.DGLGraph:
    sources = torch.randint(0, 50, (400,), generator=torch.Generator().manual_seed(0))
    graph = dgl.graph((sources, sources.roll(7)), num_nodes=60)
    outputs = torch.tensor([59, 3, 8, 0, 55])
    return dgl.to_block(dgl.in_subgraph(graph, outputs), outputs)


def edges_of(block: dgl.DGLGraph) -> list[tuple[int, int]]:
    sources, destinations = block.edges(order="eid")
    return sorted(zip(sources.tolist(), destinations.tolist(), strict=True))


def test_from_dgl_has_the_same_edges_and_ids() -> None:
    dgl_block = sampled_dgl_block()
    block = Block.from_dgl(dgl_block)
    destinations = torch.arange(block.num_dst).repeat_interleave(block.in_degrees())
    assert sorted(zip(block.indices.tolist(), destinations.tolist(), strict=True)) == edges_of(dgl_block)
    assert torch.equal(block.src_ids, dgl_block.srcdata[dgl.NID])
    assert torch.equal(block.dst_ids, dgl_block.dstdata[dgl.NID])
    assert (block.num_src, block.num_dst, block.num_edges) == (
        dgl_block.num_src_nodes(),
        dgl_block.num_dst_nodes(),
        dgl_block.num_edges(),
    )
    assert (block.indptr.dtype, block.indices.dtype) == (torch.int64, torch.int32)


@pytest.mark.parametrize("seed", range(3))
def test_to_dgl_and_back_is_the_same_block(seed: int) -> None:
    block = random_block(20, 50, 6, seed)
    again = Block.from_dgl(block.to_dgl())
    assert torch.equal(again.indptr, block.indptr)
    assert torch.equal(again.indices, block.indices)
    assert torch.equal(again.src_ids, block.src_ids)


def test_a_block_without_edges_goes_to_dgl_and_back() -> None:
    block = Block(torch.zeros(4, dtype=torch.int64), torch.empty(0, dtype=torch.int32), torch.tensor([5, 9, 2]))
    again = Block.from_dgl(block.to_dgl())
    assert again.num_edges == 0
    assert torch.equal(again.src_ids, block.src_ids)


def test_dgls_attention_layer_trains_on_a_block() -> None:
    block = random_block(20, 50, 6, seed=0)
    layer = dgl.nn.GATConv(3, 4, num_heads=2, allow_zero_in_degree=True)
    x = torch.rand(50, 3, requires_grad=True)
    layer(block.to_dgl(), x).sum().backward()
    assert x.grad.abs().sum() > 0


def test_degrees_are_dgls() -> None:
    block = random_block(20, 50, 6, seed=0)
    assert torch.equal(block.in_degrees(), block.to_dgl().in_degrees())


def test_chained_blocks_share_their_ids() -> None:
    full_batch = random_full_batch([60, 30, 10], 5, seed=0)
    assert torch.equal(full_batch.blocks[0].dst_ids, full_batch.blocks[1].src_ids)
    assert full_batch.input_ids.numel() == 60
    assert full_batch.output_ids.numel() == 10
    assert {block.src_ids.data_ptr() for block in full_batch.blocks} == {full_batch.input_ids.data_ptr()}
    assert full_batch.num_edges == sum(block.num_edges for block in full_batch.blocks)


def test_index_dtype_is_the_smallest_that_holds_all_ids() -> None:
    assert index_dtype(2**31 - 1) == torch.int32
    assert index_dtype(2**31 + 1) == torch.int64
