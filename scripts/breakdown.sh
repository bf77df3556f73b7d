#!/usr/bin/env bash
# Where an epoch's time goes: sampling, partition, split, transfer and compute, stacked, per method and K.
# Writes results/breakdown/: figure.png, figure.pdf, table.md and runs/.
#
#   ./scripts/breakdown.sh --dry-run              prints the commands and runs nothing
#   SCALE=paper ./scripts/breakdown.sh            laptop (default), paper or test
#   METHODS="random REG" ./scripts/breakdown.sh   every variable below can be set so; scripts/figures/common.sh has more

set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/figures/common.sh"

ALL_METHODS="range random metis REG hypergraph locality"

#       NAME         laptop           paper           test
setting DATASET      synthetic-arxiv  ogbn-products   synthetic-tiny
setting METHODS      "$ALL_METHODS"   "$ALL_METHODS"  "REG"
setting NUM_BATCHES  "4 12"           "12"            "4"
setting FAN_OUT      5,10             10,25           3,5
setting AGGRE        lstm             lstm            lstm
setting NUM_HIDDEN   64               256             8
setting NUM_EPOCHS   2                5               2
setting DROPOUT      0.5              0.5             0.5
setting LR           0.003            0.003           0.003
setting BATCH_SIZE   ""               ""              ""

NAMES=()
for num_batch in $NUM_BATCHES; do
    for method in $METHODS; do
        NAMES+=("$(named "$method-$num_batch-micro-batches")")
        micro_batches "${NAMES[-1]}" --fan-out "$FAN_OUT" --num-layers "$(num_layers "$FAN_OUT")" \
            --aggre "$AGGRE" --num-hidden "$NUM_HIDDEN" --dropout "$DROPOUT" --lr "$LR" --num-epochs "$NUM_EPOCHS" \
            ${BATCH_SIZE:+--batch-size "$BATCH_SIZE"} --selection-method "$method" --num-batch "$num_batch"
    done
done
draw --runs "${NAMES[@]}"
finish
