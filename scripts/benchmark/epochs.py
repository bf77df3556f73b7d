"""Epoch times of the main job, by aggregator; with ``BEFORE=folder``, those of another checkout of the project too."""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from common import DATA_ROOT, PROJECT, dataset_name, describe_machine, markdown_table
from tqdm import tqdm

FAN_OUTS = "10,25"
NUM_HIDDEN = 128
NUM_PARTS = 8
NUM_EPOCHS = {
    "synthetic-arxiv": {"mean": 3, "sum": 3, "gcn": 3, "pool": 3, "lstm": 2},
    "tolokers": {"mean": 3, "sum": 3, "gcn": 3, "pool": 3, "lstm": 3},
}
"""By graph and aggregator. The first epoch does not count."""

FLAGS = {
    "--data-root": DATA_ROOT,
    "--fan-out": FAN_OUTS,
    "--num-layers": 2,
    "--num-hidden": NUM_HIDDEN,
    "--dropout": 0.5,
    "--num-batch": NUM_PARTS,
    "--selection-method": "range",
}


@dataclass(frozen=True)
class EpochTime:
    """Medians over epochs, in seconds.

    Args:
        compute: forward and backward of all micro-batches.
        epoch: everything.
    """

    compute: float
    epoch: float


def checkouts() -> dict[str, Path]:
    """The folders to measure: the one that ``$BEFORE`` names, if it does, and this one."""
    if not os.environ.get("BEFORE"):
        return {"now": PROJECT}
    before = Path(os.environ["BEFORE"]).resolve()
    if not (before / "pytorch" / "betty").is_dir():
        sys.exit(f"error: BEFORE={before} is no checkout of the project: there is no pytorch/betty in it")
    return {"before": before, "now": PROJECT}


def measure(project: Path, graph: str, aggregator: str) -> EpochTime:
    """Train with the command line of a checkout."""
    num_epochs = NUM_EPOCHS[graph][aggregator]
    flags = FLAGS | {"--dataset": dataset_name(graph), "--aggre": aggregator, "--num-epochs": num_epochs}
    with tempfile.TemporaryDirectory(dir=PROJECT / "results") as folder:
        words = [str(word) for flag in (flags | {"--output": folder}).items() for word in flag]
        subprocess.run(
            [sys.executable, "-m", "betty.micro_batch_train", *words, "--quiet"],
            check=True,
            # Nothing but that checkout's modules, lest another's come first.
            env=os.environ | {"PYTHONPATH": str(project / "pytorch")},
        )
        lines = (Path(folder) / "metrics.jsonl").read_text().splitlines()
    epochs = [json.loads(line) for line in lines][1:]
    return EpochTime(*(statistics.median(epoch[name] for epoch in epochs) for name in ("compute_s", "epoch_s")))


def with_ratio(seconds: list[float]) -> list[str]:
    """Cells of the table: the times, and how many times faster the last is than the first where there are two."""
    ratio = [f"{seconds[0] / seconds[-1]:.2f}"] if len(seconds) > 1 else []
    return [*(f"{value:.2f}" for value in seconds), *ratio]


def main() -> None:
    projects = checkouts()
    (PROJECT / "results").mkdir(exist_ok=True)
    cases = [(graph, aggregator) for graph, aggregators in NUM_EPOCHS.items() for aggregator in aggregators]
    rows = []
    for case in tqdm(cases, leave=False):
        times = [measure(project, *case) for project in projects.values()]
        compute, epoch = ([getattr(time, name) for time in times] for name in ("compute", "epoch"))
        rows.append([*case, *with_ratio(compute), *with_ratio(epoch)])

    ratio = ["ratio"] if len(projects) > 1 else []
    columns = [[*(f"{name}, {when} (s)" for when in projects), *ratio] for name in ("compute", "epoch")]
    setting = f"{NUM_HIDDEN} channels, fan-outs {FAN_OUTS}, {NUM_PARTS} micro-batches by range"
    print(f"### Epochs of a 2-layer GraphSAGE: {setting}\n")
    print(markdown_table(["graph", "aggregator", *columns[0], *columns[1]], rows))
    print(f"\nMedians of the epochs after the first, of 3; of 2 for the LSTM on synthetic-arxiv. {describe_machine()}")


if __name__ == "__main__":
    main()
