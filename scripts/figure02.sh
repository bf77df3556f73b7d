#!/usr/bin/env bash
# Figure 2, the memory wall: the peak memory of the whole batch over aggregators, layers, hidden sizes and fan-outs,
# with the device's capacity as a line. Writes results/figure02/: figure.png, figure.pdf, table.md and runs/.
#
#   ./scripts/figure02.sh --dry-run          prints the commands and runs nothing
#   SCALE=paper ./scripts/figure02.sh        laptop (default), paper or test
#   CAPACITY=1GiB ./scripts/figure02.sh      every variable below can be set so; scripts/figures/common.sh has more
#
# On a device that is too small the whole batch does not run at all, or the trainer makes more micro-batches of it;
# both count as out of memory. The sizes are in figures/memory_wall.sh, which figure 10 shares.

set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/figures/common.sh"
source "$PROJECT/scripts/figures/memory_wall.sh"

train_whole_batches
draw --capacity "$CAPACITY" "${PANELS[@]}"
finish
