"""The next full batch is planned beside the training, and what is kept are the parts of the first epoch."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from threading import Event, current_thread

import pytest
import torch
from torch import nn

from betty import BettyError, FullBatch, GraphSAGE, MicroBatchPlan
from betty.micro_batch_train.plan import estimated, model_estimate
from betty.micro_batch_train.planner import BudgetPartitioning
from betty.micro_batch_train.planning_ahead import PlannedBatch, PlanningAhead, partition_seed
from betty.micro_batch_train.stored_parts import StoredTensors
from betty.micro_batch_train.trainer import Partitioning
from tests.random_blocks import neighbourhoods

CPU = torch.device("cpu")
MODEL = GraphSAGE(6, 5, 4, 2)
PATIENCE_S = 60


class EveryEpochAnother:
    """Full batches of the same 20 output nodes, which every epoch samples other neighbours for."""

    def __init__(self, num_batches: int = 1) -> None:
        self.num_batches = num_batches
        self.loaded: list[tuple[int, int]] = []
        self.full_batches: dict[tuple[int, int], FullBatch] = {}

    def load(self, epoch: int, batch: int) -> FullBatch:
        self.loaded.append((epoch, batch))
        full_batch = neighbourhoods([200, 80, 20], max_degree=4, seed=100 * epoch + batch)
        return self.full_batches.setdefault((epoch, batch), full_batch)


class NotedPlanner:
    """Parts that tell which full batch and seed they were planned for; notes what it is asked."""

    memory_budget = None

    def __init__(self, serves_every_epoch: bool = True, size: int = 5) -> None:
        self.serves_every_epoch = serves_every_epoch
        self.size = size
        self.planned: list[tuple[FullBatch, int]] = []
        self.threads: set[str] = set()
        self.began = [Event() for _ in range(20)]
        self.may_end = [Event() for _ in self.began]
        for event in self.may_end:
            event.set()

    @property
    def settings(self) -> Mapping[str, object]:
        return {"method": "noted", "size": self.size}

    def plan(
        self,
        full_batch: FullBatch,
        model: nn.Module,
        seed: int,
        device: torch.device,
        others: Sequence[FullBatch] = (),
    ) -> MicroBatchPlan:
        number = len(self.planned)
        self.planned.append((full_batch, seed))
        self.threads.add(current_thread().name)
        self.began[number].set()
        assert self.may_end[number].wait(PATIENCE_S)
        order = torch.randperm(20, generator=torch.Generator().manual_seed(seed))
        parts = [part.sort().values for part in order.split(self.size)]
        return MicroBatchPlan(parts, [], [])

    def leave_more_room(self, num_micro_batches: int) -> None:
        self.size -= 1


def ahead(
    source: EveryEpochAnother, planner: object, num_epochs: int, store: StoredTensors | None = None
) -> PlanningAhead:
    return PlanningAhead(source, planner, CPU, seed=7, num_epochs=num_epochs, store=store)


def all_of(planned: PlanningAhead, first_epoch: int, num_epochs: int, num_batches: int = 1) -> list[PlannedBatch]:
    return [
        planned.get(MODEL, 0, epoch, batch) for epoch in range(first_epoch, num_epochs) for batch in range(num_batches)
    ]


def listed(planned: PlannedBatch) -> list[list[int]]:
    return [part.tolist() for part in planned.plan.parts]


def test_the_next_full_batch_is_planned_while_the_caller_trains_on_this_one() -> None:
    source, planner = EveryEpochAnother(), NotedPlanner(serves_every_epoch=False)
    planned = ahead(source, planner, num_epochs=3)
    first = planned.get(MODEL, 0, 0, 0)
    # Whoever trains is here, and asks for nothing.
    assert planner.began[1].wait(PATIENCE_S)
    assert planner.planned[0][0] is first.full_batch
    assert planner.planned[1][0] is source.full_batches[1, 0]
    assert current_thread().name not in planner.threads


def test_nobody_waits_for_a_plan_before_it_is_asked_for() -> None:
    planner = NotedPlanner(serves_every_epoch=False)
    planned = ahead(EveryEpochAnother(), planner, num_epochs=3)
    planner.may_end[1].clear()
    first = planned.get(MODEL, 0, 0, 0)
    assert planner.began[1].wait(PATIENCE_S)
    assert len(first.plan.parts) == 4
    assert not planner.began[2].is_set()
    planner.may_end[1].set()
    planned.get(MODEL, 0, 1, 0)
    assert planner.began[2].wait(PATIENCE_S)


@pytest.mark.parametrize("num_batches", [1, 3])
def test_every_full_batch_comes_with_its_own_plan_where_parts_do_not_serve_every_epoch(num_batches: int) -> None:
    source, planner = EveryEpochAnother(num_batches), NotedPlanner(serves_every_epoch=False)
    found = all_of(ahead(source, planner, 3), 0, 3, num_batches)
    positions = [(epoch, batch) for epoch in range(3) for batch in range(num_batches)]
    assert source.loaded == positions
    assert [planned.full_batch for planned in found] == [source.full_batches[position] for position in positions]
    seeds = [partition_seed(7, 0, *position) for position in positions]
    assert planner.planned == [(planned.full_batch, seed) for planned, seed in zip(found, seeds, strict=True)]
    assert len({tuple(map(tuple, listed(planned))) for planned in found}) == len(positions)


@pytest.mark.parametrize("serves_every_epoch", [False, True])
def test_nothing_is_sampled_or_planned_beyond_the_last_epoch(serves_every_epoch: bool) -> None:
    source, planner = EveryEpochAnother(2), NotedPlanner(serves_every_epoch)
    planned = ahead(source, planner, num_epochs=2)
    all_of(planned, 0, 2, 2)
    assert planned._pending is None
    assert source.loaded == [(0, 0), (0, 1), (1, 0), (1, 1)]
    assert len(planner.planned) == 4


def test_a_second_run_begins_where_the_first_has_ended() -> None:
    source, planner = EveryEpochAnother(), NotedPlanner(serves_every_epoch=False)
    planned = ahead(source, planner, num_epochs=2)
    all_of(planned, 0, 2)
    for epoch in range(2):
        planned.get(MODEL, 1, epoch, 0)
    assert source.loaded == [(0, 0), (1, 0)] * 2
    assert [seed for _, seed in planner.planned] == [
        partition_seed(7, run, epoch, 0) for run in range(2) for epoch in range(2)
    ]


class FailsInEpoch2(EveryEpochAnother):
    def load(self, epoch: int, batch: int) -> FullBatch:
        if epoch == 2:
            raise BettyError("epoch 2 is not stored")
        return super().load(epoch, batch)


def test_an_error_in_the_background_is_raised_in_its_turn() -> None:
    planned = ahead(FailsInEpoch2(), NotedPlanner(), num_epochs=5)
    assert len(all_of(planned, 0, 2)) == 2
    for _ in range(2):
        with pytest.raises(BettyError, match="epoch 2 is not stored"):
            planned.get(MODEL, 0, 2, 0)
    assert planned.get(MODEL, 0, 3, 0).full_batch.output_ids.numel() == 20


def test_an_error_of_the_planner_is_raised_too() -> None:
    with pytest.raises(BettyError, match="too small even for one output node"):
        ahead(EveryEpochAnother(), BudgetPartitioning("locality", 2000), 2).get(MODEL, 0, 0, 0)


def test_parts_that_serve_every_epoch_are_planned_once_for_all_epochs_and_runs() -> None:
    source, planner = EveryEpochAnother(), NotedPlanner()
    planned = ahead(source, planner, 4)
    found = [*all_of(planned, 0, 4), planned.get(MODEL, 1, 0, 0)]
    assert planner.planned == [(source.full_batches[0, 0], partition_seed(7, 0, 0, 0))]
    assert all(listed(other) == listed(found[0]) for other in found)
    assert [planned.full_batch for planned in found[:4]] == [source.full_batches[epoch, 0] for epoch in range(4)]


@pytest.mark.parametrize("planner", [NotedPlanner, lambda: Partitioning("locality", 4, 0, "REG")])
def test_they_are_those_of_the_first_epoch_wherever_training_begins(planner) -> None:
    whole = all_of(ahead(EveryEpochAnother(), planner(), 5), 0, 5)
    resumed = all_of(ahead(EveryEpochAnother(), planner(), 5), 3, 5)
    assert list(map(listed, resumed)) == list(map(listed, whole[3:]))
    in_a_later_run = ahead(EveryEpochAnother(), planner(), 5).get(MODEL, 2, 4, 0)
    assert listed(in_a_later_run) == listed(whole[4])


def test_estimates_are_those_of_the_first_epoch_alone() -> None:
    source = EveryEpochAnother()
    budget = estimated(source.load(0, 0), [torch.arange(20)], model_estimate(MODEL, CPU)).peak - 1
    planned = ahead(source, BudgetPartitioning("locality", budget), 3)
    first, *later = all_of(planned, 0, 3)
    assert len(first.plan.estimates) == len(first.plan.parts) > 1
    assert [(other.plan.estimates, other.plan.micro_batches, other.plan.peak) for other in later] == [
        ([], [], None)
    ] * 2
    assert [other.plan.memory_budget for other in later] == [budget] * 2


def test_several_full_batches_of_an_epoch_have_plans_of_their_own_whatever_the_planner_says() -> None:
    planner = NotedPlanner(serves_every_epoch=True)
    found = all_of(ahead(EveryEpochAnother(2), planner, 2), 0, 2, 2)
    assert [full_batch for full_batch, _ in planner.planned] == [planned.full_batch for planned in found]


@pytest.mark.parametrize("serves_every_epoch", [False, True])
def test_more_room_is_left_from_the_next_full_batch_on(serves_every_epoch: bool) -> None:
    planner = NotedPlanner(serves_every_epoch)
    planned = ahead(EveryEpochAnother(), planner, 4)
    assert len(planned.get(MODEL, 0, 0, 0).plan.parts) == 4
    # Whether or not it is begun, the plan of epoch 1 is of too large parts.
    planned.leave_more_room(5)
    assert [len(planned.get(MODEL, 0, epoch, 0).plan.parts) for epoch in (1, 2, 3)] == [5, 5, 5]


def test_more_room_may_be_asked_for_where_what_was_begun_has_failed() -> None:
    planned = ahead(FailsInEpoch2(), NotedPlanner(), num_epochs=5)
    all_of(planned, 0, 2)
    planned.leave_more_room(5)
    with pytest.raises(BettyError, match="epoch 2 is not stored"):
        planned.get(MODEL, 0, 2, 0)


def stored(folder: Path) -> StoredTensors:
    return StoredTensors(folder, {"recipe": "of EveryEpochAnother"})


@pytest.mark.parametrize(("num_batches", "serves_every_epoch", "plans"), [(1, True, 1), (1, False, 3), (2, True, 6)])
def test_what_is_stored_is_not_planned_again(
    tmp_path: Path, num_batches: int, serves_every_epoch: bool, plans: int
) -> None:
    first, second = NotedPlanner(serves_every_epoch), NotedPlanner(serves_every_epoch)
    made = all_of(ahead(EveryEpochAnother(num_batches), first, 3, stored(tmp_path)), 0, 3, num_batches)
    assert len(first.planned) == len(list(tmp_path.glob("parts-noted_*.safetensors"))) == plans
    found = all_of(ahead(EveryEpochAnother(num_batches), second, 3, stored(tmp_path)), 0, 3, num_batches)
    assert second.planned == []
    assert list(map(listed, found)) == list(map(listed, made))


@pytest.mark.parametrize("first_epoch", [0, 3])
def test_a_training_that_begins_later_finds_the_parts_of_the_first_epoch(tmp_path: Path, first_epoch: int) -> None:
    (made,) = all_of(ahead(EveryEpochAnother(), NotedPlanner(), 4, stored(tmp_path)), 3, 4)
    planner = NotedPlanner()
    found = all_of(ahead(EveryEpochAnother(), planner, 4, stored(tmp_path)), first_epoch, 4)
    assert planner.planned == []
    assert {str(listed(planned)) for planned in found} == {str(listed(made))}


BUDGET = {"method": "locality", "memory_budget": 16_000}
NUMBER = {"method": "REG", "num_parts": 4, "num_re_partition": 1, "re_partition_method": "REG"}


@pytest.mark.parametrize(
    ("kind", "settings", "changed"),
    [
        (BudgetPartitioning, BUDGET, {"memory_budget": 15_000}),
        (BudgetPartitioning, BUDGET, {"method": "REG"}),
        (BudgetPartitioning, BUDGET, {"reg_max_degree": 3}),
        (Partitioning, NUMBER, {"num_parts": 5}),
        (Partitioning, NUMBER, {"num_re_partition": 2}),
        (Partitioning, NUMBER, {"re_partition_method": "range"}),
        (Partitioning, NUMBER, {"reg_max_degree": 3}),
    ],
)
def test_other_settings_do_not_find_the_parts(tmp_path: Path, kind: type, settings: dict, changed: dict) -> None:
    for given, files in [(settings, 1), (settings, 1), ({**settings, **changed}, 2), ({**settings, **changed}, 2)]:
        all_of(ahead(EveryEpochAnother(), kind(**given), 1, stored(tmp_path)), 0, 1)
        assert len(list(tmp_path.glob("*.safetensors"))) == files


def test_another_model_or_seed_does_not_find_them_and_a_planner_that_left_room_neither(tmp_path: Path) -> None:
    def files_after(model: nn.Module, seed: int, shortages: int) -> int:
        planner = BudgetPartitioning("locality", 16_000)
        planned = PlanningAhead(EveryEpochAnother(), planner, CPU, seed, 1, stored(tmp_path))
        for _ in range(shortages):
            planned.leave_more_room(5)
        planned.get(model, 0, 0, 0)
        return len(list(tmp_path.glob("*.safetensors")))

    cases = [(MODEL, 7, 0), (MODEL, 7, 0), (GraphSAGE(6, 7, 4, 2), 7, 0), (GraphSAGE(6, 5, 4, 2, "pool"), 7, 0)]
    cases += [(MODEL, 8, 0), (MODEL, 7, 1)]
    assert [files_after(*case) for case in cases] == [1, 1, 2, 3, 4, 5]


class OwnModel(nn.Linear):
    """Tells nothing of its memory."""


def test_parts_of_a_model_that_cannot_be_told_from_others_are_not_stored(tmp_path: Path) -> None:
    planner = NotedPlanner()
    ahead(EveryEpochAnother(), planner, 1, stored(tmp_path)).get(OwnModel(6, 4), 0, 0, 0)
    assert len(planner.planned) == 1
    assert not list(tmp_path.iterdir())


def test_a_stored_file_of_another_number_of_output_nodes_is_not_used(tmp_path: Path) -> None:
    class Shorter(StoredTensors):
        def load(self, name: str, key: Mapping[str, object]) -> torch.Tensor:
            return torch.zeros(19, dtype=torch.int32)

    planner = NotedPlanner()
    found = ahead(EveryEpochAnother(), planner, 1, Shorter(tmp_path, {})).get(MODEL, 0, 0, 0)
    assert len(planner.planned) == 1
    assert sum(part.numel() for part in found.plan.parts) == 20
