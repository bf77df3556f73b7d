"""What measuring peak memory does to the time of a training step on the CPU."""

from __future__ import annotations

from collections.abc import Callable

import torch
from common import compare_seconds, describe_machine, load_graph, markdown_table
from torch.nn.functional import cross_entropy

from betty import GraphSAGE, PeakMemory, sample_full_batch
from betty.datasets import Dataset
from betty.memory.allocator_events import AllocatorEvent, recorded

FAN_OUTS = [10, 25]
NUM_HIDDEN = 64
NUM_OUTPUTS = 64
REPETITIONS = {"mean": 30, "lstm": 3}


def training_step(dataset: Dataset, aggre: str) -> Callable[[], None]:
    """A step without its optimizer, small: the larger a step, the less measuring it matters."""
    full_batch = sample_full_batch(dataset.graph, dataset.train_ids[:NUM_OUTPUTS], FAN_OUTS, seed=0)
    model = GraphSAGE(dataset.num_features, NUM_HIDDEN, dataset.num_classes, len(FAN_OUTS), aggre)
    x, labels = dataset.features[full_batch.input_ids], dataset.labels[full_batch.output_ids]

    def step() -> None:
        cross_entropy(model(full_batch.blocks, x), labels).backward()
        model.zero_grad(set_to_none=True)

    return step


def row(dataset: Dataset, aggre: str) -> list[str]:
    """One row of the table."""
    step = training_step(dataset, aggre)
    meter = PeakMemory("cpu")

    def measured_step() -> None:
        with meter:
            step()

    measured, plain = compare_seconds(measured_step, step, REPETITIONS[aggre])
    events: list[AllocatorEvent] = []
    with recorded(events):
        step()
    times = [f"{1000 * seconds:.1f}" for seconds in (plain, measured)]
    return [aggre, *times, f"{measured / plain:.2f}", f"{len(events):,}", f"{meter.peak_bytes / 1e6:.1f}"]


def main() -> None:
    torch.manual_seed(0)
    dataset = load_graph("cora")
    header = ["aggregator", "step (ms)", "step measured (ms)", "ratio", "allocator events", "peak (MB)"]
    print("### Measuring peak memory of a training step on the CPU (2-layer GraphSAGE, cora)\n")
    print(markdown_table(header, [row(dataset, aggre) for aggre in REPETITIONS]))
    size = f"{NUM_OUTPUTS} output nodes, fan-outs {','.join(map(str, FAN_OUTS))}, {NUM_HIDDEN} hidden channels"
    print(f"\n{size}, threads: {torch.get_num_threads()}; {describe_machine()}")


if __name__ == "__main__":
    main()
