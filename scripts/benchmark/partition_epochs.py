"""How much of an epoch partitioning takes, and everything that is not computation."""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from common import DATA_ROOT, PROJECT, dataset_name, describe_machine, markdown_table
from partition_common import (
    FAN_OUTS,
    METHODS_TO_COMPARE,
    NUM_HIDDEN,
    SEEDS,
    SETTING,
    TESTED,
    Figure,
    chosen_graphs,
    figure_table,
    label,
    provenance,
)
from tqdm import tqdm

from betty.command_line import run_command

NUM_PARTS = 16
NUM_EPOCHS = 6
STEADY_GRAPHS = ("synthetic-arxiv",)
"""Where an epoch is to take little more than its computation: on small graphs all times are milliseconds."""

FLAGS = {
    "--data-root": DATA_ROOT,
    "--fan-out": ",".join(map(str, FAN_OUTS)),
    "--num-layers": len(FAN_OUTS),
    "--num-hidden": NUM_HIDDEN,
    "--aggre": "mean",
    "--num-batch": NUM_PARTS,
    "--num-epochs": NUM_EPOCHS,
    "--seed": SEEDS[0],
}


@dataclass(frozen=True)
class Training:
    """A run, by the objects of its epochs in ``metrics.jsonl``."""

    graph: str
    method: str
    epochs: Sequence[dict[str, float]]

    def steady(self, amount: Callable[[dict[str, float]], float]) -> float:
        """The median over the epochs after the first."""
        return statistics.median(map(amount, self.epochs[1:]))

    @property
    def partition_share(self) -> float:
        """Percent of an epoch."""
        return 100 * self.steady(lambda epoch: epoch["partition_s"] / epoch["epoch_s"])

    @property
    def over_compute(self) -> float:
        return self.steady(lambda epoch: epoch["epoch_s"] / epoch["compute_s"])

    def row(self) -> list[str]:
        first = self.epochs[0]
        seconds = [first["partition_s"], first["epoch_s"]]
        for name in ("partition_s", "epoch_s", "compute_s"):
            seconds.append(self.steady(lambda epoch, name=name: epoch[name]))
        cells = [f"{value:.3f}" for value in seconds]
        return [self.graph, self.method, *cells, f"{self.partition_share:.2f} %", f"{self.over_compute:.3f}"]


def train(graph: str, method: str) -> Training:
    """Train with the command line, in folders of its own, lest it find a partition that another run has stored."""
    with tempfile.TemporaryDirectory(dir=PROJECT / "results") as folder:
        own = {"--output": f"{folder}/run", "--full-batch-root": f"{folder}/full-batches"}
        flags = FLAGS | own | {"--dataset": dataset_name(graph), "--selection-method": method}
        words = [str(word) for flag in flags.items() for word in flag]
        subprocess.run([sys.executable, "-m", "betty.micro_batch_train", *words, "--quiet"], check=True)
        lines = (Path(folder) / "run" / "metrics.jsonl").read_text().splitlines()
    return Training(label(graph), method, [json.loads(line) for line in lines])


def figures(trainings: Sequence[Training]) -> list[Figure]:
    tested = [training for training in trainings if training.method == TESTED]
    return [
        Figure(
            "partition ÷ epoch, after the first",
            2,
            {training.graph: training.partition_share for training in tested},
            unit=" %",
            digits=2,
        ),
        Figure(
            f"epoch ÷ compute, after the first, on {', '.join(STEADY_GRAPHS)}",
            1.10,
            {training.graph: training.over_compute for training in tested if training.graph in STEADY_GRAPHS},
        ),
    ]


def main() -> None:
    (PROJECT / "results").mkdir(exist_ok=True)
    cases = [(graph, method) for graph in chosen_graphs() for method in METHODS_TO_COMPARE]
    trainings = [train(*case) for case in tqdm(cases, leave=False)]
    print(f"### Partitioning in training: {SETTING}, {NUM_PARTS} micro-batches\n")
    first = [f"first epoch: {name} (s)" for name in ("partition", "epoch")]
    after = [f"after it: {name} (s)" for name in ("partition", "epoch", "compute")]
    header = ["graph", "method", *first, *after, "partition ÷ epoch", "epoch ÷ compute"]
    print(markdown_table(header, [training.row() for training in trainings]))
    print(f"\nMedians of the {NUM_EPOCHS - 1} epochs after the first.\n")
    print(f"{figure_table(figures(trainings))}\n\n{provenance(describe_machine(), 'partition_epochs')}")


if __name__ == "__main__":
    run_command("partition_epochs", main)
