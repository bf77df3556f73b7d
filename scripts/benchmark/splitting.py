"""Time to split a full batch into all its micro-batches: Betty against DGL's own functions."""

from __future__ import annotations

import torch
from common import REAL_GRAPHS, describe_machine, load_graph, markdown_table, median_seconds

from betty import Block, FullBatch, partition, sample_full_batch, split
from betty.dgl_compat import dgl

NUM_PARTS = 16
FAN_OUTS = [10, 25]


def layer_graph(block: Block, num_nodes: int) -> dgl.DGLGraph:
    """A block's edges as a graph over all nodes, from which ``dgl.in_subgraph`` can take rows."""
    destinations = block.dst_ids.repeat_interleave(block.in_degrees())
    return dgl.graph((block.src_ids[block.indices], destinations), num_nodes=num_nodes)


def split_by_dgl(graphs: list[dgl.DGLGraph], full_batch: FullBatch, parts: list[torch.Tensor]) -> list[list]:
    """DGL's own way: the rows of every layer as a subgraph, relabelled as a block."""
    micro_batches = []
    for part in parts:
        nodes, blocks = full_batch.output_ids[part], []
        for graph in reversed(graphs):
            block = dgl.to_block(dgl.in_subgraph(graph, nodes), nodes)
            nodes = block.srcdata[dgl.NID]
            blocks.insert(0, block)
        micro_batches.append(blocks)
    return micro_batches


def make_ready(micro_batches: list[list]) -> None:
    """Build the form in which DGL passes messages; ``dgl.to_block`` leaves it to the first layer that needs it."""
    for blocks in micro_batches:
        for block in blocks:
            block.create_formats_()


def measure(name: str) -> list[str]:
    """One row of the table."""
    dataset = load_graph(name)
    full_batch = sample_full_batch(dataset.graph, dataset.train_ids, FAN_OUTS, seed=1236)
    parts = partition(full_batch, NUM_PARTS, "REG")
    num_nodes = dataset.graph.num_nodes()

    def dgl_from_blocks() -> None:
        graphs = [layer_graph(block, num_nodes) for block in full_batch.blocks]
        make_ready(split_by_dgl(graphs, full_batch, parts))

    graphs = [layer_graph(block, num_nodes).formats("csc") for block in full_batch.blocks]
    for graph in graphs:
        graph.create_formats_()
    ours = median_seconds(lambda: split(full_batch, parts))
    from_blocks = median_seconds(dgl_from_blocks)
    ready = median_seconds(lambda: make_ready(split_by_dgl(graphs, full_batch, parts)))
    bare = median_seconds(lambda: split_by_dgl(graphs, full_batch, parts))
    edges = sum(micro_batch.num_edges for micro_batch in split(full_batch, parts))
    times = [f"{1000 * seconds:.1f}" for seconds in (ours, from_blocks, ready, bare)]
    return [name, f"{edges:,}", *times, *(f"{seconds / ours:.1f}" for seconds in (from_blocks, ready, bare))]


def main() -> None:
    header = [
        "graph",
        "edges of all micro-batches",
        "Betty (ms)",
        "DGL from the blocks (ms)",
        "… layer graphs given (ms)",
        "… formats left unbuilt (ms)",
        "ratio",
        "ratio",
        "ratio",
    ]
    print(f"### Splitting into {NUM_PARTS} micro-batches, fan-outs {FAN_OUTS}\n")
    print(markdown_table(header, [measure(name) for name in (*REAL_GRAPHS, "synthetic-arxiv")]))
    print(f"\n{describe_machine()}")


if __name__ == "__main__":
    main()
