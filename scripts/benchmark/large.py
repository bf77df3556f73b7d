"""Time and memory of the largest synthetic data set: made, loaded, and trained on for one epoch."""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from common import PROJECT, describe_machine, markdown_table

FLAGS = ["--dataset", "synthetic-products", "--fan-out", "10", "--num-epochs", "1", "--quiet"]


def run(module: str, *flags: str) -> tuple[float, float]:
    """Run a command line; its seconds, and the peak resident memory in GiB of this and the commands before."""
    start = time.perf_counter()
    environment = os.environ | {"PYTHONPATH": str(PROJECT / "pytorch")}
    subprocess.run([sys.executable, "-m", module, *FLAGS, *flags], check=True, env=environment)
    peak_kib = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss
    return time.perf_counter() - start, peak_kib / (1 << 20)


def main() -> None:
    with tempfile.TemporaryDirectory(dir=PROJECT / "results") as folder:
        root = ["--data-root", f"{folder}/data", "--full-batch-root", f"{folder}/batches"]
        made = run("betty.full_batch", *root)
        output = ["--output", f"{folder}/run", "--load-full-batch", "--num-layers", "1", "--num-batch", "12", "--eval"]
        trained = run("betty.micro_batch_train", *root, *output)
        summary = json.loads((Path(folder) / "run" / "summary.json").read_text())
    rows = [
        ["make the data set, store a full batch", f"{made[0]:.0f}", f"{made[1]:.1f}", ""],
        ["load, train one epoch, evaluate all nodes", f"{trained[0]:.0f}", f"{trained[1]:.1f}", ""],
        *(
            [f"of the epoch: {name}", f"{summary[f'{name}_s']:.1f}", "", ""]
            for name in ("sample", "partition", "split", "transfer", "compute", "epoch")
        ),
    ]
    print("### synthetic-products, 1-layer mean, fan-out 10, 196,615 training nodes in 12 micro-batches\n")
    print(markdown_table(["step", "seconds", "peak memory so far (GiB)"], [row[:3] for row in rows]))
    print(f"\nredundancy {summary['redundancy']:.2f}; {describe_machine()}")


if __name__ == "__main__":
    main()
