import importlib.util
import os
import subprocess
import sys
import time
from pathlib import Path
from types import ModuleType

import numpy as np
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


def test_peak_resident_memory_is_of_the_process_and_not_of_what_started_it():
    more_than_a_process_starts_with = np.ones(1 << 30, dtype=np.uint8)
    measures_itself = """
import common, numpy
before = common.peak_resident_bytes()
numpy.ones(100_000_000, dtype=numpy.uint8)
print(before, common.peak_resident_bytes() - before)
"""
    folders = [str(COMMON.parent), os.environ.get("PYTHONPATH", ""), str(COMMON.parents[2] / "pytorch")]
    process = subprocess.run(
        [sys.executable, "-c", measures_itself],
        env=os.environ | {"PYTHONPATH": os.pathsep.join(folders)},
        check=True,
        capture_output=True,
    )
    before, added = map(int, process.stdout.split())
    assert before < more_than_a_process_starts_with.nbytes
    assert added == pytest.approx(100_000_000, rel=0.1)
