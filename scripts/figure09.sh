#!/usr/bin/env bash
# Figure 9, the long tail: the in-degree distribution of the full batch and of its micro-batches, all neighbours taken.
# Writes results/figure09/: figure.png, figure.pdf, table.md and runs/.
#
#   ./scripts/figure09.sh --dry-run          prints the commands and runs nothing
#   SCALE=paper ./scripts/figure09.sh        laptop (default), paper or test
#   NUM_BATCH=4 ./scripts/figure09.sh        every variable below can be set so; scripts/figures/common.sh has more

set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/figures/common.sh"

#       NAME       laptop           paper       test
setting DATASET    synthetic-arxiv  ogbn-arxiv  synthetic-tiny
setting FAN_OUT    -1               -1          -1
setting NUM_BATCH  2                2           2
setting METHOD     REG              REG         REG

measure degrees.py "$(named in-degrees)" --fan-out "$FAN_OUT" --num-batch "$NUM_BATCH" --selection-method "$METHOD"
draw --measurement "$(named in-degrees)"
finish
