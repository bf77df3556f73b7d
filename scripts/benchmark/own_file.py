"""The memory that loading an own ``.npz`` file takes, as a multiple of its features as float32."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
from common import PROJECT, describe_machine, markdown_table, peak_resident_bytes

NUM_NODES, NUM_FEATURES, NUM_EDGES = 200_000, 512, 400_000
MIB = 1 << 20

Save = Callable[..., None]
FILES: dict[str, tuple[type, str, Save]] = {
    "float16": (np.float16, "C", np.savez),
    "float16, compressed": (np.float16, "C", np.savez_compressed),
    "float16, columns first": (np.float16, "F", np.savez),
    "float32": (np.float32, "C", np.savez),
    "float64": (np.float64, "C", np.savez),
}


def write(path: Path, dtype: type, order: str, save: Save) -> None:
    random = np.random.default_rng(0)
    features = random.standard_normal((NUM_NODES, NUM_FEATURES), dtype=np.float32).astype(dtype, order=order)
    edges = random.integers(NUM_NODES, size=(NUM_EDGES, 2))
    save(path, edges=edges, node_features=features, node_labels=random.integers(10, size=NUM_NODES))


def resident_bytes() -> int:
    """The memory of this process that is resident now."""
    return 1024 * int(re.search(r"^VmRSS:\s+(\d+) kB$", Path("/proc/self/status").read_text(), re.MULTILINE)[1])


def load_and_print(path: str) -> None:
    """Print the peak of resident memory beyond that before loading, in bytes, and the seconds of loading."""
    from betty import load_dataset

    before = resident_bytes()
    start = time.perf_counter()
    dataset = load_dataset(path)
    seconds = time.perf_counter() - start
    print(peak_resident_bytes() - before, seconds, dataset.features.nbytes)


def measure(path: Path) -> tuple[int, float, int]:
    environment = os.environ | {"PYTHONPATH": str(PROJECT / "pytorch")}
    command = [sys.executable, __file__, str(path)]
    done = subprocess.run(command, check=True, capture_output=True, text=True, env=environment)
    peak, seconds, features = done.stdout.split()
    return int(peak), float(seconds), int(features)


def main() -> None:
    rows = []
    for name, (dtype, order, save) in FILES.items():
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "own.npz"
            write(path, dtype, order, save)
            size = path.stat().st_size
            peak, seconds, features = measure(path)
        mebibytes = [f"{value / MIB:.0f}" for value in (size, features, peak)]
        rows.append([name, *mebibytes, f"{peak / features:.2f}", f"{seconds:.1f}"])
    print(f"### Loading an own .npz file, {NUM_NODES:,} nodes, {NUM_FEATURES} features, {NUM_EDGES:,} edges\n")
    header = ["features in the file", "file (MiB)", "as float32 (MiB)", "peak beyond before (MiB)", "ratio", "seconds"]
    print(markdown_table(header, rows))
    print(f"\n{describe_machine()}")


if __name__ == "__main__":
    if len(sys.argv) > 1:
        load_and_print(sys.argv[1])
    else:
        main()
