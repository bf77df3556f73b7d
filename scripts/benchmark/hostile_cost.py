"""What checking and watching cost: whole commands of this checkout and, with ``BEFORE=folder``, of another; loading."""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from unittest.mock import patch

from common import DATA_ROOT, compare_seconds, describe_machine, markdown_table
from epochs import checkouts
from tqdm import tqdm

from betty import load_dataset, partition, sample_full_batch, split
from betty.envelope import SealedTensors

GRAPH = "synthetic-arxiv"
REPETITIONS = 5
LOADS = 20
TRAINING = (
    *("betty.micro_batch_train", "--dataset", GRAPH, "--full-batch-root", "batches", "--quiet"),
    *("--num-batch", "8", "--num-hidden", "64", "--overwrite", "--output", "run"),
)
COMMANDS = {
    "make the data set, the order, a full batch": ("betty.full_batch", "--dataset", GRAPH, "--num-epochs", "1"),
    "store no more full batches": ("betty.full_batch", "--dataset", GRAPH, "--num-epochs", "1"),
    "train 1 epoch": (*TRAINING, "--num-epochs", "1"),
    "train 5 epochs": (*TRAINING, "--num-epochs", "5"),
    "train 1 epoch, evaluate": (*TRAINING, "--num-epochs", "1", "--eval"),
    "resume a finished run": (*TRAINING[:-3], "--resume", "--output", "run", "--num-epochs", "1", "--eval"),
}
"""In this order: the later ones need what the earlier ones store."""

PLACES = {"--data-root": "data", "--full-batch-root": "batches"}


def seconds(project: Path, folder: Path, command: Sequence[str]) -> float:
    """The time of one command of a checkout, from the start of Python to its end."""
    module, *arguments = command
    places = [word for flag in PLACES.items() if flag[0] not in arguments for word in flag]
    start = time.perf_counter()
    subprocess.run(
        [sys.executable, "-m", module, *arguments, *places],
        check=True,
        cwd=folder,
        stderr=subprocess.DEVNULL,
        # Nothing but that checkout's modules, lest another's come first.
        env=os.environ | {"PYTHONPATH": str(project / "pytorch")},
    )
    return time.perf_counter() - start


def measure(projects: dict[str, Path]) -> dict[str, list[list[float]]]:
    """Per command the times of every checkout; checkouts take turns, and which is first does so too."""
    times: dict[str, list[list[float]]] = {name: [[] for _ in projects] for name in COMMANDS}
    for repetition in tqdm(range(REPETITIONS), leave=False):
        with TemporaryDirectory() as first, TemporaryDirectory() as second:
            places = list(enumerate(zip(projects.values(), (Path(first), Path(second)), strict=False)))
            for name, command in COMMANDS.items():
                for number, (project, folder) in places if repetition % 2 == 0 else reversed(places):
                    times[name][number].append(seconds(project, folder, command))
    return times


def row(name: str, times: list[list[float]]) -> list[str]:
    medians = [f"{statistics.median(its_times):.2f}" for its_times in times]
    if len(times) == 1:
        return [name, *medians]
    ratios = sorted(now / before for before, now in zip(*times, strict=True))
    return [name, *medians, f"{statistics.median(ratios):.3f}", f"{ratios[0]:.3f} to {ratios[-1]:.3f}"]


def load_and_gather() -> None:
    """From the files of a stored data set to the features of the first micro-batch."""
    dataset = load_dataset(GRAPH, DATA_ROOT)
    full_batch = sample_full_batch(dataset.graph, dataset.train_ids, fan_outs=[10, 25], seed=1236, epoch=0)
    first = split(full_batch, partition(full_batch, num_parts=8, method="range"))[0]
    dataset.features.index_select(0, first.input_ids)


def load_and_gather_unchecked() -> None:
    """The same, with every checksum taken for right."""
    with patch.object(SealedTensors, "__getitem__", lambda file, name: file.unchecked[name]):
        load_and_gather()


def main() -> None:
    projects = checkouts()
    rows = [row(name, times) for name, times in measure(projects).items()]
    ratio = ["now ÷ before", "from … to"] if len(projects) > 1 else []
    print(f"### What checking and watching cost: commands on {GRAPH}\n")
    print(markdown_table(["command", *(f"{when} (s)" for when in projects), *ratio], rows))
    checked, unchecked = compare_seconds(load_and_gather, load_and_gather_unchecked, LOADS)
    print(f"\nLoading {GRAPH}, until the features of the first of 8 micro-batches are gathered: {checked:.3f} s;")
    print(f"without checking a checksum {unchecked:.3f} s, a ratio of {checked / unchecked:.3f}.")
    print(f"\nMedians of {REPETITIONS} and {LOADS}, ratios of pairs that take turns. {describe_machine()}")


if __name__ == "__main__":
    main()
