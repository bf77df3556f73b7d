import itertools
import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.profiler import ProfilerActivity, profile

import betty
from betty import BettyError, GraphSAGE, PeakMemory
from betty.device_loader import DeviceLoader, one_ahead
from betty.memory import counted, uncounted
from betty.micro_batch_train.block_dataloader import MicroBatchLoader
from tests.random_blocks import random_full_batch

CPU = torch.device("cpu")


def megabytes(count: int) -> torch.Tensor:
    return torch.empty(count * 1_000_000, dtype=torch.uint8)


def in_thread(work) -> None:
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()


def test_peak_is_the_most_that_is_alive_at_one_time():
    with PeakMemory("cpu") as meter:
        first, second = megabytes(1), megabytes(3)
        del first
        third = megabytes(1) if second.numel() else None
        del second, third
        fourth = megabytes(2)
    assert meter.peak_bytes == 4_000_000
    del fourth


def test_peak_leaves_out_what_was_there_before():
    there_before = [torch.ones(5_000_000, dtype=torch.uint8)]
    with PeakMemory() as meter:
        there_before.clear()
        megabytes(1)
    assert meter.peak_bytes == 1_000_000


def test_nothing_allocated_is_a_peak_of_nothing():
    with PeakMemory(CPU) as meter:
        pass
    assert meter.peak_bytes == 0


def test_temporaries_inside_of_a_kernel_count():
    x = torch.randn(1000, 1000)
    with PeakMemory() as meter:
        x.sort(dim=0)
    assert meter.peak_bytes > 1_000_000 * (4 + 8)


@pytest.mark.parametrize("aggre", ["mean", "pool", "lstm"])
def test_training_step_agrees_with_the_newer_profiler(aggre):
    full_batch = random_full_batch([400, 150, 60], 8, seed=1)
    model, x = GraphSAGE(32, 16, 5, 2, aggre), torch.randn(400, 32)

    def step() -> None:
        model(full_batch.blocks, x).sum().backward()
        model.zero_grad()

    step()
    with PeakMemory() as meter:
        step()
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiled:
        step()
    changes = [event for event in profiled.profiler.kineto_results.events() if event.name() == "[memory]"]
    changes.sort(key=lambda event: event.start_ns())
    assert meter.peak_bytes == pytest.approx(max(itertools.accumulate(e.nbytes() for e in changes)), rel=0.01)


def test_other_threads_count_where_they_run_counted_work():
    kept = []

    def work() -> None:
        kept.append(megabytes(5))
        megabytes(10)

    with PeakMemory() as meter:
        mine = megabytes(2)
        in_thread(counted(work))
        mine = megabytes(1)
        kept.clear()  # allocated there, freed here
        megabytes(8)
    assert meter.peak_bytes == 17_000_000
    assert mine.numel() == 1_000_000


def test_a_thread_from_before_the_meter_counts():
    start = threading.Event()

    def wait_and_work() -> None:
        start.wait()
        counted(megabytes)(3)

    thread = threading.Thread(target=wait_and_work)
    thread.start()
    with PeakMemory() as meter:
        start.set()
        thread.join()
    assert meter.peak_bytes == 3_000_000


def test_other_threads_are_left_out_where_they_do_not():
    with PeakMemory() as meter:
        in_thread(lambda: megabytes(3))
    assert meter.peak_bytes == 0


def test_counted_work_in_the_thread_of_the_meter_counts_once():
    with PeakMemory() as meter:
        result = counted(megabytes)(2)
    assert meter.peak_bytes == 2_000_000
    assert counted(lambda a, b: a + b)(1, b=2) == 3
    assert result.numel() == 2_000_000


def test_what_is_loaded_one_ahead_counts():
    with PeakMemory() as meter:
        for loaded in one_ahead(megabytes, [5, 3, 4, 1]):
            del loaded
    assert 5_000_000 <= meter.peak_bytes <= 8_000_000


def test_features_that_the_loader_gathers_count():
    full_batch = random_full_batch([300, 40], 6, seed=0)
    features, labels = torch.randn(3000, 500), torch.zeros(3000, dtype=torch.int64)
    loader = MicroBatchLoader(full_batch, list(torch.arange(40).chunk(2)), DeviceLoader(features, labels, CPU))
    with PeakMemory() as meter:
        batches = list(loader)
    gathered = sum(loaded.features.nbytes for loaded in batches)
    assert gathered <= meter.peak_bytes < 1.1 * gathered


def test_backward_pass_counts():
    x = torch.randn(1000, 1000, requires_grad=True)
    with PeakMemory() as meter:
        (2 * x).square().sum().backward()
    assert meter.peak_bytes >= 3 * x.nbytes  # 2 * x, the gradient of that, and the gradient of x


def test_uncounted_work_does_not_count_in_other_threads_either():
    kept = []

    def allocate() -> None:
        kept.append(megabytes(5))

    with PeakMemory() as meter:
        with uncounted():
            allocate()
            in_thread(counted(allocate))
        in_thread(counted(lambda: kept.append(megabytes(1))))
    assert meter.peak_bytes == 1_000_000


def test_splitting_for_a_plan_does_not_count():
    full_batch = random_full_batch([200_000, 600, 60], 8, seed=1)  # large enough to be split by other threads
    parts = list(torch.arange(60).split(15))
    with PeakMemory() as meter, uncounted():
        assert len(betty.split(full_batch, parts)) == 4
    assert meter.peak_bytes == 0


def test_a_second_meter_of_the_device_is_refused_and_the_first_goes_on():
    with PeakMemory() as meter:
        with pytest.raises(BettyError, match="running already"), PeakMemory():
            pass
        megabytes(1)
    assert meter.peak_bytes == 1_000_000


def test_a_running_profiler_is_refused():
    with (
        profile(activities=[ProfilerActivity.CPU]),
        pytest.raises(BettyError, match="profiler, which is running"),
        PeakMemory(),
    ):
        pass


def test_a_meter_can_be_used_again_after_an_error():
    meter = PeakMemory()
    with pytest.raises(ZeroDivisionError), meter:
        raise ZeroDivisionError
    with meter:
        megabytes(1)
    assert meter.peak_bytes == 1_000_000
    assert not torch.autograd._profiler_enabled()


def test_peak_before_the_end_is_refused():
    with PeakMemory() as meter, pytest.raises(BettyError, match="after it"):
        _ = meter.peak_bytes


def test_a_device_without_count_is_refused():
    with pytest.raises(BettyError, match="no device 'xyz'"):
        PeakMemory("xyz")
    with pytest.raises(BettyError, match="no device cuda:99"):
        PeakMemory("cuda:99")
    with pytest.raises(BettyError, match="not on meta"):
        PeakMemory("meta")


def test_measuring_prints_nothing():
    script = "import betty, torch\nwith betty.PeakMemory() as meter: torch.ones(9)\nassert meter.peak_bytes == 36"
    environment = os.environ | {"PYTHONPATH": str(Path(betty.__file__).parents[1])}
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, check=True, env=environment)
    assert (done.stdout, done.stderr) == (b"", b"")


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_cuda_counts_beyond_what_was_there():
    there_before = torch.empty(1 << 20, dtype=torch.uint8, device="cuda")
    with PeakMemory("cuda") as meter:
        torch.empty(3 << 20, dtype=torch.uint8, device="cuda")
        with pytest.raises(BettyError, match="running already"), PeakMemory("cuda:0"):
            pass
    assert meter.peak_bytes == 3 << 20
    assert there_before.numel() == 1 << 20
    layer = nn.Linear(64, 64).cuda()
    with PeakMemory(torch.device("cuda")) as meter:
        layer(torch.ones(128, 64, device="cuda")).sum().backward()
    assert meter.peak_bytes >= 2 * 128 * 64 * 4
