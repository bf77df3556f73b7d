#!/usr/bin/env bash
# Figure 12, the number of micro-batches: peak memory, epoch time and redundancy over K = 1 … 32, per aggregator.
# Writes results/figure12/: figure.png, figure.pdf, table.md and runs/.
#
#   ./scripts/figure12.sh --dry-run              prints the commands and runs nothing
#   SCALE=paper ./scripts/figure12.sh            laptop (default), paper or test
#   AGGREGATORS=lstm ./scripts/figure12.sh       every variable below can be set so; scripts/figures/common.sh has more

set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/figures/common.sh"

#       NAME         laptop            paper             test
setting DATASET      synthetic-arxiv   ogbn-products     synthetic-tiny
setting FAN_OUT      10                10                5
setting AGGREGATORS  "mean pool lstm"  "mean pool lstm"  "lstm"
setting NUM_HIDDEN   64                256               8
setting NUM_BATCHES  "1 2 4 8 16 32"   "1 2 4 8 16 32"   "1 2"
setting METHOD       REG               REG               REG
setting NUM_EPOCHS   3                 5                 2
setting DROPOUT      0.5               0.5               0.5
setting LR           0.01              0.01              0.01
setting BATCH_SIZE   ""                ""                ""

SAMPLING=(--fan-out "$FAN_OUT" --num-epochs "$NUM_EPOCHS" ${BATCH_SIZE:+--batch-size "$BATCH_SIZE"})
NAMES=()

for aggre in $AGGREGATORS; do
    for num_batch in $NUM_BATCHES; do
        NAMES+=("$(named "$aggre-$num_batch-micro-batches")")
        micro_batches "${NAMES[-1]}" "${SAMPLING[@]}" \
            --num-layers "$(num_layers "$FAN_OUT")" \
            --aggre "$aggre" --num-hidden "$NUM_HIDDEN" --dropout "$DROPOUT" --lr "$LR" --measure-memory \
            --selection-method "$METHOD" --num-batch "$num_batch"
    done
done
draw --runs "${NAMES[@]}"
finish
