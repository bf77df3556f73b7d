"""A micro-batch that runs out of memory is split, and the step stays that of the whole batch."""

import gc
import logging
import threading
import weakref
from collections.abc import Callable, Iterator, Sequence

import pytest
import torch
from torch.nn.functional import cross_entropy

from betty import BettyError, Block, FullBatch, GraphSAGE, MicroBatch, dropout_key, partition
from betty.device_loader import DeviceLoader, LoadedBatch, Rows
from betty.micro_batch_train.cutting import MicroBatchCutter
from betty.micro_batch_train.memory_watch import MemoryWatch
from betty.micro_batch_train.out_of_memory import all_gradients_or_none, let_go
from betty.micro_batch_train.plan import estimated, model_estimate
from betty.micro_batch_train.trainer import MicroBatchTrainer, Partitioning, StepRecord, accumulate_gradients
from tests.full_batches import FixedFullBatches
from tests.random_blocks import neighbourhoods, random_full_batch

NUM_FEATURES, NUM_CLASSES, NUM_LAYERS, NUM_OUTPUTS = 6, 4, 3, 30
CPU = torch.device("cpu")
DROPOUT_KEY = 5

Event = Callable[[str, Sequence[int]], None]
"""Called where something may go wrong, with the place's name and the output nodes of the micro-batch."""


def nothing(place: str, outputs: Sequence[int]) -> None:
    """Lets everything pass."""


def exhaust_memory() -> None:
    torch.empty(1 << 58)


def exhaust_device_memory() -> None:
    raise torch.cuda.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")


def exhaust_host_memory() -> None:
    raise MemoryError


class Once:
    """Runs out of memory once: when a place is passed for the n-th time."""

    def __init__(self, place: str, number: int, fail: Callable[[], None] = exhaust_memory) -> None:
        self.place, self.left, self.fail = place, number, fail
        self.failed_outputs: set[int] = set()

    def __call__(self, place: str, outputs: Sequence[int]) -> None:
        if place != self.place:
            return
        self.left -= 1
        if self.left == 0:
            self.failed_outputs = set(outputs)
            self.fail()


class Passing(torch.autograd.Function):
    """The identity, whose backward tells that it was reached."""

    @staticmethod
    def forward(ctx, x: torch.Tensor, tell: Callable[[], None]) -> torch.Tensor:
        ctx.tell = tell
        return x.view_as(x)

    @staticmethod
    def backward(ctx, gradient: torch.Tensor) -> tuple[torch.Tensor, None]:
        ctx.tell()
        return gradient, None


class FragileModel(GraphSAGE):
    """Tells of every layer's forward, and of the backward that reaches it, and watches what it computes."""

    def __init__(self, event: Event = nothing) -> None:
        super().__init__(NUM_FEATURES, 5, NUM_CLASSES, NUM_LAYERS, "mean", dropout=0.5)
        self.event = event
        self.outputs: list[int] = []
        self.reached_by_backward: list[set[int]] = []
        self.computed: list[tuple[set[int], weakref.ref[torch.Tensor]]] = []

    def forward(self, blocks: Sequence[Block], x: torch.Tensor) -> torch.Tensor:
        self.outputs = blocks[-1].dst_ids.tolist()
        self.watch(x)
        return super().forward(blocks, x)

    def watch(self, tensor: torch.Tensor) -> None:
        self.computed.append((set(self.outputs), weakref.ref(tensor)))

    def layer_forward(self, layer_index: int, block: Block, h: torch.Tensor) -> torch.Tensor:
        h = super().layer_forward(layer_index, block, h)
        self.watch(h)
        self.event(f"forward {layer_index}", self.outputs)

        def tell() -> None:
            self.reached_by_backward.append(self.layers_with_gradients())
            self.event(f"backward {layer_index}", self.outputs)

        return Passing.apply(h, tell)

    def layers_with_gradients(self) -> set[int]:
        return {index for index, layer in enumerate(self.layers) if next(layer.parameters()).grad is not None}


class FragileLoader(DeviceLoader):
    """Tells of every micro-batch that it has loaded, and counts what is alive then."""

    def __init__(self, full_batch: FullBatch, event: Event = nothing) -> None:
        generator = torch.Generator().manual_seed(1)
        num_nodes = int(full_batch.input_ids.max()) + 1
        features = torch.randn(num_nodes, NUM_FEATURES, generator=generator, dtype=torch.float64)
        labels = torch.randint(0, NUM_CLASSES, (num_nodes,), generator=generator)
        super().__init__(features, labels, CPU)
        self.features, self.labels = features, labels
        self.event = event
        self.before_load: Event = nothing
        self.loaded: list[weakref.ref[LoadedBatch]] = []
        self.loaded_features: list[weakref.ref[torch.Tensor]] = []
        self.most_alive = 0

    def load_rows(self, batch: MicroBatch, prepare_s: float, features: Rows, target: Rows | None) -> LoadedBatch:
        self.before_load("load", batch.output_ids.tolist())
        loaded = super().load_rows(batch, prepare_s, features, target)
        self.loaded.append(weakref.ref(loaded))
        self.loaded_features.append(weakref.ref(loaded.features))
        self.most_alive = max(self.most_alive, sum(reference() is not None for reference in self.loaded))
        self.event("load", batch.output_ids.tolist())
        return loaded


@pytest.fixture
def no_garbage_collection() -> Iterator[None]:
    """What is freed then is freed because nothing refers to it."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


@pytest.fixture(scope="module")
def full_batch() -> FullBatch:
    return random_full_batch([150, 100, 60, NUM_OUTPUTS], 5, seed=0)


def fragile_model(event: Event = nothing) -> FragileModel:
    torch.manual_seed(0)
    return FragileModel(event).double()


@pytest.fixture(scope="module")
def undisturbed(full_batch: FullBatch) -> tuple[float, list[torch.Tensor]]:
    """The loss and the gradients of the full batch in one piece."""
    model, loader = fragile_model(), FragileLoader(full_batch)
    with dropout_key(model, DROPOUT_KEY):
        logits = model(full_batch.blocks, loader.features[full_batch.input_ids])
    loss = cross_entropy(logits, loader.labels[full_batch.output_ids])
    loss.backward()
    return loss.item(), [parameter.grad for parameter in model.parameters()]


def accumulate(
    model: FragileModel, full_batch: FullBatch, loader: FragileLoader, num_parts: int = 4
) -> tuple[StepRecord, list[torch.Tensor]]:
    parts = partition(full_batch, num_parts, "range")
    with dropout_key(model, DROPOUT_KEY):
        step = accumulate_gradients(model, full_batch, parts, loader)
    return step, [parameter.grad for parameter in model.parameters()]


def assert_undisturbed(step: StepRecord, gradients: list[torch.Tensor], undisturbed: tuple) -> None:
    loss, expected = undisturbed
    assert step.loss == pytest.approx(loss, rel=1e-12)
    errors = [((a - b).norm() / b.norm()).item() for a, b in zip(gradients, expected, strict=True)]
    assert max(errors) <= 1e-12, errors
    assert sum(batch.output_nodes for batch in step.batches) == NUM_OUTPUTS


FORWARDS = [f"forward {layer}" for layer in range(NUM_LAYERS)]
BACKWARDS = [f"backward {layer}" for layer in range(NUM_LAYERS)]


@pytest.mark.parametrize("number", [1, 2, 4])
@pytest.mark.parametrize("place", ["load", *FORWARDS, *BACKWARDS])
@pytest.mark.usefixtures("no_garbage_collection")
def test_a_step_survives_an_error_anywhere(full_batch: FullBatch, undisturbed, place: str, number: int, caplog) -> None:
    once = Once(place, number)
    model, loader = fragile_model(once), FragileLoader(full_batch, once)
    left_behind = []

    def look_back(place: str, outputs: Sequence[int]) -> None:
        """When a half of what failed is to be loaded, all of the attempt has to be gone."""
        if set(outputs) < once.failed_outputs:
            computed = [tensor for of, tensor in model.computed if of == once.failed_outputs]
            left_behind.append(sum(tensor() is not None for tensor in computed + loader.loaded_features))

    loader.before_load = look_back
    with caplog.at_level(logging.WARNING):
        step, gradients = accumulate(model, full_batch, loader)

    assert len(once.failed_outputs) in (7, 8)
    assert_undisturbed(step, gradients, undisturbed)
    assert len(step.batches) == 5
    assert step.num_shortages == 1
    assert min(batch.output_nodes for batch in step.batches) in (3, 4)
    assert len(left_behind) == 2
    assert left_behind[0] == 0
    assert loader.most_alive <= 2
    assert [record.message for record in caplog.records] == [
        f"micro-batch {number} of 4, output nodes: {len(once.failed_outputs)}, ran out of memory on cpu: split in two"
    ]


def test_what_was_on_its_way_when_memory_ran_out_is_not_taken_to_be_beside_what_follows() -> None:
    full_batch = neighbourhoods([600, 300, 100, NUM_OUTPUTS], max_degree=3, seed=1)
    parts = list(torch.arange(NUM_OUTPUTS).split([5, 8, 16, 1]))
    once = Once("forward 1", 2)
    model, loader = fragile_model(once), FragileLoader(full_batch)
    estimate = model_estimate(model, CPU)
    plan = estimated(full_batch, parts, estimate)
    half = estimate(MicroBatchCutter(full_batch).cut([parts[1][:4]])[0])
    assert plan.estimates[2].peak + half.loaded > plan.peak
    watch = MemoryWatch(estimate, limit=plan.peak)
    step = accumulate_gradients(model, full_batch, parts, loader, watch)
    assert once.failed_outputs == set(full_batch.output_ids[parts[1]].tolist())
    assert sorted(batch.output_nodes for batch in step.batches) == [1, 4, 4, 5, 16]
    assert watch.peak == plan.peak


@pytest.mark.parametrize("fail", [exhaust_memory, exhaust_device_memory, exhaust_host_memory])
@pytest.mark.parametrize("place", ["load", "forward 1", "backward 1"])
def test_every_error_of_memory_is_survived(full_batch: FullBatch, undisturbed, place: str, fail) -> None:
    once = Once(place, 2, fail)
    step, gradients = accumulate(fragile_model(once), full_batch, FragileLoader(full_batch, once))
    assert once.failed_outputs
    assert_undisturbed(step, gradients, undisturbed)


def test_the_failed_backward_had_reached_later_layers(full_batch: FullBatch) -> None:
    """Or else the tests above would not show that its gradients are dropped."""
    once = Once("backward 0", 3)
    model = fragile_model(once)
    accumulate(model, full_batch, FragileLoader(full_batch, once))
    assert model.reached_by_backward[:3] == [set(), {2}, {1, 2}]


@pytest.mark.parametrize("most_outputs", [1, 2, 5])
def test_halves_that_do_not_fit_are_split_again(full_batch: FullBatch, undisturbed, most_outputs: int) -> None:
    def limit(place: str, outputs: Sequence[int]) -> None:
        if place == "backward 1" and len(outputs) > most_outputs:
            exhaust_memory()

    step, gradients = accumulate(fragile_model(limit), full_batch, FragileLoader(full_batch), num_parts=2)
    assert max(batch.output_nodes for batch in step.batches) <= most_outputs
    assert_undisturbed(step, gradients, undisturbed)


@pytest.mark.parametrize("place", ["load", "forward 1", "backward 1"])
def test_one_output_node_that_does_not_fit_is_named_in_one_line(full_batch: FullBatch, place: str) -> None:
    node = int(full_batch.output_ids[17])

    def fail_with_the_node(at: str, outputs: Sequence[int]) -> None:
        if at == place and node in outputs:
            exhaust_memory()

    model, loader = fragile_model(fail_with_the_node), FragileLoader(full_batch, fail_with_the_node)
    with pytest.raises(BettyError, match=f"^output node {node} does not fit on cpu.*$") as caught:
        accumulate(model, full_batch, loader)
    assert "\n" not in str(caught.value)
    assert background_threads() == []


def test_one_output_node_that_did_not_fit_beside_another_is_tried_alone(full_batch: FullBatch, undisturbed) -> None:
    once = Once("load", 7)
    step, gradients = accumulate(fragile_model(), full_batch, FragileLoader(full_batch, once), NUM_OUTPUTS)
    assert len(once.failed_outputs) == 1
    assert len(step.batches) == NUM_OUTPUTS
    # More or smaller micro-batches would be of no use.
    assert step.num_shortages == 0
    assert_undisturbed(step, gradients, undisturbed)


@pytest.mark.parametrize("place", ["load", "forward 1", "backward 1"])
def test_other_errors_pass(full_batch: FullBatch, place: str) -> None:
    error = RuntimeError("mat1 and mat2 shapes cannot be multiplied")

    def fail() -> None:
        raise error

    once = Once(place, 2, fail)
    model = fragile_model(once)
    with pytest.raises(RuntimeError) as caught:
        accumulate(model, full_batch, FragileLoader(full_batch, once))
    assert caught.value is error
    assert background_threads() == []


def trainer_of(full_batch: FullBatch, partitioner: Partitioning, num_batches: int = 1) -> MicroBatchTrainer:
    return MicroBatchTrainer(FixedFullBatches([full_batch] * num_batches), partitioner, FragileLoader(full_batch), 0)


def test_later_full_batches_get_as_many_micro_batches_as_were_needed(full_batch: FullBatch, caplog) -> None:
    def limit(place: str, outputs: Sequence[int]) -> None:
        if place == "forward 1" and len(outputs) > 8:
            exhaust_memory()

    model = fragile_model(limit)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    trainer = trainer_of(full_batch, Partitioning("range", 2, 0, "range"))
    records = [trainer.train_epoch(model, optimizer, 0, epoch) for epoch in range(2)]
    assert [sorted(batch.output_nodes for batch in record.batches) for record in records] == [[7, 7, 8, 8]] * 2
    assert [record.message.split(",")[0] for record in caplog.records] == ["micro-batch 1 of 2", "micro-batch 3 of 3"]


def test_more_room_is_left_by_one_more_micro_batch_at_least() -> None:
    partitioning = Partitioning("REG", 4, 2, "REG")
    partitioning.leave_more_room(9)
    assert partitioning.num_parts == 7
    partitioning.leave_more_room(8)
    assert partitioning.num_parts == 8


def test_without_an_error_nobody_asks_for_more_room(full_batch: FullBatch) -> None:
    partitioning = Partitioning("range", 4, 0, "range")
    model = fragile_model()
    trainer_of(full_batch, partitioning, 3).train_epoch(model, torch.optim.SGD(model.parameters(), lr=0.1), 0, 0)
    assert partitioning.num_parts == 4


@pytest.mark.usefixtures("no_garbage_collection")
def test_let_go_frees_what_the_causes_of_an_error_hold() -> None:
    references = []

    def hold_and_fail(error: Exception) -> None:
        tensor = torch.zeros(3)
        references.append(weakref.ref(tensor))
        raise error

    def fail_twice() -> None:
        try:
            hold_and_fail(ValueError())
        except ValueError:
            hold_and_fail(MemoryError())

    with pytest.raises(MemoryError) as caught:
        fail_twice()
    assert all(reference() is not None for reference in references)
    let_go(caught.value)
    assert [reference() for reference in references] == [None, None]


def parameters_with(gradients: Sequence[float | None]) -> list[torch.nn.Parameter]:
    parameters = [torch.nn.Parameter(torch.ones(())) for _ in gradients]
    for parameter, gradient in zip(parameters, gradients, strict=True):
        parameter.grad = None if gradient is None else torch.tensor(gradient)
    return parameters


def test_gradients_are_added_where_there_are_some() -> None:
    parameters = parameters_with([None, 2.0, 3.0, None])
    with all_gradients_or_none(parameters):
        (5 * parameters[0] + 7 * parameters[1]).backward()
    assert [parameter.grad for parameter in parameters] == [5.0, 9.0, 3.0, None]


def test_after_an_error_the_gradients_are_the_same_tensors_as_before() -> None:
    parameters = parameters_with([None, 2.0, 3.0])
    before = [parameter.grad for parameter in parameters]

    def fail_after_backward() -> None:
        with all_gradients_or_none(parameters):
            sum(parameters).backward()
            raise MemoryError

    with pytest.raises(MemoryError):
        fail_after_backward()
    assert all(parameter.grad is gradient for parameter, gradient in zip(parameters, before, strict=True))
    assert [parameter.grad for parameter in parameters] == [None, 2.0, 3.0]


def background_threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name.startswith("one-ahead")]


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("place", ["load", "forward 1", "backward 1"])
def test_a_step_survives_the_gpus_own_error(full_batch: FullBatch, place: str) -> None:
    device = torch.device("cuda")
    once = Once(place, 2, lambda: torch.empty(1 << 50, device=device))
    features = torch.randn(int(full_batch.input_ids.max()) + 1, NUM_FEATURES, dtype=torch.float64)
    labels = torch.zeros(len(features), dtype=torch.int64)

    class Loader(DeviceLoader):
        def load(self, batch: MicroBatch, prepare_s: float) -> LoadedBatch:
            loaded = super().load(batch, prepare_s)
            once("load", batch.output_ids.tolist())
            return loaded

    gradients = []
    for model, num_parts in [(fragile_model(), 1), (fragile_model(once), 4)]:
        model = model.to(device)
        parts = partition(full_batch, num_parts, "range")
        with dropout_key(model, DROPOUT_KEY):
            accumulate_gradients(model, full_batch, parts, Loader(features, labels, device))
        gradients.append([parameter.grad for parameter in model.parameters()])
    assert once.failed_outputs
    for whole, split in zip(*gradients, strict=True):
        torch.testing.assert_close(split, whole, rtol=1e-10, atol=1e-12)
