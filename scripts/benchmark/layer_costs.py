"""Estimated against measured seconds of micro-batches, forward and backward.

A choice between schedules only compares estimates: what counts is how far the ratios of one model are from their
geometric mean. What is measured is the time of one thread on the processor, which other programs disturb the least.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from itertools import groupby

import torch
from common import describe_machine, load_graph, markdown_table
from memory_common import CPU, SEED, loader_of, new_model
from tqdm import tqdm

from betty import partition, sample_full_batch
from betty.cost import Speed, Work, measured_speed
from betty.datasets import Dataset
from betty.device_loader import LoadedBatch
from betty.micro_batch_train import MicroBatchLoader
from betty.models.layered_model import LayeredModel

GRAPH = "synthetic-arxiv"
NUM_HIDDEN = {"mean": 64, "pool": 64, "lstm": 16, "GAT": 16}
FAN_OUTS = [10, 25, 30]
MOST_LAYERS = {"lstm": 2}
NUM_PARTS = (1, 4, 16)
REPETITIONS = 3
WORST_RATIO = 1.25


@dataclass(frozen=True)
class Case:
    """Seconds of a micro-batch: (forward, backward)."""

    model: str
    num_layers: int
    num_parts: int
    estimate: tuple[float, float]
    measured: tuple[float, float]

    @property
    def ratio(self) -> float:
        return sum(self.estimate) / sum(self.measured)

    def row(self, mean: float) -> list[str]:
        times = zip(self.estimate, self.measured, strict=True)
        cells = [f"{1e3 * estimate:.1f} / {1e3 * measured:.1f}" for estimate, measured in times]
        return [self.model, str(self.num_layers), f"1/{self.num_parts}", *cells, f"{self.ratio / mean:.2f}"]


def first_micro_batch(dataset: Dataset, num_layers: int, num_parts: int) -> LoadedBatch:
    full_batch = sample_full_batch(dataset.graph, dataset.train_ids, FAN_OUTS[:num_layers], seed=SEED)
    parts = partition(full_batch, num_parts, "random", SEED)
    with closing(MicroBatchLoader(full_batch, parts, loader_of(dataset)).load(parts[:1])) as loading:
        return next(loading)


def best_seconds(model: LayeredModel, loaded: LoadedBatch) -> tuple[float, float]:
    """The least seconds of a forward and of a backward, without the loss."""
    forward, backward = [], []
    for _ in range(1 + REPETITIONS):
        start = time.process_time()
        logits = model(loaded.batch.blocks, loaded.features)
        forward.append(time.process_time() - start)
        gradient = torch.ones_like(logits)
        start = time.process_time()
        logits.backward(gradient)
        backward.append(time.process_time() - start)
    return min(forward[1:]), min(backward[1:])


def estimated_seconds(model: LayeredModel, loaded: LoadedBatch, speed: Speed) -> tuple[float, float]:
    work = sum((model.layer_work(*layer) for layer in enumerate(loaded.batch.blocks)), start=Work())
    return speed.seconds_forward(work), speed.seconds_backward(work)


def all_cases(speed: Speed) -> Iterator[Case]:
    dataset = load_graph(GRAPH)
    for num_layers in range(1, 1 + len(FAN_OUTS)):
        for num_parts in NUM_PARTS:
            loaded = first_micro_batch(dataset, num_layers, num_parts)
            for name, num_hidden in NUM_HIDDEN.items():
                if num_layers <= MOST_LAYERS.get(name, num_layers):
                    model = new_model(name, dataset, num_layers, num_hidden)
                    estimate = estimated_seconds(model, loaded, speed)
                    yield Case(name, num_layers, num_parts, estimate, best_seconds(model, loaded))


def main() -> None:
    torch.set_num_threads(1)
    speed = measured_speed(CPU)
    cases = sorted(tqdm(all_cases(speed), leave=False), key=lambda case: list(NUM_HIDDEN).index(case.model))
    print(f"### Seconds of micro-batches of {GRAPH}, estimated / measured\n")
    rows, summary = [], []
    for model, of_model in groupby(cases, key=lambda case: case.model):
        its_cases = list(of_model)
        mean = statistics.geometric_mean(case.ratio for case in its_cases)
        rows += [case.row(mean) for case in its_cases]
        worst = max(max(case.ratio / mean, mean / case.ratio) for case in its_cases)
        summary.append([model, NUM_HIDDEN[model], f"{mean:.2f}", f"{worst:.2f}", worst <= WORST_RATIO])
    header = ["model", "layers", "part", "forward (ms)", "backward (ms)", "ratio ÷ mean"]
    print(markdown_table(header, rows))
    print()
    header = ["model", "hidden", "mean ratio", "furthest from the mean", f"within {WORST_RATIO}"]
    print(markdown_table(header, summary))
    print(f"\nBest of {REPETITIONS}, one thread. {describe_machine()}")


if __name__ == "__main__":
    main()
