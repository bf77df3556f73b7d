#!/usr/bin/env bash
# Figure 10, the memory wall broken: figure 2's configurations in as few micro-batches as fit the device's capacity.
# Writes results/figure10/: figure.png, figure.pdf, table.md and runs/; runs of figure 2 that are missing are made.
#
#   ./scripts/figure10.sh --dry-run          prints the commands and runs nothing
#   SCALE=paper ./scripts/figure10.sh        laptop (default), paper or test
#   CAPACITY=1GiB ./scripts/figure10.sh      every variable below can be set so; scripts/figures/common.sh has more
#
# The sizes are in figures/memory_wall.sh, which figure 2 shares.

set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/figures/common.sh"
source "$PROJECT/scripts/figures/memory_wall.sh"

#       NAME    laptop  paper  test
setting METHOD  REG     REG    REG

train_whole_batches
train_all "$RESULTS/$FIGURE" --selection-method "$METHOD" --memory-budget "$CAPACITY"
draw --capacity "$CAPACITY" --whole-batches "$RESULTS/figure02" "${PANELS[@]}"
finish
