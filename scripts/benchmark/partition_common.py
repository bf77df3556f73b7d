"""What the benchmarks of partitioning share: graphs, methods, the model to estimate, and figures to reach."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from common import markdown_table
from torch import Tensor

from betty import FullBatch, GraphSAGE
from betty.datasets import Dataset, graph_fingerprint
from betty.full_batch import Recipe
from betty.micro_batch_train import METHODS
from betty.micro_batch_train.graph_partitioner import DEFAULT_METHOD, Partitioner, PartitionProblem
from betty.micro_batch_train.locality_order import LocalityOrder, stored_order
from betty.micro_batch_train.plan import Estimate

GRAPHS = ("tolokers", "cora", "citeseer", "synthetic-arxiv")
FAN_OUTS = (10, 25)
NUM_HIDDEN = 64
SEEDS = (1236, 1237, 1238)
"""Of sampling and of partitioning."""

REFERENCE = "REG"
TESTED = DEFAULT_METHOD
"""The method that the figures to reach are of."""

METHODS_TO_COMPARE = tuple(
    method for method in dict.fromkeys([REFERENCE, "hypergraph", "locality", TESTED]) if method in METHODS
)

SETTING = f"{len(FAN_OUTS)}-layer mean GraphSAGE, {NUM_HIDDEN} hidden channels, fan-outs {','.join(map(str, FAN_OUTS))}"


def chosen_graphs(graphs: tuple[str, ...] = GRAPHS) -> list[str]:
    """The graphs that ``$ONLY`` names, or else the given ones. It may name others, and paths of ``.npz`` graphs."""
    return os.environ.get("ONLY", "").split() or list(graphs)


def label(graph: str) -> str:
    """What a graph is called in a table: of a path, the file's name."""
    return Path(graph).stem


def graph_sage(num_features: int, num_classes: int) -> GraphSAGE:
    torch.manual_seed(0)
    return GraphSAGE(num_features, NUM_HIDDEN, num_classes, len(FAN_OUTS), "mean", dropout=0.5)


def model_of(dataset: Dataset) -> GraphSAGE:
    return graph_sage(dataset.num_features, dataset.num_classes)


def timed_parts(
    full_batch: FullBatch,
    num_parts: int,
    method: str,
    seed: int,
    estimate: Estimate | None,
    leaves: Tensor | None = None,
) -> tuple[list[Tensor], float]:
    """Parts that are made from nothing, or from the leaves of a known order, and the seconds that took."""
    start = time.perf_counter()
    parts = Partitioner(PartitionProblem(full_batch, seed, estimate, leaves), method).parts(num_parts)
    return parts, time.perf_counter() - start


def order_of(dataset: Dataset, seed: int) -> LocalityOrder:
    """The order that training makes once for a data set, made anew."""
    with tempfile.TemporaryDirectory() as folder:
        recipe = Recipe.of(dataset.name, graph_fingerprint(dataset.graph), dataset.train_ids, FAN_OUTS, seed)
        return stored_order(dataset, recipe, Path(folder))


def measured_alone(script: str, *arguments: object) -> dict[str, float]:
    """What a script of this folder prints, a JSON object, in a process of its own."""
    words = [sys.executable, str(Path(script).resolve()), *map(str, arguments)]
    process = subprocess.run(words, stdout=subprocess.PIPE)
    if process.returncode:
        sys.exit(process.returncode)  # it has said why
    return json.loads(process.stdout)


@dataclass(frozen=True)
class Figure:
    """A figure to reach.

    Args:
        name: what is measured.
        bound: the most that it may be.
        measured: by where it was measured; the largest counts.
        unit: of all of these.
        digits: behind the point.
    """

    name: str
    bound: float
    measured: Mapping[str, float]
    unit: str = ""
    digits: int = 3

    def row(self) -> list[str]:
        required = f"≤ {self.bound:g}{self.unit}"
        if not self.measured:
            return [self.name, required, "nothing to measure", "", ""]
        where, value = max(self.measured.items(), key=lambda item: item[1])
        return [
            self.name,
            required,
            f"{value:.{self.digits}f}{self.unit}",
            where,
            "yes" if value <= self.bound else "no",
        ]


def figure_table(figures: Iterable[Figure], method: str = TESTED) -> str:
    header = [f"{method}: figure", "required", "measured", "worst case", "reached"]
    return markdown_table(header, [figure.row() for figure in figures])


def geometric_mean(values: Iterable[float]) -> float:
    logarithms = [math.log(value) for value in values]
    return math.exp(math.fsum(logarithms) / len(logarithms))


def provenance(machine: str, section: str) -> str:
    """One line to stand below the tables: where they come from, and how to print them again."""
    only = f"ONLY='{os.environ['ONLY']}' " if os.environ.get("ONLY") else ""
    threads = f"{torch.get_num_threads()} thread{'s' if torch.get_num_threads() > 1 else ''}"
    return f"`{only}./scripts/benchmark_partition.sh {section}`; {threads}; {machine}"
