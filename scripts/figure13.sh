#!/usr/bin/env bash
# Figure 13, convergence: loss and test accuracy of K = 1, 2, 4, 8 micro-batches lie on each other; the largest
# difference is in the table. Writes results/figure13/: figure.png, figure.pdf, table.md and runs/.
#
#   ./scripts/figure13.sh --dry-run          prints the commands and runs nothing
#   SCALE=paper ./scripts/figure13.sh        laptop (default), paper or test
#   NUM_EPOCHS=50 ./scripts/figure13.sh      every variable below can be set so; scripts/figures/common.sh has more

set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/figures/common.sh"

#       NAME         laptop           paper       test
setting DATASET      synthetic-arxiv  ogbn-arxiv  synthetic-tiny
setting FAN_OUT      10,25            10          3,5
setting AGGRE        mean             mean        mean
setting NUM_HIDDEN   64               16          8
setting NUM_BATCHES  "1 2 4 8"        "1 2 4 8"   "1 4"
setting METHOD       REG              REG         REG
setting NUM_EPOCHS   25               180         4
setting EVAL_EVERY   5                5           2
setting LR           0.01             0.01        0.01
setting DROPOUT      0.5              0.5         0.5
setting BATCH_SIZE   ""               ""          ""

SAMPLING=(--fan-out "$FAN_OUT" --num-epochs "$NUM_EPOCHS" ${BATCH_SIZE:+--batch-size "$BATCH_SIZE"})
NAMES=()

full_batches "${SAMPLING[@]}"
for num_batch in $NUM_BATCHES; do
    NAMES+=("$(named "$num_batch-micro-batches")")
    micro_batches "${NAMES[-1]}" "${SAMPLING[@]}" --load-full-batch \
        --num-layers "$(num_layers "$FAN_OUT")" --aggre "$AGGRE" --num-hidden "$NUM_HIDDEN" --lr "$LR" \
        --dropout "$DROPOUT" --dropout-mode exact --eval --eval-every "$EVAL_EVERY" \
        --selection-method "$METHOD" --num-batch "$num_batch"
done
draw --runs "${NAMES[@]}"
finish
