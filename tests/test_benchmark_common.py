import importlib.util
import time
from pathlib import Path
from types import ModuleType

import pytest
import torch

COMMON = Path(__file__).parents[1] / "scripts" / "benchmark" / "common.py"


@pytest.fixture(scope="module")
def common() -> ModuleType:
    spec = importlib.util.spec_from_file_location("benchmark_common", COMMON)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_peak_is_the_most_that_is_alive_at_one_time(common):
    def work() -> None:
        first = torch.empty(1_000_000, dtype=torch.uint8)
        second = torch.empty(3_000_000, dtype=torch.uint8)
        del first
        third = torch.empty(500_000, dtype=torch.uint8)
        del second, third

    assert common.peak_tensor_bytes(work) == pytest.approx(4_000_000, abs=1000)


def test_peak_leaves_out_what_was_there_before(common):
    there_before = [torch.empty(5_000_000, dtype=torch.uint8)]

    def work() -> None:
        there_before.clear()
        torch.empty(1_000_000, dtype=torch.uint8)

    assert common.peak_tensor_bytes(work) == pytest.approx(1_000_000, abs=1000)
    assert common.peak_tensor_bytes(lambda: None) == 0


def test_compared_times_are_medians_of_each_work(common):
    slow, fast = common.compare_seconds(lambda: time.sleep(0.03), lambda: time.sleep(0.001), repetitions=3)
    assert 0.03 <= slow < 0.3
    assert 0.001 <= fast < slow
