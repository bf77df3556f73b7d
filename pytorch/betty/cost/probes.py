"""The kernels that are timed, one for every kind of operation, with work of which the other kinds are known by then."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from betty.blocks import Block, FullBatch
from betty.cost.work import FRESH_BYTES, ITEM_BYTES, Operations, Work, new_tensor
from betty.micro_batch_train.cutting import MicroBatchCutter
from betty.models.attended_sums import attend_and_project, attend_and_project_work
from betty.models.attention import edge_softmax, edge_softmax_work
from betty.models.exact_dropout import ExactDropout, TorchDropout
from betty.models.linear import Linear
from betty.models.lstm_aggregation import last_lstm_states, lstm_work
from betty.models.neighbour_maximum import max_neighbours, maximum_work
from betty.models.neighbour_reduction import sum_neighbours, sum_work, transpose

CHANNELS = 64
NUM_SOURCES = 40_000
NUM_DESTINATIONS = 5_000
NUM_EDGES = 50_000
NUM_HEADS = 4
LSTM_EDGES = 8_000
"""Fewer, because an edge takes an LSTM longer than all others."""


@dataclass(frozen=True, eq=False)
class Probe:
    """Something to be timed.

    Args:
        kind: of operation that is looked for.
        work: in all; of its operations those of other kinds come earlier.
        run: does it.
        inputs: of which gradients are computed; none where a backward does the same as a forward.
    """

    kind: str
    work: Work
    run: Callable[[], object]
    inputs: tuple[Tensor, ...] = ()


def probes(device: torch.device) -> Iterator[Probe]:
    """All probes in the order in which they build on each other; what each one needs is made when its turn comes.

    Args:
        device: where to compute. Work of the host is always done there.
    """
    yield from _calls_and_streams(device)
    draw = torch.Generator().manual_seed(0)
    block = _random_block(NUM_DESTINATIONS, NUM_SOURCES, NUM_EDGES, draw).to(device)
    x = torch.randn(NUM_SOURCES, CHANNELS, generator=draw, dtype=torch.float32).to(device).requires_grad_()
    yield from _dense_layers(x, block)
    yield from _sums(x, block)
    yield from _lstm(x, draw)
    yield from _attention(x, block)
    yield from _host(x.detach().cpu(), draw)
    yield _transfer(device)


def _calls_and_streams(device: torch.device) -> Iterator[Probe]:
    few, num_calls = torch.zeros(1, 1, device=device), 100

    def call_often() -> None:
        for _ in range(num_calls):
            few.index_select(0, few[0].long())

    yield Probe("call", Work(Operations(call=3 * num_calls)), call_often)
    size = FRESH_BYTES // ITEM_BYTES
    # As large as the tensors that take the most time, which no core's cache holds.
    rows, result = torch.zeros(2, size, device=device)
    stream = Operations(call=1, stream=2 * size)
    yield Probe("stream", Work(stream), lambda: torch.add(rows, 1, out=result))
    yield Probe("fresh", Work(new_tensor(2 * size)), lambda: torch.zeros(2 * size, device=device))


def _dense_layers(x: Tensor, block: Block) -> Iterator[Probe]:
    linear = Linear(CHANNELS, CHANNELS, device=x.device, dtype=x.dtype)
    inputs = (x, linear.weight)
    yield Probe("multiply", linear.work(NUM_SOURCES, needs_gradient=True), lambda: linear(x), inputs)
    dropout, drawn = ExactDropout(0.5), TorchDropout(0.5)
    dropout.key = 1
    yield Probe("dropout", dropout.work(*x.shape), lambda: dropout.drop(x, block.src_ids), (x,))
    yield Probe("draw", drawn.work(*x.shape), lambda: drawn.drop(x), (x,))


def _sums(x: Tensor, block: Block) -> Iterator[Probe]:
    lists = block.indptr.int(), block.indices
    yield Probe("transpose", Work(Operations(transpose=NUM_EDGES)), lambda: transpose(*lists, NUM_SOURCES))
    yield Probe("sum", sum_work(block, CHANNELS, needs_gradient=True), lambda: sum_neighbours(block, x), (x,))
    yield Probe("maximum", maximum_work(block, CHANNELS), lambda: max_neighbours(block, x), (x,))


def _lstm(x: Tensor, draw: torch.Generator) -> Iterator[Probe]:
    block = _random_block(LSTM_EDGES // 10, LSTM_EDGES, LSTM_EDGES, draw).to(x.device)
    lstm = nn.LSTM(CHANNELS, CHANNELS, device=x.device, dtype=x.dtype)
    sources = x.detach()[:LSTM_EDGES].requires_grad_()
    work = lstm_work(block, lstm, needs_gradient=True)
    inputs = (sources, *lstm.parameters())
    yield Probe("gate", work, lambda: last_lstm_states(block, sources, lstm), inputs)


def _attention(x: Tensor, block: Block) -> Iterator[Probe]:
    of_sources, of_destinations = x[:, :NUM_HEADS], x[:NUM_DESTINATIONS, NUM_HEADS : 2 * NUM_HEADS]
    scores = tuple(part.detach().contiguous().requires_grad_() for part in (of_sources, of_destinations))
    yield Probe("softmax", edge_softmax_work(block, NUM_HEADS), lambda: edge_softmax(block, *scores, 0.2), scores)
    attention = edge_softmax(block, *scores, 0.2).detach().requires_grad_()
    weight = x.detach()[:CHANNELS].view(NUM_HEADS, CHANNELS // NUM_HEADS, CHANNELS).requires_grad_()
    work = attend_and_project_work(block, CHANNELS, NUM_HEADS, CHANNELS // NUM_HEADS, needs_gradient=True)
    inputs = (x, weight, attention)
    yield Probe("weigh", work, lambda: attend_and_project(block, x, weight, attention), inputs)


def _host(rows: Tensor, draw: torch.Generator) -> Iterator[Probe]:
    ids = torch.randperm(NUM_SOURCES, generator=draw)[: NUM_SOURCES // 2].sort().values
    gathered = rows.index_select(0, ids)
    moved = Operations(gather=gathered.numel())
    yield Probe("gather", Work(moved), lambda: torch.index_select(rows, 0, ids, out=gathered))
    added = Operations(scatter=gathered.numel())
    yield Probe("scatter", Work(added), lambda: rows.index_add_(0, ids, gathered, alpha=0))
    block = _random_block(NUM_DESTINATIONS, NUM_SOURCES, NUM_EDGES, draw)
    cutter, part = MicroBatchCutter(FullBatch((block,))), torch.arange(0, NUM_DESTINATIONS, 2)
    num_cut = int(block.in_degrees()[part].sum())
    yield Probe("cut", Work(Operations(cut=num_cut)), lambda: cutter.cut([part]))


def _transfer(device: torch.device) -> Probe:
    size = NUM_SOURCES * CHANNELS
    rows = torch.zeros(size, pin_memory=device.type == "cuda")
    num_bytes = size * ITEM_BYTES if device.type != "cpu" else 0
    return Probe("transfer", Work(Operations(transfer=num_bytes)), lambda: rows.to(device, non_blocking=True))


def _random_block(num_dst: int, num_src: int, num_edges: int, draw: torch.Generator) -> Block:
    """A block in host memory with random sources, and degrees from 0 to twice the mean."""
    degrees = torch.randint(0, 2 * num_edges // num_dst + 1, (num_dst,), generator=draw)
    bounds = (degrees.cumsum(0) * num_edges).div(degrees.sum(), rounding_mode="floor")
    indptr = torch.cat([torch.zeros(1, dtype=torch.int64), bounds])
    indices = torch.randint(num_src, (num_edges,), generator=draw, dtype=torch.int32)
    return Block(indptr, indices, torch.randperm(num_src, generator=draw))
