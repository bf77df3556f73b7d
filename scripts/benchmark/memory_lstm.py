"""A 3-layer LSTM on all training nodes of synthetic-arxiv, in a small share of the memory that they take at once."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from common import DATA_ROOT, PROJECT, describe_machine, load_graph, markdown_table
from memory_common import SEED, new_model

from betty import estimate_memory, sample_full_batch
from betty.memory import parse_size, size_text

GRAPH = "synthetic-arxiv"
BUDGET = "2GiB"
FAN_OUTS = ([5, 10, 10],)
NUM_LAYERS = 3
NUM_HIDDEN = 256


def train(fan_outs: list[int]) -> dict:
    """The epoch's object of ``metrics.jsonl`` of one epoch by the command line."""
    flags = {
        "--dataset": GRAPH,
        "--data-root": DATA_ROOT,
        "--fan-out": ",".join(map(str, fan_outs)),
        "--num-layers": NUM_LAYERS,
        "--aggre": "lstm",
        "--num-hidden": NUM_HIDDEN,
        "--memory-budget": BUDGET,
        "--num-epochs": 1,
        "--seed": SEED,
    }
    with tempfile.TemporaryDirectory(dir=PROJECT / "results") as folder:
        words = [str(word) for flag in (flags | {"--output": folder}).items() for word in flag]
        subprocess.run(
            [sys.executable, "-m", "betty.micro_batch_train", *words, "--measure-memory", "--quiet"],
            check=True,
            env=os.environ | {"PYTHONPATH": str(PROJECT / "pytorch")},
        )
        return json.loads((Path(folder) / "metrics.jsonl").read_text())


def row(fan_outs: list[int]) -> list[str]:
    """One row of the table."""
    dataset = load_graph(GRAPH)
    full_batch = sample_full_batch(dataset.graph, dataset.train_ids, fan_outs, seed=SEED, epoch=0)
    model = new_model("lstm", dataset, NUM_LAYERS, NUM_HIDDEN)
    whole = estimate_memory(model, full_batch.blocks, accumulates=False).peak
    epoch = train(fan_outs)
    measured = epoch["peak_memory_bytes"]
    sizes = [size_text(size) for size in (whole, epoch["estimated_peak_bytes"], measured)]
    count, share = str(epoch["num_micro_batches"]), f"{measured / parse_size(BUDGET):.3f}"
    times = [f"{epoch[f'{name}_s']:.0f}" for name in ("partition", "epoch")]
    return [",".join(map(str, fan_outs)), *sizes, share, count, f"{epoch['redundancy']:.2f}", *times]


def main() -> None:
    (PROJECT / "results").mkdir(exist_ok=True)
    print(f"### An epoch of a {NUM_LAYERS}-layer LSTM on {GRAPH} in {BUDGET}: {NUM_HIDDEN} hidden channels\n")
    sizes = ["full batch, estimated", "plan, estimated", "epoch, measured", "÷ budget"]
    header = ["fan-outs", *sizes, "K", "redundancy", "planning (s)", "epoch (s)"]
    print(markdown_table(header, [row(fan_outs) for fan_outs in FAN_OUTS]))
    print(f"\n{describe_machine()}")


if __name__ == "__main__":
    main()
