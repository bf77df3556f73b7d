#!/usr/bin/env bash
# The main job from nothing: installs what is missing into .venv, generates full batches, trains GraphSAGE on them by
# micro-batches, and trains a network without neighbours (an MLP) to compare with.
# Further arguments are flags of python -m betty.micro_batch_train and override those below:
#
#   ./scripts/quickstart.sh --num-batch 16 --aggre lstm
#   ./scripts/quickstart.sh --memory-budget 200MiB
#   ./scripts/quickstart.sh --dataset path/to/graph.npz

set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/environment.sh"

FULL_BATCHES=(--dataset synthetic-arxiv --fan-out 10,25 --num-epochs 20 --seed 1236
              --data-root "$PROJECT/data" --full-batch-root "$PROJECT/betty_dataset")
TRAINING=(--load-full-batch --num-layers 2 --num-hidden 64 --lr 0.01 --dropout 0.2 --eval)
case " $* " in
    *" --memory-budget"*) MICRO_BATCHES=() ONE_BATCH=() ;; # the budget decides on the number
    *) MICRO_BATCHES=(--num-batch 8) ONE_BATCH=(--num-batch 1) ;;
esac
RESULTS="$PROJECT/results/quickstart"

# Of the further arguments, those that say which full batches there are.
chosen=()
arguments=("$@")
for index in "${!arguments[@]}"; do
    case "${arguments[index]}" in
        --dataset | --data-root | --average-degree | --split | --fan-out | --batch-size | --full-batch-root \
            | --num-epochs | --seed)
            chosen+=("${arguments[@]:index:2}") ;;
        --dataset=* | --data-root=* | --average-degree=* | --split=* | --fan-out=* | --batch-size=* \
            | --full-batch-root=* | --num-epochs=* | --seed=* | --quiet)
            chosen+=("${arguments[index]}") ;;
    esac
done

echo "== Full batches"
python -m betty.full_batch "${FULL_BATCHES[@]}" ${chosen[@]+"${chosen[@]}"}

echo "== GraphSAGE, by micro-batches"
python -m betty.micro_batch_train "${FULL_BATCHES[@]}" "${TRAINING[@]}" \
    ${MICRO_BATCHES[@]+"${MICRO_BATCHES[@]}"} "$@" --output "$RESULTS/sage" --overwrite

echo "== MLP, on the nodes' own features alone"
python -m betty.micro_batch_train "${FULL_BATCHES[@]}" "${TRAINING[@]}" "$@" \
    ${ONE_BATCH[@]+"${ONE_BATCH[@]}"} --model mlp --selection-method range --output "$RESULTS/mlp" --overwrite --log-every 5

echo "== Side by side"
python -m betty.compare "$RESULTS/sage" "$RESULTS/mlp"
