#!/usr/bin/env bash
# Measures what the README says, and prints its tables. Sections (all by default):
#
#   accuracy     test accuracy of micro-batch, full-batch and mini-batch training; loss in float32 (10 minutes)
#   partitions   redundancy of the partitioning methods, partition and split times
#   hubs         REG with and without hubs
#   splitting    splitting into micro-batches against DGL's own functions
#   kernels      layers against dgl.nn's, exact dropout against PyTorch's (10 minutes)
#   epochs       epoch times of the main job, by aggregator (3 minutes; 7 with BEFORE)
#   memory       estimates of memory against measured peaks, plans for budgets, a large job in 2 GiB (an hour);
#                its parts are memory_estimates, memory_budgets and memory_lstm
#   partition_quality, partition_cost, partition_budgets, partition_epochs, partition_large
#                partitioning methods against REG and the figures to reach; see benchmark_partition.sh
#   layer_costs  estimated seconds of layers against measured ones (some minutes)
#   meter        what measuring peak memory does to the time of a step
#   large        time and memory of synthetic-products
#   own_file     memory that loading an own .npz file takes
#   picture      draws docs/betty.png
#   hostile      kills, damage, full disks, limits and interrupts: none may end in other numbers or in a traceback
#                (15 minutes); ./scripts/benchmark/hostile.py WORD… tries those alone whose names hold a word
#   hostile_cost what checksums and watching cost: loading and whole commands, with BEFORE against another checkout
#
#   ./scripts/benchmark.sh partitions splitting
#   GRAPHS=folder   with cora.npz, citeseer.npz and tolokers.npz (see the README); ../shared/data if not given
#   BEFORE=folder   another checkout of the project, for epochs and hostile_cost to measure and to compare with

set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/environment.sh"

SECTIONS=(accuracy partitions hubs splitting kernels epochs memory layer_costs meter large own_file picture
    partition_quality partition_cost partition_budgets partition_epochs partition_large
    hostile hostile_cost)
[ $# -gt 0 ] && SECTIONS=("$@")
cd "$PROJECT/scripts/benchmark"
for section in "${SECTIONS[@]}"; do
    if [ ! -f "$section.py" ] || [[ "$section" = *common ]]; then
        echo "error: there is no section $section; the sections are listed in $0" >&2
        exit 2
    fi
done
mkdir -p "$PROJECT/results/benchmark"
for section in "${SECTIONS[@]}"; do
    python "$section.py" | tee "$PROJECT/results/benchmark/$section.md"
    echo
done
