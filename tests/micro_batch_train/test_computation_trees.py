import torch

from betty import FullBatch
from betty.micro_batch_train import computation_trees
from betty.micro_batch_train.computation_trees import tree_sizes
from tests.random_blocks import random_full_batch


def brute_force_tree_size(full_batch: FullBatch, node: int, layer: int) -> int:
    if layer < 0:
        return 1
    block = full_batch.blocks[layer]
    sources = block.indices[block.indptr[node] : block.indptr[node + 1]].tolist()
    return sum(brute_force_tree_size(full_batch, source, layer - 1) for source in [node, *sources])


def test_a_tree_holds_every_way_to_every_node() -> None:
    full_batch = random_full_batch([60, 40, 20, 12], max_degree=4, seed=3)
    expected = [brute_force_tree_size(full_batch, node, 2) for node in range(12)]
    assert tree_sizes(full_batch).tolist() == expected
    assert max(expected) > 60


def test_counting_ends_before_it_overflows(monkeypatch) -> None:
    monkeypatch.setattr(computation_trees, "LARGEST_TREE", 7)
    full_batch = random_full_batch([60, 40, 20], max_degree=4, seed=3)
    whole = torch.tensor([brute_force_tree_size(full_batch, node, 1) for node in range(20)])
    assert torch.equal(tree_sizes(full_batch) == 7, whole >= 7)
