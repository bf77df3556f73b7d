"""Plans are compared with trying 1, 2, 3, … micro-batches, under estimates that are easy to compute."""

import itertools
import re

import pytest
import torch

from betty import (
    BettyError,
    Block,
    FullBatch,
    GraphSAGE,
    MemoryEstimate,
    MicroBatch,
    MicroBatchPlan,
    PeakMemory,
    estimate_memory,
    plan_micro_batches,
    split,
)
from betty.blocks import chain_blocks
from betty.memory import estimate_optimizer_step
from betty.micro_batch_train import graph_partitioner
from betty.micro_batch_train.graph_partitioner import METHODS, partition
from betty.micro_batch_train.plan import model_estimate
from betty.micro_batch_train.planner import MARGIN, SAMPLING_MARGIN, BudgetPartitioning, plan_parts
from betty.micro_batch_train.single_outputs import largest_single
from tests.random_blocks import neighbourhoods, random_full_batch

STATIC = 1000

QUICK_METHODS = [method for method in METHODS if method != "hypergraph"]
"""Those that can be tried for every number of parts."""


def size_estimate(micro_batch: MicroBatch) -> MemoryEstimate:
    """Of a model of 250 bytes, an optimizer and gradients of as many again, and memory that grows with the sizes."""
    return MemoryEstimate(
        parameters=STATIC // 4,
        gradients=STATIC // 4,
        optimizer=STATIC // 2,
        input_features=8 * micro_batch.input_ids.numel(),
        labels=8 * micro_batch.output_ids.numel(),
        blocks=4 * micro_batch.num_edges,
        hidden=40 * micro_batch.num_edges,
        aggregator=0,
        backward=0,
    )


def need_of(micro_batches: list[MicroBatch]) -> int:
    """The most bytes while one trains and the next one is loaded, written out."""

    def loaded(micro_batch: MicroBatch) -> int:
        return 8 * (micro_batch.input_ids.numel() + micro_batch.output_ids.numel()) + 4 * micro_batch.num_edges

    trained = [STATIC + loaded(micro_batch) + 40 * micro_batch.num_edges for micro_batch in micro_batches]
    beside = [loaded(micro_batch) for micro_batch in micro_batches[1:]] + [0]
    return max(map(sum, zip(trained, beside, strict=True)))


def plan_of(full_batch: FullBatch, budget: int, method: str = "REG") -> MicroBatchPlan:
    model = torch.nn.Linear(1, 1)
    return plan_micro_batches(full_batch, model, budget, method, seed=5, estimate=size_estimate)


def line_of_outputs(num_outputs: int) -> FullBatch:
    """Every output node has a source of its own: nothing is shared, and all micro-batches of a size are alike."""
    indices = torch.arange(num_outputs, 2 * num_outputs, dtype=torch.int32)
    return FullBatch((Block(torch.arange(num_outputs + 1), indices, torch.arange(2 * num_outputs)),))


RING = neighbourhoods([900, 500, 250], max_degree=6, seed=4)


@pytest.mark.parametrize("share", [2, 3, 5, 8, 12])
@pytest.mark.parametrize("method", METHODS)
def test_one_micro_batch_less_would_not_fit(method: str, share: int) -> None:
    budget = STATIC + (need_of([MicroBatch(RING.blocks)]) - STATIC) // share
    plan = plan_of(RING, budget, method)
    assert plan.peak == need_of(plan.micro_batches) <= budget
    one_less = partition(RING, len(plan.parts) - 1, method, 5, estimate=size_estimate)
    assert need_of(split(RING, one_less)) > budget


def first_that_fits(full_batch: FullBatch, budget: int, method: str) -> int:
    return next(
        count
        for count in itertools.count(1)
        if need_of(split(full_batch, partition(full_batch, count, method, 5, estimate=size_estimate))) <= budget
    )


@pytest.mark.parametrize("method", QUICK_METHODS)
@pytest.mark.parametrize("share", [2, 3, 5, 8, 12])
def test_there_are_no_more_micro_batches_than_the_first_partition_that_fits_has(method: str, share: int) -> None:
    budget = STATIC + (need_of([MicroBatch(RING.blocks)]) - STATIC) // share
    assert len(plan_of(RING, budget, method).parts) <= first_that_fits(RING, budget, method)


@pytest.mark.parametrize("method", QUICK_METHODS)
@pytest.mark.parametrize("outputs_that_fit", [1, 7, 10, 33, 60])
def test_so_it_is_where_all_output_nodes_are_alike(method: str, outputs_that_fit: int) -> None:
    full_batch = line_of_outputs(120)
    # Of each output node, its source and its edge: 28 bytes once loaded, 40 more in training, 28 of the next ones.
    budget = STATIC + outputs_that_fit * (2 * 28 + 40)
    plan = plan_of(full_batch, budget, method)
    assert plan.peak <= budget
    assert 1 < len(plan.parts) <= first_that_fits(full_batch, budget, method)


def test_a_plan_holds_every_output_node_once_and_names_its_micro_batches() -> None:
    plan = plan_of(RING, need_of([MicroBatch(RING.blocks)]) // 4)
    assert torch.cat(plan.parts).sort().values.tolist() == list(range(250))
    for part, micro_batch, estimate in zip(plan.parts, plan.micro_batches, plan.estimates, strict=True):
        assert torch.equal(micro_batch.output_ids, RING.output_ids[part])
        assert estimate == size_estimate(micro_batch)
    assert sum(micro_batch.weight for micro_batch in plan.micro_batches) == pytest.approx(1)


def test_what_fits_stays_whole_without_any_graph_made(monkeypatch) -> None:
    monkeypatch.setattr(graph_partitioner, "redundancy_graph", None)
    budget = need_of([MicroBatch(RING.blocks)])
    assert [part.tolist() for part in plan_of(RING, budget).parts] == [list(range(250))]
    assert plan_of(line_of_outputs(0), STATIC).parts == []


class Segments:
    """Output nodes in their order in segments of even size, as a source of another kind would give them."""

    def __init__(self, num_outputs: int, refines: bool = False) -> None:
        self.num_outputs = num_outputs
        self.refines = refines
        self.asked = []
        self.halved = []

    def parts(self, num_parts: int) -> list[torch.Tensor]:
        self.asked.append(num_parts)
        return list(torch.arange(self.num_outputs).tensor_split(num_parts))

    def segments(self, num_segments: int) -> list[torch.Tensor]:
        return self.parts(num_segments)

    def halves(self, part: torch.Tensor) -> list[torch.Tensor]:
        self.halved.append(part)
        return list(part.tensor_split(2))


def dense_beginning(num_outputs: int, dense: int, degree: int) -> FullBatch:
    """The first output nodes have ``degree`` sources each, the others one; none are shared."""
    degrees = torch.ones(num_outputs, dtype=torch.int64)
    degrees[:dense] = degree
    indptr = torch.cat([torch.zeros(1, dtype=torch.int64), degrees.cumsum(0)])
    num_edges = int(indptr[-1])
    indices = torch.arange(num_outputs, num_outputs + num_edges, dtype=torch.int32)
    return FullBatch((Block(indptr, indices, torch.arange(num_outputs + num_edges)),))


def test_output_nodes_that_take_more_do_not_make_all_micro_batches_smaller() -> None:
    full_batch, source = dense_beginning(1000, 20, 10), Segments(1000)
    budget = need_of(split(full_batch, source.parts(20))[1:])
    plan = plan_parts(full_batch, source, size_estimate, budget)
    even = next(count for count in itertools.count(1) if need_of(split(full_batch, source.parts(count))) <= budget)
    assert need_of(plan.micro_batches) <= budget
    assert 20 < len(plan.parts) <= 25 < even


def test_a_number_is_not_tried_twice_and_few_are_tried() -> None:
    full_batch, source = line_of_outputs(2000), Segments(2000)
    plan_parts(full_batch, source, size_estimate, STATIC + (need_of([MicroBatch(full_batch.blocks)]) - STATIC) // 50)
    assert len(source.asked) == len(set(source.asked)) <= 3


@pytest.mark.parametrize("share", [4, 16])
def test_the_graph_is_made_once_for_all_numbers_that_are_tried(monkeypatch, share: int) -> None:
    made, cut = [], []
    redundancy_graph, minimum_cut = graph_partitioner.redundancy_graph, graph_partitioner.minimum_cut

    def counted_graph(block, max_sharing):
        made.append(block.num_dst)
        return redundancy_graph(block, max_sharing)

    def counted_cut(graph, *args, **kwargs):
        cut.append(graph.shape[0])
        return minimum_cut(graph, *args, **kwargs)

    monkeypatch.setattr(graph_partitioner, "redundancy_graph", counted_graph)
    monkeypatch.setattr(graph_partitioner, "minimum_cut", counted_cut)
    budget = STATIC + (need_of([MicroBatch(RING.blocks)]) - STATIC) // share
    plan = plan_of(RING, budget, "REG")
    assert made.count(250) == 1
    assert 1 <= cut.count(250) <= 2
    assert len(plan.parts) > share


def enough_by(error: BettyError) -> int:
    assert "\n" not in str(error)
    return int(re.search(r"(\d+) bytes will do", str(error))[1])


def test_a_budget_too_small_for_one_output_node_names_what_fills_it_and_one_that_would_do() -> None:
    with pytest.raises(BettyError, match=r"too small even for one output node.*largest part being hidden") as raised:
        plan_of(RING, STATIC + 10)
    enough = enough_by(raised.value)
    assert plan_of(RING, enough).peak <= enough
    nodes = torch.arange(RING.output_ids.numel())
    alone = max(need_of(split(RING, [node.reshape(1), nodes[nodes != node]])[:1]) for node in nodes)
    assert alone <= enough <= 1.5 * alone


FULL_BATCHES = {
    "ring": RING,
    "hubs": random_full_batch([400, 150, 60], 6, seed=2),
    "dense": random_full_batch([80, 70, 60], 40, seed=5),
    "sparse": neighbourhoods([2000, 700, 300], max_degree=3, seed=1),
    "two": random_full_batch([30, 9, 2], 4, seed=0),
    "one": random_full_batch([30, 9, 1], 4, seed=0),
}


@pytest.mark.parametrize("full_batch", FULL_BATCHES.values(), ids=FULL_BATCHES)
@pytest.mark.parametrize("method", ["REG", "metis", "random"])
@pytest.mark.parametrize("aggregator", ["mean", "lstm"])
def test_a_budget_named_as_enough_is_enough(full_batch: FullBatch, method: str, aggregator: str) -> None:
    model = GraphSAGE(20, 8, 3, 2, aggregator)
    with pytest.raises(BettyError, match="too small even for") as raised:
        plan_micro_batches(full_batch, model, 1000, method)
    enough = enough_by(raised.value)
    assert plan_micro_batches(full_batch, model, enough, method).peak <= enough


def test_a_budget_that_the_optimizers_step_does_not_fit_is_refused() -> None:
    model = GraphSAGE(3000, 200, 3, 2)
    step = estimate_optimizer_step(model)
    with pytest.raises(BettyError, match="too small even for the optimizer's step") as raised:
        plan_micro_batches(line_of_outputs_twice(4), model, step - 1)
    enough = enough_by(raised.value)
    assert step <= enough < 1.03 * step
    assert plan_micro_batches(line_of_outputs_twice(4), model, enough).peak <= step


def line_of_outputs_twice(num_outputs: int) -> FullBatch:
    return FullBatch((line_of_outputs(2 * num_outputs).blocks[0], line_of_outputs(num_outputs).blocks[0]))


def test_the_largest_single_output_node_is_that_of_all() -> None:
    for full_batch in FULL_BATCHES.values():
        found = largest_single(full_batch, size_estimate)
        estimates = [size_estimate(micro_batch) for micro_batch in every_output_alone(full_batch)]
        assert found.estimate.peak == max(single.peak for single in estimates)
        assert found.loaded == max(single.loaded for single in estimates)


def every_output_alone(full_batch: FullBatch) -> list[MicroBatch]:
    return split(full_batch, torch.arange(full_batch.output_ids.numel()).split(1))


class UserModel(torch.nn.Module):
    """A plain module of somebody who knows nothing of estimates."""

    def __init__(self, num_features: int) -> None:
        super().__init__()
        self.first, self.last = torch.nn.Linear(num_features, 32), torch.nn.Linear(32, 5)

    def forward(self, blocks: list[Block], x: torch.Tensor) -> torch.Tensor:
        return self.last(mean(blocks[1], self.first(mean(blocks[0], x)).relu()))


def mean(block: Block, x: torch.Tensor) -> torch.Tensor:
    degrees = block.in_degrees()
    destinations = torch.arange(block.num_dst).repeat_interleave(degrees, output_size=block.num_edges)
    sums = x[: block.num_dst].index_add(0, destinations, x.index_select(0, block.indices))
    return sums / (degrees + 1)[:, None]


def test_a_plain_module_stays_within_its_budget_by_a_dry_run() -> None:
    num_features, margin = 24, 1.05
    model = UserModel(num_features)
    full_batch = neighbourhoods([900, 500, 250], max_degree=6, seed=4)
    budget = estimate_memory(model, full_batch.blocks, num_features=num_features).peak // 3
    plan = plan_micro_batches(full_batch, model, budget, num_features=num_features)
    assert len(plan.parts) > 3
    assert plan.peak <= budget
    features = torch.randn(int(full_batch.input_ids.max()) + 1, num_features)
    labels = torch.zeros(len(features), dtype=torch.int64)
    optimizer = torch.optim.Adam(model.parameters())
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    optimizer.step()
    weights = sum(parameter.nbytes for parameter in model.parameters())
    measured = []
    for micro_batch in plan.micro_batches:
        with PeakMemory("cpu") as meter:
            on_device = copied(micro_batch)
            logits = model(on_device.blocks, features[micro_batch.input_ids])
            torch.nn.functional.cross_entropy(logits, labels[micro_batch.output_ids], reduction="sum").backward()
            del on_device, logits
        measured.append(meter.peak_bytes + 4 * weights)
    loaded = [estimate.loaded for estimate in plan.estimates[1:]] + [0]
    assert max(map(sum, zip(measured, loaded, strict=True))) <= margin * budget
    assert max(map(sum, zip(measured, loaded, strict=True))) >= 0.8 * budget


def copied(micro_batch: MicroBatch) -> MicroBatch:
    layers = [(block.indptr.clone(), block.indices.clone()) for block in micro_batch.blocks]
    return MicroBatch(chain_blocks(layers, micro_batch.input_ids.clone()), micro_batch.weight)


def test_how_many_features_a_plain_module_takes_must_be_known() -> None:
    with pytest.raises(BettyError, match="give num_features= or the model widths"):
        plan_micro_batches(RING, UserModel(24), 10**9)
    model = UserModel(24)
    model.widths = (24, 32, 5)
    by_widths = plan_micro_batches(RING, model, 10**9)
    by_number = plan_micro_batches(RING, UserModel(24), 10**9, num_features=24)
    assert by_widths.estimates == by_number.estimates


@pytest.mark.parametrize("budget", [0, -1, 1.5])
def test_a_budget_that_is_no_number_of_bytes_is_refused(budget) -> None:
    with pytest.raises(BettyError, match="give a whole number of bytes above 0"):
        plan_of(RING, budget)


def test_an_unknown_method_is_refused() -> None:
    with pytest.raises(BettyError, match="unknown partitioning method 'best'"):
        plan_of(RING, 10**9, "best")


def test_notices_never_end_a_training_that_the_budget_is_enough_for() -> None:
    model, device = GraphSAGE(6, 8, 3, 2), torch.device("cpu")
    budget = plan_micro_batches(RING, model, 10**9).peak // 2
    partitioning = BudgetPartitioning("REG", budget)
    for _ in range(60):
        assert partitioning.plan(RING, model, 0, device).peak <= budget
        partitioning.leave_more_room(1000)


def test_every_notice_leaves_more_room() -> None:
    model, device = GraphSAGE(6, 8, 3, 2), torch.device("cpu")
    budget = plan_micro_batches(RING, model, 10**9).peak // 2
    partitioning = BudgetPartitioning("REG", budget)
    counts = []
    for notices in range(4):
        plan = partitioning.plan(RING, model, 0, device)
        assert plan.peak <= budget * 0.9**notices
        counts.append(len(plan.parts))
        partitioning.leave_more_room(len(plan.parts) + 1)
    assert counts == sorted(counts)
    assert counts[-1] > counts[0]


def test_reg_is_planned_with_the_bound_on_hubs_that_was_given(monkeypatch) -> None:
    bounds = set()

    def noted_graph(block, max_sharing):
        bounds.add(max_sharing)
        return redundancy_graph(block, max_sharing)

    redundancy_graph = graph_partitioner.redundancy_graph
    monkeypatch.setattr(graph_partitioner, "redundancy_graph", noted_graph)
    model = GraphSAGE(6, 8, 3, 2)
    budget = plan_micro_batches(RING, model, 10**9).peak // 2
    BudgetPartitioning("REG", budget, reg_max_degree=3).plan(RING, model, 0, torch.device("cpu"))
    assert bounds == {3}


class Refining(Segments):
    """Segments in steps that share nothing, so that runs of them are bad, and parts that are better than these."""

    def __init__(self, num_outputs: int, is_good: bool) -> None:
        super().__init__(num_outputs, refines=True)
        self.is_good = is_good

    def parts(self, num_parts: int) -> list[torch.Tensor]:
        if self.is_good:
            return super().parts(num_parts)
        self.asked.append(num_parts)
        return list((torch.arange(self.num_outputs) * 37 % self.num_outputs).tensor_split(num_parts))

    def segments(self, num_segments: int) -> list[torch.Tensor]:
        return list((torch.arange(self.num_outputs) * 37 % self.num_outputs).tensor_split(num_segments))


@pytest.mark.parametrize("share", [2, 3, 4, 7, 12])
@pytest.mark.parametrize("is_good", [False, True])
def test_refined_parts_fit_and_are_never_more_than_the_runs(share: int, is_good: bool) -> None:
    full_batch = neighbourhoods([900, 500, 251], max_degree=4, seed=4)
    budget = STATIC + (need_of([MicroBatch(full_batch.blocks)]) - STATIC) // share
    refining = Refining(251, is_good)
    plan = plan_parts(full_batch, refining, size_estimate, budget)
    assert plan.peak == need_of(plan.micro_batches) <= budget
    assert torch.cat(plan.parts).sort().values.tolist() == list(range(251))
    assert len(refining.asked) == len(set(refining.asked)) <= 4
    num_runs = filled_count(full_batch, refining, budget)
    assert all(count < num_runs for count in refining.asked)
    # Of a few runs there is none to be saved.
    assert len(plan.parts) < num_runs if is_good and share > 4 else len(plan.parts) <= num_runs


def filled_count(full_batch: FullBatch, source: Segments, budget: int) -> int:
    """Micro-batches of a plan of nothing but runs of segments."""
    only_runs = Refining(source.num_outputs, is_good=False)
    only_runs.segments = source.segments
    only_runs.parts = lambda num_parts: [torch.arange(source.num_outputs)]
    return len(plan_parts(full_batch, only_runs, size_estimate, budget).parts)


@pytest.mark.parametrize("share", [2, 3, 5])
def test_a_plan_that_is_to_serve_every_epoch_leaves_room_for_what_others_sample(share: int) -> None:
    model = GraphSAGE(20, 8, 3, 2)
    whole = model_estimate(model, "cpu")(MicroBatch(RING.blocks))
    budget = whole.static + (whole.peak - whole.static) // share
    planner = BudgetPartitioning("locality", budget)
    assert planner.serves_every_epoch
    plan = planner.plan(RING, model, 5, torch.device("cpu"))
    assert plan.peak <= (1 - MARGIN - SAMPLING_MARGIN) * budget
    assert plan.memory_budget == budget


def test_settings_tell_what_a_plan_depends_on() -> None:
    planner = BudgetPartitioning("REG", 1000, reg_max_degree=3)
    assert not planner.serves_every_epoch
    assert planner.settings == {"method": "REG", "memory_budget": 1000, "reg_max_degree": 3}
    planner.leave_more_room(5)
    assert planner.settings == {"method": "REG", "memory_budget": 900, "reg_max_degree": 3}
