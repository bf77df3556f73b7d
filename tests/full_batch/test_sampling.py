import hashlib
import itertools
import os
import random
import subprocess
import sys
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import torch

from betty import BettyError, FullBatch
from betty.dgl_compat import dgl
from betty.full_batch import SampledFullBatches, epoch_batches, sample_full_batch, sampling
from tests.full_batch.graphs import assert_same_bits, random_graph

NUM_NODES = 300
GRAPH = random_graph(NUM_NODES, 3000)
OUTPUT_IDS = torch.randperm(NUM_NODES, generator=torch.Generator().manual_seed(1))[:80]


def edges_by_destination(block) -> dict[int, Counter]:
    rows = block.indices.long().split(block.in_degrees().tolist())
    sources = [Counter(block.src_ids[row].tolist()) for row in rows]
    return dict(zip(block.dst_ids.tolist(), sources, strict=True))


def in_edges(graph, node: int) -> Counter:
    return Counter(graph.in_edges(node)[0].tolist())


def digest(full_batch: FullBatch) -> str:
    tensors = [tensor for block in full_batch.blocks for tensor in (block.indptr, block.indices, block.src_ids)]
    return hashlib.sha256(b"".join(tensor.numpy().tobytes() for tensor in tensors)).hexdigest()


@pytest.mark.parametrize("fan_outs", [[1], [4], [10, 25], [3, 5, 2], [1000], [-1, 4], [4, -1]])
def test_every_node_takes_distinct_edges_of_the_graph_up_to_the_fan_out(fan_outs):
    full_batch = sample_full_batch(GRAPH, OUTPUT_IDS, fan_outs, seed=7)

    for block, fan_out in zip(full_batch.blocks, fan_outs, strict=True):
        for node, taken in edges_by_destination(block).items():
            available = in_edges(GRAPH, node)
            assert taken <= available
            degree = available.total()
            assert taken.total() == (degree if fan_out == -1 else min(degree, fan_out))


@pytest.mark.parametrize("fan_outs", [[4], [10, 25], [3, 5, 2], [-1, -1]])
def test_blocks_chain_and_hold_no_idle_source(fan_outs):
    full_batch = sample_full_batch(GRAPH, OUTPUT_IDS, fan_outs, seed=7)

    assert torch.equal(full_batch.output_ids, OUTPUT_IDS)
    assert full_batch.input_ids.unique().numel() == full_batch.input_ids.numel()
    for block in full_batch.blocks:
        assert (block.indptr.dtype, block.indices.dtype, block.src_ids.dtype) == (torch.int64, torch.int32, torch.int64)
        assert torch.equal(block.src_ids, full_batch.input_ids[: block.num_src])
        assert block.src_ids.data_ptr() == full_batch.input_ids.data_ptr()
        reached = set(range(block.num_dst)) | set(block.indices.tolist())
        assert reached == set(range(block.num_src))
    for block, following in itertools.pairwise(full_batch.blocks):
        assert torch.equal(block.dst_ids, following.src_ids)


def test_all_neighbors_are_the_edges_of_dgls_own_sampler():
    _, _, expected = dgl.dataloading.NeighborSampler([-1, -1]).sample_blocks(GRAPH, OUTPUT_IDS)

    full_batch = sample_full_batch(GRAPH, OUTPUT_IDS, [-1, -1], seed=7)

    for block, dgl_block in zip(full_batch.blocks, expected, strict=True):
        assert set(block.src_ids.tolist()) == set(dgl_block.srcdata[dgl.NID].tolist())
        sources, destinations = dgl_block.edges()
        theirs = Counter(
            zip(
                dgl_block.srcdata[dgl.NID][sources].tolist(),
                dgl_block.dstdata[dgl.NID][destinations].tolist(),
                strict=True,
            )
        )
        mine = Counter()
        for node, taken in edges_by_destination(block).items():
            mine.update({(source, node): count for source, count in taken.items()})
        assert mine == theirs


def test_every_subset_of_the_neighbors_is_equally_likely():
    num_destinations, degree, fan_out = 12_000, 10, 3
    sources = torch.arange(degree).repeat(num_destinations)
    destinations = torch.arange(degree, degree + num_destinations).repeat_interleave(degree)
    output_ids = torch.arange(degree, degree + num_destinations)

    block = sample_full_batch(dgl.graph((sources, destinations)), output_ids, [fan_out], seed=3).blocks[0]

    chosen = block.src_ids[block.indices.long()].view(num_destinations, fan_out).sort(dim=1).values
    counts = Counter(map(tuple, chosen.tolist()))
    subsets = list(itertools.combinations(range(degree), fan_out))
    expected = num_destinations / len(subsets)
    chi_square = sum((counts[subset] - expected) ** 2 / expected for subset in subsets)
    # 119 degrees of freedom: the mean is 119, and 172 is exceeded once in a thousand seeds.
    assert 70 < chi_square < 172


def test_output_nodes_without_in_edges_have_empty_rows():
    isolated = torch.tensor([NUM_NODES - 1, NUM_NODES - 2])

    full_batch = sample_full_batch(GRAPH, isolated, [10, 25], seed=0)

    assert full_batch.num_edges == 0
    assert torch.equal(full_batch.input_ids, isolated)
    assert [block.indptr.tolist() for block in full_batch.blocks] == [[0, 0, 0], [0, 0, 0]]


def test_a_graph_without_edges_can_be_sampled():
    full_batch = sample_full_batch(dgl.graph(([], []), num_nodes=3), torch.tensor([2, 0]), [5, -1], seed=0)

    assert full_batch.num_edges == 0
    assert full_batch.input_ids.tolist() == [2, 0]


def test_seed_epoch_and_batch_tell_the_batch():
    def sample(**position):
        return digest(sample_full_batch(GRAPH, OUTPUT_IDS, [4, 4], **position))

    digests = [sample(seed=s, epoch=e, batch=b) for s, e, b in itertools.product(range(3), repeat=3)]

    assert len(set(digests)) == len(digests)
    assert sample(seed=2, epoch=1, batch=0) == digests[2 * 9 + 1 * 3]


def test_the_batch_is_the_same_in_any_thread_and_after_other_sampling():
    def sample(_=None):
        return digest(sample_full_batch(GRAPH, OUTPUT_IDS, [4, 4], seed=5))

    expected = sample()
    dgl.seed(1)
    dgl.sampling.sample_neighbors(GRAPH, OUTPUT_IDS, 3)

    assert sample() == expected
    with ThreadPoolExecutor(4) as pool:
        assert set(pool.map(sample, range(16))) == {expected}


def test_no_global_random_state_is_read_or_changed():
    def sample():
        return digest(sample_full_batch(GRAPH, OUTPUT_IDS, [4, 4], seed=5))

    torch.manual_seed(0)
    np.random.seed(0)
    random.seed(0)
    before = torch.get_rng_state(), np.random.get_state()[1].copy(), random.getstate()
    first = sample()

    assert torch.equal(torch.get_rng_state(), before[0])
    assert (np.random.get_state()[1] == before[1]).all()
    assert random.getstate() == before[2]
    torch.manual_seed(1)
    np.random.seed(1)
    dgl.seed(1)
    assert sample() == first


def test_the_batch_does_not_depend_on_the_graphs_formats_or_id_type():
    expected = sample_full_batch(GRAPH, OUTPUT_IDS, [4, 4], seed=5)
    sources, destinations = GRAPH.edges(order="eid")
    all_formats = dgl.graph((sources, destinations), num_nodes=NUM_NODES)
    all_formats.create_formats_()
    graphs = [all_formats, all_formats.formats("coo"), all_formats.formats("csc"), all_formats.int()]

    for graph in graphs:
        assert_same_bits(sample_full_batch(graph, OUTPUT_IDS, [4, 4], seed=5), expected)


THREADS_SCRIPT = """
import torch
from betty.full_batch import sample_full_batch
from tests.full_batch.graphs import random_graph
from tests.full_batch.test_sampling import digest

graph = random_graph(40_000, 600_000)
print(digest(sample_full_batch(graph, torch.arange(0, 40_000, 2), [10, 25], seed=5, epoch=3)))
"""


def test_the_batch_does_not_depend_on_the_number_of_threads():
    root = Path(__file__).parents[2]
    search_path = os.pathsep.join([str(root), str(root / "pytorch")])
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", THREADS_SCRIPT],
            env={**os.environ, "OMP_NUM_THREADS": str(threads), "PYTHONPATH": search_path},
            stdout=subprocess.PIPE,
            text=True,
        )
        for threads in (1, 2, 4)
    ]

    digests = {process.communicate(timeout=60)[0] for process in processes}

    assert [process.returncode for process in processes] == [0, 0, 0]
    assert len(digests) == 1


@pytest.mark.parametrize("sorting_cost", [1, 10**9])
def test_both_ways_to_find_new_nodes_give_the_same_batch(monkeypatch, sorting_cost):
    few = torch.tensor([3, 17])
    monkeypatch.setattr(sampling, "SORTING_COST", sorting_cost)
    full_batch = sample_full_batch(GRAPH, few, [2, 2], seed=5)

    levels = [set(few.tolist())]
    expected = few.tolist()
    for block in reversed(full_batch.blocks):
        reached = levels[-1].union(*(taken.keys() for taken in edges_by_destination(block).values()))
        expected += sorted(reached - levels[-1])
        levels.append(reached)
    assert full_batch.input_ids.tolist() == expected


@pytest.mark.parametrize("fan_outs", [[], [0], [-2], [10, 0], [2.5], ["10"], [None]])
def test_impossible_fan_outs_are_refused(fan_outs):
    with pytest.raises(BettyError, match="fan-outs"):
        sample_full_batch(GRAPH, OUTPUT_IDS, fan_outs, seed=0)


@pytest.mark.parametrize(
    ("output_ids", "message"),
    [
        (torch.tensor([], dtype=torch.int64), "non-empty"),
        (torch.tensor([1.0, 2.0]), "torch.float32, and must be integers"),
        (torch.tensor([[1, 2]]), "one-dimensional"),
        (torch.tensor([1, NUM_NODES]), f"from 1 to {NUM_NODES}"),
        (torch.tensor([-1, 3]), "from -1 to 3"),
        (torch.tensor([5, 3, 5]), "more than once"),
    ],
)
def test_impossible_output_nodes_are_refused(output_ids, message):
    with pytest.raises(BettyError, match=message):
        sample_full_batch(GRAPH, output_ids, [10], seed=0)


def test_graphs_of_several_types_are_refused():
    graph = dgl.heterograph({("user", "likes", "item"): ([0], [1]), ("item", "of", "user"): ([0], [1])})
    with pytest.raises(BettyError, match="to_homogeneous"):
        sample_full_batch(graph, torch.tensor([0]), [10], seed=0)


@pytest.mark.parametrize("position", [{"seed": -1}, {"seed": 0, "epoch": -1}, {"seed": 0, "batch": -1}])
def test_negative_seeds_and_positions_are_refused(position):
    with pytest.raises(BettyError, match="at least 0"):
        sample_full_batch(GRAPH, OUTPUT_IDS, [10], **position)


def test_without_a_batch_size_an_epoch_is_one_batch_in_the_given_order():
    (batch,) = epoch_batches(OUTPUT_IDS, None, seed=0, epoch=0)
    assert torch.equal(batch, OUTPUT_IDS)


@pytest.mark.parametrize(("batch_size", "sizes"), [(1, [1] * 80), (30, [30, 30, 20]), (80, [80]), (1000, [80])])
def test_batches_split_the_output_nodes(batch_size, sizes):
    batches = epoch_batches(OUTPUT_IDS, batch_size, seed=0, epoch=0)

    assert [batch.numel() for batch in batches] == sizes
    assert sampling.count_batches(80, batch_size) == len(sizes)
    assert sorted(torch.cat(batches).tolist()) == sorted(OUTPUT_IDS.tolist())
    assert all(torch.equal(batch, batch.sort().values) for batch in batches)


def test_every_epoch_and_seed_shuffles_anew():
    firsts = {tuple(epoch_batches(OUTPUT_IDS, 30, s, e)[0].tolist()) for s, e in itertools.product(range(3), repeat=2)}
    assert len(firsts) == 9
    assert tuple(epoch_batches(OUTPUT_IDS, 30, 2, 2)[0].tolist()) in firsts


@pytest.mark.parametrize("batch_size", [0, -5])
def test_batch_sizes_below_one_are_refused(batch_size):
    with pytest.raises(BettyError, match="batch size"):
        epoch_batches(OUTPUT_IDS, batch_size, seed=0, epoch=0)


def test_sampled_full_batches_sample_each_batch_of_the_epoch():
    source = SampledFullBatches(GRAPH, OUTPUT_IDS, [4, 4], seed=5, batch_size=30)

    assert source.num_batches == 3
    for epoch, batch in [(0, 0), (2, 1), (0, 2), (2, 1)]:
        output_ids = epoch_batches(OUTPUT_IDS, 30, 5, epoch)[batch]
        expected = sample_full_batch(GRAPH, output_ids, [4, 4], seed=5, epoch=epoch, batch=batch)
        assert_same_bits(source.load(epoch, batch), expected)


@pytest.mark.parametrize(("epoch", "batch"), [(-1, 0), (0, -1), (0, 3)])
def test_batches_outside_an_epoch_are_refused(epoch, batch):
    source = SampledFullBatches(GRAPH, OUTPUT_IDS, [4, 4], seed=5, batch_size=30)
    with pytest.raises(BettyError, match="there is no batch"):
        source.load(epoch, batch)
