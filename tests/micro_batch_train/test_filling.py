"""Runs of segments are compared with trying every length."""

import pytest
import torch

from betty import Block, FullBatch, MemoryEstimate, MicroBatch, split
from betty.micro_batch_train.filling import LARGEST_SHARE, _longest, even_runs, filled


def estimate(micro_batch: MicroBatch) -> MemoryEstimate:
    sizes = dict.fromkeys(MemoryEstimate.__dataclass_fields__, 0)
    return MemoryEstimate(**sizes | {"hidden": 10 * micro_batch.num_edges, "labels": micro_batch.output_ids.numel()})


def in_two(part: torch.Tensor) -> list[torch.Tensor]:
    return list(part.tensor_split(2))


def outputs_of_degrees(degrees: torch.Tensor) -> FullBatch:
    """Output nodes with so many sources each, none of them shared."""
    indptr = torch.cat([torch.zeros(1, dtype=torch.int64), degrees.cumsum(0)])
    num_edges, num_outputs = int(indptr[-1]), degrees.numel()
    indices = torch.arange(num_outputs, num_outputs + num_edges, dtype=torch.int32)
    return FullBatch((Block(indptr, indices, torch.arange(num_outputs + num_edges)),))


DEGREES = torch.randint(1, 9, (60,), generator=torch.Generator().manual_seed(0))


def needs_of(parts: list[torch.Tensor]) -> list[int]:
    """Bytes of every micro-batch with the next one's labels, written out."""
    peaks = [10 * int(DEGREES[part].sum()) + part.numel() for part in parts]
    return [peak + beside for peak, beside in zip(peaks, [*(part.numel() for part in parts[1:]), 0], strict=True)]


@pytest.mark.parametrize(("size", "budget"), [(1, 120), (1, 333), (3, 333), (1, 1000), (3, 1000), (7, 1000)])
def test_every_run_fits_and_nearly_fills_the_budget_or_would_not_fit_with_one_segment_more(
    size: int, budget: int
) -> None:
    full_batch, segments = outputs_of_degrees(DEGREES), list(torch.arange(60).split(size))
    assert max(needs_of(segments)) <= budget
    plan = filled(full_batch, segments, in_two, estimate, budget)
    assert torch.cat(plan.parts).tolist() == list(range(60))
    assert plan.needs == needs_of(plan.parts)
    assert max(plan.needs) <= budget
    ends = {int(segment[0]) for segment in segments}
    for number, part in enumerate(plan.parts[1:], start=1):
        assert int(part[0]) in ends
        longer = torch.cat([next(segment for segment in segments if segment[-1] == part[0] - 1), part])
        assert needs_of([longer, *plan.parts[number + 1 :]])[0] > budget or plan.needs[number] > 0.9 * budget


def test_the_micro_batches_are_those_of_the_parts() -> None:
    full_batch = outputs_of_degrees(DEGREES)
    segments = [segment.flip(0).sort().values for segment in torch.arange(60).split(4)]
    plan = filled(full_batch, segments[::2] + segments[1::2], in_two, estimate, 500)
    for micro_batch, expected in zip(plan.micro_batches, split(full_batch, plan.parts), strict=True):
        assert torch.equal(micro_batch.input_ids, expected.input_ids)
        assert micro_batch.weight == expected.weight
    assert all((part.diff() > 0).all() for part in plan.parts)


def test_only_segments_that_are_too_big_are_halved() -> None:
    degrees = torch.ones(64, dtype=torch.int64)
    degrees[16:24] = 20
    halved = []

    def noted(part: torch.Tensor) -> list[torch.Tensor]:
        halved.append(part.tolist())
        return in_two(part)

    budget = 450
    plan = filled(outputs_of_degrees(degrees), list(torch.arange(64).split(8)), noted, estimate, budget)
    assert max(plan.needs) <= budget
    assert torch.cat(plan.parts).tolist() == list(range(64))
    assert halved
    assert all(min(part) >= 16 and max(part) < 24 for part in halved)


def test_an_output_node_that_does_not_fit_is_told() -> None:
    assert filled(outputs_of_degrees(DEGREES), list(torch.arange(60).split(5)), in_two, estimate, 60) is None


def test_no_micro_batch_is_larger_beside_another_than_allowed() -> None:
    full_batch, segments = outputs_of_degrees(DEGREES), list(torch.arange(60).split(3))
    plan = filled(full_batch, segments, in_two, estimate, 1000, most_loaded=10)
    assert max(part.numel() for part in filled(full_batch, segments, in_two, estimate, 1000).parts) > 10
    # Three fourths at least: from there on one segment more need not be tried.
    assert all(part.numel() == 9 for part in plan.parts[1:])
    assert torch.cat(plan.parts).tolist() == list(range(60))


@pytest.mark.parametrize("start", [1, 5, 40])
@pytest.mark.parametrize("longest", [0, 1, 4, 5, 6, 17, 39, 40])
def test_the_longest_is_found_in_few_steps(start: int, longest: int) -> None:
    asked = []

    def fill(length: int) -> float:
        asked.append(length)
        return (length / (longest + 0.5)) ** 0.5

    assert _longest(fill, start, 40) == longest
    assert all(1 <= length <= 40 for length in asked)
    assert len(asked) == len(set(asked)) <= 8
    assert start != longest or len(asked) <= 2


def test_without_any_room_no_length_fits() -> None:
    assert _longest(lambda length: LARGEST_SHARE, 5, 40) == 0


@pytest.mark.parametrize("count", [1, 2, 3, 7, 20])
def test_even_runs_hold_about_as_many_output_nodes(count: int) -> None:
    segments = list(torch.arange(100).split(5))
    runs = even_runs(segments, count)
    assert torch.cat(runs).tolist() == list(range(100))
    assert len(runs) == count
    assert max(run.numel() for run in runs) <= 100 / count + 5
