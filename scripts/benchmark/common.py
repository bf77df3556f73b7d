"""What the benchmarks share: their graphs, their clock, and tables for the README."""

from __future__ import annotations

import os
import platform
import re
import statistics
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import torch

from betty import PeakMemory, load_dataset
from betty.datasets import Dataset

PROJECT = Path(__file__).parents[2]
GRAPHS = Path(os.environ.get("GRAPHS", PROJECT.parent / "shared" / "data"))
DATA_ROOT = PROJECT / "data"
REAL_GRAPHS = ("cora", "citeseer", "tolokers")


def dataset_name(graph: str) -> str:
    """What Betty calls a graph: the path of a real one in ``$GRAPHS``, or the name of a synthetic one."""
    return str(GRAPHS.resolve() / f"{graph}.npz") if graph in REAL_GRAPHS else graph


def load_graph(name: str) -> Dataset:
    """A real graph from ``$GRAPHS``, or a synthetic one."""
    return load_dataset(dataset_name(name), DATA_ROOT)


def median_seconds(work: Callable[[], object], repetitions: int = 5) -> float:
    """The median time of a piece of work, after one run that does not count."""
    work()
    times = []
    for _ in range(repetitions):
        start = time.perf_counter()
        work()
        times.append(time.perf_counter() - start)
    return statistics.median(times)


def compare_seconds(
    work: Callable[[], object], reference: Callable[[], object], repetitions: int = 5
) -> tuple[float, float]:
    """The median times of two pieces of work that take turns, after one run of each that does not count."""
    times: tuple[list[float], list[float]] = ([], [])
    for _ in range(repetitions + 1):
        for one, its_times in zip((work, reference), times, strict=True):
            start = time.perf_counter()
            one()
            its_times.append(time.perf_counter() - start)
    return statistics.median(times[0][1:]), statistics.median(times[1][1:])


def peak_tensor_bytes(work: Callable[[], object]) -> int:
    """The most memory on the CPU that a piece of work has allocated for tensors at one time, and not yet freed."""
    with PeakMemory("cpu") as meter:
        work()
    return meter.peak_bytes


def peak_resident_bytes() -> int:
    """The most memory of this process that was resident so far.

    It is Linux's ``VmHWM``. ``getrusage`` tells the same, but of a process that another one started never less than
    that other one had.
    """
    status = Path("/proc/self/status").read_text()
    return 1024 * int(re.search(r"^VmHWM:\s+(\d+) kB$", status, re.MULTILINE)[1])


def describe_machine() -> str:
    """One line to stand below a table."""
    device = torch.cuda.get_device_name() if torch.cuda.is_available() else "no GPU"
    return f"{os.cpu_count()} cores ({platform.machine()}), {device}, PyTorch {torch.__version__}"


def markdown_table(header: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """A table as it stands in the README."""
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join(f"| {' | '.join(map(str, line))} |" for line in lines)


def spread(values: Sequence[float], digits: int = 3) -> str:
    """Mean ± standard deviation."""
    return f"{statistics.fmean(values):.{digits}f} ± {statistics.stdev(values):.{digits}f}"
