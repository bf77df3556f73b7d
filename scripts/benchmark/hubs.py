"""What leaving hubs out of the redundancy-embedded graph does to redundancy and to the time of REG."""

from __future__ import annotations

import time

from common import REAL_GRAPHS, describe_machine, load_graph, markdown_table

from betty import FullBatch, partition, redundancy, sample_full_batch

BOUNDS = (16, 32, 64, 128, 256, 1 << 60)
NUM_PARTS = 16


def measure(full_batch: FullBatch, bound: int) -> str:
    """Redundancy and milliseconds with one bound."""
    start = time.perf_counter()
    parts = partition(full_batch, NUM_PARTS, "REG", seed=0, reg_max_degree=bound)
    return f"{redundancy(full_batch, parts):.3f}, {1000 * (time.perf_counter() - start):.0f} ms"


def main() -> None:
    rows = []
    for name in (*REAL_GRAPHS, "synthetic-arxiv"):
        dataset = load_graph(name)
        for fan_outs in ([10], [10, 25]):
            full_batch = sample_full_batch(dataset.graph, dataset.train_ids, fan_outs, seed=1236)
            cells = [measure(full_batch, bound) for bound in BOUNDS]
            rows.append([name, ",".join(map(str, fan_outs)), *cells])
    print(f"### REG without hubs that more than so many output nodes share, K = {NUM_PARTS}\n")
    print(markdown_table(["graph", "fan-outs", *map(str, BOUNDS[:-1]), "no bound"], rows))
    print(f"\n{describe_machine()}")


if __name__ == "__main__":
    main()
