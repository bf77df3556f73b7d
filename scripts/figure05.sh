#!/usr/bin/env bash
# Figure 5, the estimate: the in-degree distribution that it is made from, and the estimated memory by part against the
# measured peak, per aggregator and number of micro-batches.
# Writes results/figure05/: figure.png, figure.pdf, table.md and runs/.
#
#   ./scripts/figure05.sh --dry-run              prints the commands and runs nothing
#   SCALE=paper ./scripts/figure05.sh            laptop (default), paper or test
#   AGGREGATORS=lstm ./scripts/figure05.sh       every variable below can be set so; scripts/figures/common.sh has more

set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/figures/common.sh"

#       NAME         laptop            paper             test
setting DATASET      synthetic-arxiv   ogbn-arxiv        synthetic-tiny
setting FAN_OUT      10                10                10
setting AGGREGATORS  "lstm pool mean"  "lstm pool mean"  "lstm"
setting NUM_HIDDEN   128               128               8
setting NUM_BATCHES  "1 4 16"          "1 4 16"          "4"
setting METHOD       REG               REG               REG
setting NUM_EPOCHS   2                 2                 2
setting DROPOUT      0.5               0.5               0.5
setting LR           0.01              0.01              0.01

# In its second epoch a run has all that it ever will, the optimizer's state too.
SIZES=(--fan-out "$FAN_OUT" --num-layers "$(num_layers "$FAN_OUT")" --num-hidden "$NUM_HIDDEN" --dropout "$DROPOUT"
       --num-epochs "$NUM_EPOCHS" --selection-method "$METHOD")
NAMES=()
ESTIMATES=()

for aggre in $AGGREGATORS; do
    for num_batch in $NUM_BATCHES; do
        NAMES+=("$(named "$aggre-$num_batch-micro-batches")")
        micro_batches "${NAMES[-1]}" "${SIZES[@]}" --aggre "$aggre" --lr "$LR" --measure-memory \
            --num-batch "$num_batch"
    done
    ESTIMATES+=("$(named "$aggre-estimates")")
    measure estimates.py "${ESTIMATES[-1]}" "${SIZES[@]}" --aggre "$aggre" --num-batches "${NUM_BATCHES// /,}" \
        --device "$DEVICE"
done
draw --runs "${NAMES[@]}" --estimates "${ESTIMATES[@]}"
finish
