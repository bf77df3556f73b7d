"""Redundancy of the partitioning methods, and what partitioning and splitting take."""

from __future__ import annotations

import time

from common import REAL_GRAPHS, describe_machine, load_graph, markdown_table, median_seconds

from betty import FullBatch, partition, redundancy, sample_full_batch, split

METHODS = ("range", "random", "metis", "REG")
"""Those that partition every full batch anew; ``benchmark_partition.sh`` measures the others."""

NUM_PARTS = (2, 4, 8, 16, 32)
FAN_OUTS = ([10], [10, 25])


def measure(name: str, fan_outs: list[int], full_batch: FullBatch, method: str) -> list[str]:
    """One row of the table: redundancy for every K, and the times at the largest K but one."""
    row = [name, ",".join(map(str, fan_outs)), method]
    for num_parts in NUM_PARTS:
        start = time.perf_counter()
        parts = partition(full_batch, num_parts, method, seed=0)
        seconds = time.perf_counter() - start
        row.append(f"{redundancy(full_batch, parts):.2f}")
        if num_parts == 16:
            split_s = median_seconds(lambda parts=parts: split(full_batch, parts))
            times = [f"{1000 * seconds:.0f}", f"{1000 * split_s:.1f}"]
    return [*row, *times]


def main() -> None:
    rows = []
    for name in (*REAL_GRAPHS, "synthetic-arxiv"):
        dataset = load_graph(name)
        for fan_outs in FAN_OUTS:
            full_batch = sample_full_batch(dataset.graph, dataset.train_ids, fan_outs, seed=1236)
            rows += [measure(name, fan_outs, full_batch, method) for method in METHODS]
    header = ["graph", "fan-outs", "method", *(f"K = {k}" for k in NUM_PARTS), "partition (ms)", "split (ms)"]
    print("### Redundancy, and the times of K = 16\n")
    print(markdown_table(header, rows))
    print(f"\n{describe_machine()}")


if __name__ == "__main__":
    main()
