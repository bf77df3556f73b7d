"""Errors that say that memory ran out, as libraries raise them where they can be made to, else in their words."""

import errno
import mmap
import os
import resource
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from betty.errors import BettyError
from betty.memory.shortage import explain_shortage, is_mended_by_smaller_batches

HOST = "this machine is out of memory; "
DEVICE = "the device is out of memory; "
THREAD = "this machine has no memory for one more thread"
LIBRARY = "a library cannot be loaded, most likely for want of memory"
TOO_MUCH = 1 << 60


def raised_by(action: Callable[[], object]) -> Exception:
    with pytest.raises(Exception) as raised:  # noqa: PT011
        action()
    return raised.value


@pytest.mark.parametrize(
    ("action", "is_mended"),
    [
        (lambda: torch.empty(TOO_MUCH, dtype=torch.int8), True),
        (lambda: np.empty(TOO_MUCH, dtype=np.int8), True),
        (lambda: bytearray(TOO_MUCH), True),
        (lambda: mmap.mmap(-1, TOO_MUCH), False),
    ],
)
def test_real_errors_of_the_host_are_told(action: Callable[[], object], is_mended: bool) -> None:
    error = raised_by(action)
    assert explain_shortage(error).startswith(HOST)
    assert is_mended_by_smaller_batches(error) == is_mended


ONEDNN = "could not create a primitive descriptor for the LSTM forward propagation primitive. Run workload with …"


@pytest.mark.parametrize(
    ("error", "message", "is_mended"),
    [
        (torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB."), DEVICE, True),
        (RuntimeError("CUDA error: out of memory\nCUDA kernel errors might be …"), DEVICE, True),
        (RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"), DEVICE, True),
        (RuntimeError("cuDNN error: CUDNN_STATUS_INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED"), DEVICE, True),
        (RuntimeError("could not create a primitive"), HOST, True),
        (RuntimeError(ONEDNN), HOST, True),
        (RuntimeError("could not execute a primitive"), HOST, True),
        (RuntimeError("std::bad_alloc"), HOST, True),
        (RuntimeError("unable to mmap 4096 bytes from file <x>: Cannot allocate memory (12)"), HOST, True),
        (SystemError("error return without exception set"), HOST, False),
        (RuntimeError("can't start new thread"), THREAD, False),
        (RuntimeError("Resource temporarily unavailable"), THREAD, False),
        (BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN)), THREAD, False),
        (OSError("libtorch_cpu.so: failed to map segment from shared object"), LIBRARY, False),
        (ImportError("advice\n_csr.so: failed to map segment from shared object\nmore advice"), LIBRARY, False),
    ],
)
def test_what_libraries_say_is_told(error: Exception, message: str, is_mended: bool) -> None:
    told = explain_shortage(error)
    assert told.startswith(message)
    assert "\n" not in told
    assert is_mended_by_smaller_batches(error) == is_mended


@pytest.mark.parametrize(
    "error",
    [
        RuntimeError("CUDA error: an illegal memory access was encountered"),
        RuntimeError("mat1 and mat2 shapes cannot be multiplied"),
        OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)),
        FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), "out of memory"),
        ImportError("No module named 'x'"),
        SystemError("bad argument to internal function"),
        BettyError("one output node is out of memory even as a micro-batch of its own"),
    ],
)
def test_other_errors_are_not(error: Exception) -> None:
    assert explain_shortage(error) is None
    assert not is_mended_by_smaller_batches(error)


def test_an_error_that_a_shortage_was_taken_for_is_told_as_the_shortage() -> None:
    error = BettyError("features.npy does not load; download it again")
    error.__cause__ = MemoryError()
    assert explain_shortage(error).startswith(HOST)
    assert "features.npy" in explain_shortage(error)


@pytest.mark.skipif(sys.platform != "linux", reason="needs a limit on address space")
@pytest.mark.parametrize("aggregator", ["mean", "lstm"])
@pytest.mark.parametrize("kilobytes", [300_000, 1_300_000])
def test_under_a_limit_a_training_ends_well_or_in_one_line(tmp_path: Path, kilobytes: int, aggregator: str) -> None:
    limit = (kilobytes * 1024, kilobytes * 1024)
    flags = ["--dataset", "synthetic-tiny", "--aggre", aggregator, "--num-hidden", "128", "--num-batch", "2"]
    done = subprocess.run(
        [sys.executable, "-m", "betty.micro_batch_train", *flags, "--quiet"],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(Path(__file__).parents[2] / "pytorch")},
        capture_output=True,
        text=True,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_AS, limit),
    )
    assert "Traceback" not in done.stderr
    if done.returncode == 0:
        assert (tmp_path / "results" / "micro_batch_train" / "summary.json").exists()
    else:
        assert done.returncode == 2
        assert done.stderr.count("python -m betty.micro_batch_train: error: ") == 1
        assert done.stderr.splitlines()[-1].startswith("python -m betty.micro_batch_train: error: ")
