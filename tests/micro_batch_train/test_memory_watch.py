"""What is watched micro-batch by micro-batch is what the plan of the same parts says."""

import pytest
import torch

from betty import GraphSAGE, split
from betty.micro_batch_train.graph_partitioner import METHODS, partition
from betty.micro_batch_train.memory_watch import MemoryWatch, OverBudgetError
from betty.micro_batch_train.plan import estimated, model_estimate
from tests.random_blocks import random_full_batch

FULL_BATCH = random_full_batch([400, 150, 60], 6, seed=2)
ESTIMATE = model_estimate(GraphSAGE(20, 8, 3, 2), torch.device("cpu"))


@pytest.mark.parametrize("num_parts", [1, 2, 7, 60])
@pytest.mark.parametrize("method", METHODS)
def test_the_peak_is_that_of_the_plan_of_the_same_parts(method: str, num_parts: int) -> None:
    parts = partition(FULL_BATCH, num_parts, method)
    plan = estimated(FULL_BATCH, parts, ESTIMATE)
    watch = MemoryWatch(ESTIMATE, limit=plan.peak)
    for micro_batch in split(FULL_BATCH, parts):
        watch(micro_batch)
    assert watch.peak == plan.peak


def test_before_the_first_micro_batch_the_peak_is_0() -> None:
    assert MemoryWatch(ESTIMATE).peak == 0


def test_it_stops_where_the_next_one_does_not_fit_beside_the_one_before() -> None:
    first, second = split(FULL_BATCH, list(torch.arange(60).split(30)))
    alone, beside = ESTIMATE(first).peak, ESTIMATE(second).loaded
    limit = max(alone, ESTIMATE(second).peak)
    assert limit < alone + beside
    watch = MemoryWatch(ESTIMATE, limit)
    watch(first)
    with pytest.raises(OverBudgetError):
        watch(second)
    assert watch.peak == alone
    watch.begin()
    watch(second)
    assert watch.peak == limit


def test_a_single_output_node_passes_whatever_it_takes() -> None:
    single = split(FULL_BATCH, list(torch.arange(60).split(1)))[59]
    watch = MemoryWatch(ESTIMATE, limit=1)
    watch(single)
    assert watch.peak == ESTIMATE(single).peak
