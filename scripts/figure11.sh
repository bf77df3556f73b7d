#!/usr/bin/env bash
# Figure 11, the partitioning methods: measured peak memory, redundancy and time at equal K.
# Writes results/figure11/: figure.png, figure.pdf, table.md and runs/.
#
#   ./scripts/figure11.sh --dry-run                   prints the commands and runs nothing
#   SCALE=paper ./scripts/figure11.sh                 laptop (default), paper or test
#   METHODS="random REG" ./scripts/figure11.sh        every variable below can be set so; figures/common.sh has more
#
# Of cora, citeseer and tolokers those are left out that are not in $GRAPHS.

set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/figures/common.sh"

ALL_METHODS="range random metis REG hypergraph locality"

#       NAME         laptop                           paper                       test
setting DATASETS     "synthetic-arxiv tolokers cora"  "ogbn-arxiv ogbn-products"  "synthetic-tiny"
setting METHODS      "$ALL_METHODS"                   "$ALL_METHODS"              "random REG"
setting NUM_BATCHES  "8 32"                           "8 32"                      "4"
setting FAN_OUT      10,25                            10,25                       3,5
setting AGGRE        mean                             mean                        mean
setting NUM_HIDDEN   64                               256                         8
setting NUM_RUNS     3                                3                           2
setting NUM_EPOCHS   2                                3                           2
setting DROPOUT      0.5                              0.5                         0.5
setting LR           0.003                            0.003                       0.003
setting BATCH_SIZE   ""                               ""                          ""

# DATASET, as the other figures have it, stands for a list of one.
DATASETS="${DATASET:-$DATASETS}"
SAMPLING=(--fan-out "$FAN_OUT" --num-epochs "$NUM_EPOCHS" ${BATCH_SIZE:+--batch-size "$BATCH_SIZE"})
NAMES=()

for DATASET in $(present $DATASETS); do
    for num_batch in $NUM_BATCHES; do
        for method in $METHODS; do
            NAMES+=("$(named "$method-$num_batch-micro-batches")")
            micro_batches "${NAMES[-1]}" "${SAMPLING[@]}" \
                --num-layers "$(num_layers "$FAN_OUT")" --aggre "$AGGRE" --num-hidden "$NUM_HIDDEN" \
                --dropout "$DROPOUT" --lr "$LR" --num-runs "$NUM_RUNS" --measure-memory \
                --selection-method "$method" --num-batch "$num_batch"
        done
    done
done
[ ${#NAMES[@]} -gt 0 ] || fail "none of the graphs $DATASETS is in $GRAPHS"
draw --runs "${NAMES[@]}"
finish
