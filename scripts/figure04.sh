#!/usr/bin/env bash
# Figure 4, full batch against small mini-batches: loss and test accuracy over epochs, several runs each.
# Writes results/figure04/: figure.png, figure.pdf, table.md and runs/.
#
#   ./scripts/figure04.sh --dry-run          prints the commands and runs nothing
#   SCALE=paper ./scripts/figure04.sh        laptop (default), paper or test
#   NUM_EPOCHS=50 ./scripts/figure04.sh      every variable below can be set so; scripts/figures/common.sh has more

set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/figures/common.sh"

#       NAME             laptop           paper          test
setting DATASET          synthetic-arxiv  ogbn-products  synthetic-tiny
setting FAN_OUT          5,10             5,10,15        3,5
setting AGGRE            mean             mean           mean
setting NUM_HIDDEN       32               32             8
setting MINI_BATCH_SIZE  5684             12289          100
setting NUM_EPOCHS       60               500            4
setting EVAL_EVERY       3                5              2
setting NUM_RUNS         3                3              2
setting LR               0.01             0.003          0.003
setting DROPOUT          0.5              0.5            0.5
setting WEIGHT_DECAY     5e-4             5e-4           5e-4

FLAGS=(--fan-out "$FAN_OUT" --num-layers "$(num_layers "$FAN_OUT")" --aggre "$AGGRE" --num-hidden "$NUM_HIDDEN"
       --num-epochs "$NUM_EPOCHS" --num-runs "$NUM_RUNS" --eval --eval-every "$EVAL_EVERY"
       --lr "$LR" --dropout "$DROPOUT" --weight-decay "$WEIGHT_DECAY")

FULL="$(named full-batch)"
MINI="$(named "mini-batches-of-$MINI_BATCH_SIZE")"

micro_batches "$FULL" "${FLAGS[@]}" --selection-method range --num-batch 1
mini_batches "$MINI" "${FLAGS[@]}" --batch-size "$MINI_BATCH_SIZE"
draw --runs "$FULL" "$MINI"
finish
