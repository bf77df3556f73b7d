"""Graphs for the tests of full batches."""

import torch

from betty import FullBatch
from betty.dgl_compat import dgl


def random_graph(num_nodes: int, num_edges: int, seed: int = 0) -> dgl.DGLGraph:
    """A directed graph with hubs, parallel edges, self-loops, and nodes without in-edges (the last tenth)."""
    generator = torch.Generator().manual_seed(seed)
    sources = torch.randint(num_nodes, (num_edges,), generator=generator)
    skewed = torch.rand(num_edges, generator=generator) ** 3
    return dgl.graph((sources, (skewed * num_nodes * 0.9).long()), num_nodes=num_nodes)


def assert_same_bits(one: FullBatch, other: FullBatch) -> None:
    assert len(one.blocks) == len(other.blocks)
    for mine, theirs in zip(one.blocks, other.blocks, strict=True):
        for name in ("indptr", "indices", "src_ids"):
            assert getattr(mine, name).dtype == getattr(theirs, name).dtype
            assert torch.equal(getattr(mine, name), getattr(theirs, name)), name
