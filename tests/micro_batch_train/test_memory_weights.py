from collections.abc import Sequence

import numpy as np
import pytest
import torch

from betty import FullBatch, MicroBatch, split
from betty.memory import MemoryEstimate
from betty.micro_batch_train.cutting import MicroBatchCutter
from betty.micro_batch_train.memory_weights import MemoryWeights, counts, even_weights, fitted_weights
from tests.neighbour_lists import full_batch_of
from tests.random_blocks import random_full_batch

FULL_BATCH = random_full_batch([3000, 1200, 400], max_degree=5, seed=1)


def estimate_of(peak_beyond_static: float, static: int = 12345) -> MemoryEstimate:
    return MemoryEstimate(
        parameters=static,
        input_features=0,
        labels=0,
        blocks=0,
        hidden=round(peak_beyond_static),
        aggregator=0,
        gradients=0,
        optimizer=0,
        backward=0,
    )


def unlike_batches(full_batch: FullBatch) -> list[MicroBatch]:
    """Micro-batches of one eighth to all of the output nodes, some of those with few edges, some of those with many."""
    num_outputs = full_batch.output_ids.numel()
    by_degree = full_batch.blocks[-1].in_degrees().argsort()
    at_random = torch.randperm(num_outputs, generator=torch.Generator().manual_seed(0))
    parts = [
        order[start : start + num_outputs // share]
        for order in (by_degree, by_degree.flip(0), at_random)
        for share in (1, 2, 4, 8)
        for start in (0, num_outputs // 3)
    ]
    cutter = MicroBatchCutter(full_batch)
    return [cutter.cut([part])[0] for part in parts]


def taken(batch: FullBatch, weights: Sequence[float]) -> float:
    return float(counts(batch) @ np.array(weights))


def in_order(weights: MemoryWeights) -> list[float]:
    pairs = zip(weights.of_source, weights.of_edge, strict=True)
    return [*(weight for pair in pairs for weight in pair), weights.of_output]


def test_counts_are_of_sources_and_edges_of_every_block_and_of_outputs() -> None:
    full_batch = full_batch_of([[4], [5, 5], [], [0]], [[1, 2, 3]], num_inputs=6)
    assert counts(full_batch).tolist() == [6, 4, 4, 3, 1]


def test_weights_stand_in_the_order_of_the_counts() -> None:
    assert MemoryWeights.of_counts([1, 2, 3, 4, 5]) == MemoryWeights((1, 3), (2, 4), 5)


def test_even_weights_give_every_kind_the_same_share_of_the_full_batch() -> None:
    assert counts(FULL_BATCH) * in_order(even_weights(FULL_BATCH)) == pytest.approx(np.ones(5))
    no_edges = full_batch_of([[], []], num_inputs=3)
    assert in_order(even_weights(no_edges)) == [1 / 3, 1, 1 / 2]


KNOWN_WEIGHTS = {
    "all": [512, 96, 1024, 640, 256],
    "edges for nothing": [512, 0, 1024, 0, 256],
    "edges alone": [0, 96, 0, 640, 0],
    "inputs alone": [400, 0, 0, 0, 0],
}


@pytest.mark.parametrize("weights", KNOWN_WEIGHTS.values(), ids=KNOWN_WEIGHTS)
def test_fitted_weights_explain_what_micro_batches_take_that_they_have_not_seen(weights: list[float]) -> None:
    seen = unlike_batches(FULL_BATCH)
    fitted = fitted_weights(FULL_BATCH, seen, [estimate_of(taken(batch, weights)) for batch in seen])
    assert min(in_order(fitted)) >= 0
    for batch in split(FULL_BATCH, torch.randperm(400, generator=torch.Generator().manual_seed(1)).split(70)):
        assert taken(batch, in_order(fitted)) == pytest.approx(taken(batch, weights), rel=0.02)


def test_fitted_weights_are_the_known_ones_where_no_others_explain_the_same() -> None:
    # Every output node has 0, 5 or 10 sources of its own, each by one edge or by two: no kind goes with another.
    rows = [list(range(60 + 10 * node, 60 + 10 * node + node % 3 * 5)) * (1 + node % 2) for node in range(60)]
    full_batch, weights = full_batch_of(rows, num_inputs=660), [700, 90, 3000]
    batches = split(full_batch, torch.arange(60).split(1))
    fitted = fitted_weights(full_batch, batches, [estimate_of(taken(batch, weights)) for batch in batches])
    assert in_order(fitted) == pytest.approx(weights, rel=0.02)


def test_what_all_micro_batches_take_has_no_weight() -> None:
    seen = unlike_batches(FULL_BATCH)
    small, large = (
        fitted_weights(FULL_BATCH, seen, [estimate_of(taken(batch, KNOWN_WEIGHTS["all"]), static) for batch in seen])
        for static in (0, 10**9)
    )
    assert small == large


def test_micro_batches_that_take_nothing_beyond_that_are_no_error() -> None:
    seen = unlike_batches(FULL_BATCH)
    fitted = in_order(fitted_weights(FULL_BATCH, seen, [estimate_of(0) for _ in seen]))
    assert np.isfinite(fitted).all()
    assert 0 <= min(fitted) < max(fitted)
