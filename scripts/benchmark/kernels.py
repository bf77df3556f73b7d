"""Time and memory of layers, forward and backward, against those of ``dgl.nn``; and of dropout against PyTorch's."""

from __future__ import annotations

from collections.abc import Callable

import torch
from common import compare_seconds, describe_machine, load_graph, markdown_table, peak_tensor_bytes
from torch import Tensor, nn
from torch.nn.functional import dropout

from betty import Block, sample_full_batch
from betty.dgl_compat import dgl
from betty.models import SAGEConv
from betty.models.exact_dropout import exact_dropout
from betty.models.gat_conv import GATConv

CHANNELS = 128
NUM_HEADS = 4
REPETITIONS = 7
NUM_DROPOUT_NODES = 200_000


def power_law_block() -> Block:
    """50,000 destinations with up to 10 in-neighbours each, in a graph in which few nodes have most of the edges."""
    num_nodes, num_edges = 220_000, 2_750_000
    random = torch.Generator().manual_seed(0)
    # The share of the edges of the node of rank r falls as r ** -0.55.
    ends = (num_nodes * torch.rand(2, num_edges, generator=random, dtype=torch.float64) ** (1 / 0.45)).long()
    graph = dgl.to_bidirected(dgl.graph((ends[0], ends[1]), num_nodes=num_nodes))
    destinations = torch.randperm(num_nodes, generator=random)[:50_000]
    return sample_full_batch(graph, destinations, [10], seed=0).blocks[0]


def tolokers_block() -> Block:
    """The last block of tolokers with all training nodes and a fan-out of 25."""
    dataset = load_graph("tolokers")
    return sample_full_batch(dataset.graph, dataset.train_ids, [25], seed=0).blocks[-1]


class DGLSum(nn.Module):
    """The layer with sums that ``dgl.nn`` lacks, made of DGL's message passing."""

    def __init__(self) -> None:
        super().__init__()
        self.fc_neigh = nn.Linear(CHANNELS, CHANNELS, bias=False)
        self.fc_self = nn.Linear(CHANNELS, CHANNELS)

    def forward(self, block: dgl.DGLGraph, x: Tensor) -> Tensor:
        with block.local_scope():
            block.srcdata["x"] = x
            block.update_all(dgl.function.copy_u("x", "message"), dgl.function.sum("message", "sum"))
            return self.fc_neigh(block.dstdata["sum"]) + self.fc_self(x[: block.num_dst_nodes()])


def layers() -> dict[str, tuple[nn.Module, nn.Module]]:
    """Betty's layer and DGL's, by name."""
    pairs: dict[str, tuple[nn.Module, nn.Module]] = {
        name: (SAGEConv(CHANNELS, CHANNELS, name), dgl.nn.SAGEConv(CHANNELS, CHANNELS, name))
        for name in ("lstm", "mean", "gcn", "pool")
    }
    pairs["sum"] = (SAGEConv(CHANNELS, CHANNELS, "sum"), DGLSum())
    heads = (CHANNELS, CHANNELS // NUM_HEADS, NUM_HEADS)
    pairs[f"GAT, {NUM_HEADS} heads"] = (GATConv(*heads), dgl.nn.GATConv(*heads, allow_zero_in_degree=True))
    return pairs


def forward_and_backward(layer: nn.Module, block: Block | dgl.DGLGraph, x: Tensor) -> Callable[[], None]:
    gradient = torch.randn(layer(block, x).shape)

    def work() -> None:
        layer(block, x).backward(gradient)
        x.grad = None
        layer.zero_grad()

    return work


def layer_row(name: str, ours: nn.Module, theirs: nn.Module, block: Block) -> list[str]:
    """One row of the table: milliseconds and MB of both, and the ratios."""
    x = torch.randn(block.num_src, CHANNELS, requires_grad=True)
    work = forward_and_backward(ours, block, x)
    reference = forward_and_backward(theirs, block.to_dgl(), x)
    seconds = compare_seconds(work, reference, REPETITIONS)
    peaks = (peak_tensor_bytes(work), peak_tensor_bytes(reference))
    times = [f"{1e3 * value:.0f}" for value in seconds]
    sizes = [f"{value / 1e6:.0f}" for value in peaks]
    return [name, *times, f"{seconds[0] / seconds[1]:.2f}", *sizes, f"{peaks[0] / peaks[1]:.2f}"]


def dropout_row(probability: float) -> list[str]:
    """One row of the table of dropouts."""
    x = torch.randn(NUM_DROPOUT_NODES, CHANNELS, requires_grad=True)
    gradient, node_ids = torch.randn_like(x), torch.randperm(NUM_DROPOUT_NODES)

    def exact() -> None:
        exact_dropout(x, node_ids, probability, key=1).backward(gradient)
        x.grad = None

    def random() -> None:
        dropout(x, probability).backward(gradient)
        x.grad = None

    seconds = compare_seconds(exact, random, 3 * REPETITIONS)
    peaks = (peak_tensor_bytes(exact), peak_tensor_bytes(random))
    times = [f"{1e3 * value:.0f}" for value in seconds]
    sizes = [f"{value / 1e6:.0f}" for value in peaks]
    return [str(probability), *times, f"{seconds[0] / seconds[1]:.2f}", *sizes, f"{peaks[0] / peaks[1]:.2f}"]


def header(first: str, other: str) -> list[str]:
    return [first, "Betty (ms)", f"{other} (ms)", f"÷ {other}", "Betty (MB)", f"{other} (MB)", f"÷ {other}"]


def main() -> None:
    torch.manual_seed(0)
    for title, block in (("a power-law graph", power_law_block()), ("tolokers, fan-out 25", tolokers_block())):
        size = f"{block.num_dst:,} destinations, {block.num_edges:,} edges, {block.num_src:,} sources"
        print(f"### Layers of {CHANNELS} channels, forward and backward, on a block of {title}: {size}\n")
        rows = [layer_row(name, ours, theirs, block) for name, (ours, theirs) in layers().items()]
        print(markdown_table(header("layer", "DGL"), rows), flush=True)
        print()
    print(f"### Exact dropout of {NUM_DROPOUT_NODES:,} nodes with {CHANNELS} channels, forward and backward\n")
    print(markdown_table(header("probability", "PyTorch"), [dropout_row(0.2), dropout_row(0.5)]))
    print(f"\nMemory is the peak of what tensors take, parameters and features aside. {describe_machine()}")


if __name__ == "__main__":
    main()
