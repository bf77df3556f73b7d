#!/usr/bin/env bash
# Measures the partitioning methods against REG and against the figures to reach, and prints the README's tables.
# Sections (all by default, three quarters of an hour on 2 cores; they are sections of benchmark.sh too):
#
#   partition_quality   redundancy, memory of the largest micro-batch, on the full batch and the next one (15 minutes)
#   partition_cost      seconds and resident memory of a first partition, each in a process of its own (5 minutes)
#   partition_budgets   the fewest micro-batches for a share of the full batch's memory (10 minutes)
#   partition_epochs    what of an epoch is partitioning, and what is not computation (5 minutes)
#   partition_large     synthetic-products: the order, the parts, the split, resident memory (10 minutes)
#
#   ./scripts/benchmark_partition.sh partition_quality partition_cost
#   ONLY="cora /path/to/graph.npz"   these graphs, instead of the section's
#   GRAPHS=folder   with cora.npz, citeseer.npz and tolokers.npz (see the README); ../shared/data if not given

set -euo pipefail
[ $# -gt 0 ] || set -- partition_{quality,cost,budgets,epochs,large}
exec "$(dirname "${BASH_SOURCE[0]}")/benchmark.sh" "$@"
