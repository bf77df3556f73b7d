"""Micro-batches against a brute-force version, and the loader's promises."""

import gc
import sys
import threading
import weakref
from collections.abc import Iterator
from dataclasses import dataclass

import pytest
import torch

from betty import BettyError, FullBatch, MicroBatch
from betty.device_loader import DeviceLoader, one_ahead
from betty.micro_batch_train.block_dataloader import MicroBatchLoader, split
from tests.random_blocks import random_full_batch


def edges_by_global_id(batch: FullBatch) -> list[list[tuple[int, list[int]]]]:
    """Per block: every destination with its sources in the block's order."""
    layers = []
    for block in batch.blocks:
        ids, indptr, indices = block.src_ids.tolist(), block.indptr.tolist(), block.indices.tolist()
        layers.append([(ids[i], [ids[j] for j in indices[indptr[i] : indptr[i + 1]]]) for i in range(block.num_dst)])
    return layers


def brute_force(full_batch: FullBatch, outputs: list[int]) -> list[dict[int, list[int]]]:
    """The rows that outputs need, per block."""
    needed, layers = set(outputs), []
    for rows in reversed(edges_by_global_id(full_batch)):
        layers.append({node: sources for node, sources in rows if node in needed})
        needed |= {source for sources in layers[-1].values() for source in sources}
    return layers[::-1]


def random_parts(num_outputs: int, num_parts: int, seed: int) -> list[torch.Tensor]:
    part_of = torch.randint(0, num_parts, (num_outputs,), generator=torch.Generator().manual_seed(seed))
    parts = [(part_of == part).nonzero().view(-1) for part in range(num_parts)]
    return [part for part in parts if part.numel()]


CASES = [([60, 30, 12], 5), ([200, 80, 40, 9], 4), ([30, 10], 10), ([1, 1], 1), ([40, 40, 40], 3)]


@pytest.mark.parametrize(("num_nodes", "max_degree"), CASES)
@pytest.mark.parametrize("num_parts", [1, 2, 7])
def test_micro_batches_hold_exactly_their_rows(num_nodes: list[int], max_degree: int, num_parts: int) -> None:
    full_batch = random_full_batch(num_nodes, max_degree, seed=num_parts)
    parts = random_parts(full_batch.output_ids.numel(), num_parts, seed=1)
    for part, micro_batch in zip(parts, split(full_batch, parts), strict=True):
        outputs = full_batch.output_ids[part].tolist()
        assert micro_batch.output_ids.tolist() == outputs
        for rows, expected in zip(edges_by_global_id(micro_batch), brute_force(full_batch, outputs), strict=True):
            assert dict(rows) == expected
            assert len(rows) == len(expected)


@pytest.mark.parametrize(("num_nodes", "max_degree"), CASES)
def test_no_source_without_an_edge_but_the_destinations(num_nodes: list[int], max_degree: int) -> None:
    full_batch = random_full_batch(num_nodes, max_degree, seed=3)
    for micro_batch in split(full_batch, random_parts(full_batch.output_ids.numel(), 3, seed=2)):
        for block in micro_batch.blocks:
            used = set(block.indices.tolist()) | set(range(block.num_dst))
            assert used == set(range(block.num_src))
            assert block.src_ids.unique().numel() == block.num_src


def test_blocks_of_a_micro_batch_follow_on_each_other_and_share_their_ids() -> None:
    full_batch = random_full_batch([100, 50, 20, 8], 5, seed=0)
    for micro_batch in split(full_batch, random_parts(8, 2, seed=0)):
        for block, following in zip(micro_batch.blocks[:-1], micro_batch.blocks[1:], strict=True):
            assert torch.equal(block.dst_ids, following.src_ids)
            assert block.src_ids.data_ptr() == following.src_ids.data_ptr()


def test_weights_are_shares_of_the_outputs_and_sum_to_one() -> None:
    full_batch = random_full_batch([100, 50, 20], 5, seed=0)
    micro_batches = split(full_batch, random_parts(20, 6, seed=0))
    assert [m.weight * 20 for m in micro_batches] == pytest.approx([m.output_ids.numel() for m in micro_batches])
    assert sum(m.weight for m in micro_batches) == pytest.approx(1)


def test_one_part_is_the_full_batch_again() -> None:
    full_batch = random_full_batch([100, 50, 20], 5, seed=0)
    (micro_batch,) = split(full_batch, [torch.arange(20)])
    assert edges_by_global_id(micro_batch) == [
        [row for row in rows if row[0] in {node for node, _ in micro_rows}]
        for rows, micro_rows in zip(edges_by_global_id(full_batch), edges_by_global_id(micro_batch), strict=True)
    ]
    assert micro_batch.blocks[-1].num_edges == full_batch.blocks[-1].num_edges


@pytest.mark.parametrize(
    "parts",
    [[[0, 1, 2]], [[0, 1, 2, 3], [3]], [[0, 1], [2, 2]], [[0, 1, 2], [4]], [[0, 1, 2, 3], []], [[-1, 0, 1, 2]], []],
)
def test_parts_that_do_not_cover_the_outputs_once_are_refused(parts: list[list[int]]) -> None:
    full_batch = random_full_batch([20, 4], 3, seed=0)
    with pytest.raises(BettyError, match="part"):
        split(full_batch, [torch.tensor(part, dtype=torch.int64) for part in parts])


def loader_of(full_batch: FullBatch, num_parts: int) -> tuple[MicroBatchLoader, torch.Tensor, torch.Tensor]:
    num_nodes = int(full_batch.input_ids.max()) + 1
    features = torch.rand(num_nodes, 3, generator=torch.Generator().manual_seed(0))
    labels = torch.arange(num_nodes)
    parts = random_parts(full_batch.output_ids.numel(), num_parts, seed=0)
    return MicroBatchLoader(full_batch, parts, DeviceLoader(features, labels, torch.device("cpu"))), features, labels


def test_loader_yields_what_split_makes_with_its_features_and_labels() -> None:
    full_batch = random_full_batch([100, 50, 20], 5, seed=0)
    loader, features, labels = loader_of(full_batch, 4)
    expected = split(full_batch, random_parts(20, 4, seed=0))
    assert len(loader) == len(expected)
    for loaded, micro_batch in zip(loader, expected, strict=True):
        assert edges_by_global_id(loaded.batch) == edges_by_global_id(micro_batch)
        assert torch.equal(loaded.features, features[micro_batch.input_ids])
        assert torch.equal(loaded.target, labels[micro_batch.output_ids])
        assert loaded.prepare_s > 0
        assert loaded.transfer_s > 0


@dataclass(eq=False)
class Result:
    job: int


@pytest.fixture
def impatient_threads() -> Iterator[None]:
    """Threads that take turns as often as they can, to find what only works by luck."""
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(interval)


@pytest.mark.usefixtures("impatient_threads")
def test_one_ahead_never_has_more_than_two_alive() -> None:
    alive: weakref.WeakSet[Result] = weakref.WeakSet()
    most = 0

    def load(job: int) -> Result:
        nonlocal most
        result = Result(job)
        # Its length counts what is gone until its own callback has run; iterating does not.
        most = max(most, 1 + sum(1 for _ in alive))
        alive.add(result)
        return result

    seen = 0
    for result in one_ahead(load, range(2000)):
        assert result.job == seen
        seen += 1
    assert seen == 2000
    assert most == 2


def test_a_caller_that_keeps_all_results_gets_them_all() -> None:
    assert [result.job for result in list(one_ahead(Result, range(20)))] == list(range(20))


def test_one_ahead_loads_the_next_while_the_caller_works() -> None:
    started = [threading.Event() for _ in range(3)]

    def load(job: int) -> Result:
        started[job].set()
        return Result(job)

    iterator = one_ahead(load, range(3))
    first = next(iterator)
    assert first.job == 0
    assert started[1].wait(timeout=10)
    assert not started[2].is_set()
    assert [result.job for result in iterator] == [1, 2]


def test_an_error_in_the_background_reaches_the_caller_in_its_turn() -> None:
    def load(job: int) -> Result:
        if job == 2:
            raise RuntimeError("the disk is gone")
        return Result(job)

    iterator = one_ahead(load, range(5))
    assert [next(iterator).job, next(iterator).job] == [0, 1]
    with pytest.raises(RuntimeError, match="the disk is gone"):
        next(iterator)
    assert background_threads() == []


def test_a_loader_can_be_closed_while_it_waits_for_the_caller() -> None:
    iterator = one_ahead(Result, range(5))
    kept = [next(iterator), next(iterator)]
    iterator.close()
    assert len(kept) == 2
    assert background_threads() == []


def test_two_loops_over_one_loader_do_not_disturb_each_other() -> None:
    loader, _, _ = loader_of(random_full_batch([100, 50, 20], 5, seed=0), 5)
    for one, other in zip(loader, loader, strict=True):
        assert edges_by_global_id(one.batch) == edges_by_global_id(other.batch)


def test_leaving_the_loop_early_ends_the_background_thread() -> None:
    loader, _, _ = loader_of(random_full_batch([100, 50, 20], 5, seed=0), 5)
    for loaded in loader:
        assert isinstance(loaded.batch, MicroBatch)
        break
    del loaded
    gc.collect()
    assert background_threads() == []


def background_threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name.startswith("one-ahead")]


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_loader_brings_everything_to_the_gpu() -> None:
    full_batch = random_full_batch([100, 50, 20], 5, seed=0)
    loader, features, labels = loader_of(full_batch, 4)
    parts = random_parts(20, 4, seed=0)
    on_gpu = MicroBatchLoader(full_batch, parts, DeviceLoader(features, labels, torch.device("cuda")))
    for loaded, expected in zip(on_gpu, loader, strict=True):
        assert loaded.batch.blocks[0].device.type == "cuda"
        assert torch.equal(loaded.features.cpu(), expected.features)
        assert edges_by_global_id(loaded.batch.to("cpu")) == edges_by_global_id(expected.batch)
