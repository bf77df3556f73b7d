# Sourced by figure02.sh and figure10.sh: the configurations that both run, and their names. Of AGGREGATORS,
# LAYERS_FAN_OUTS, HIDDEN_SIZES and LSTM_FAN_OUTS each varies one thing; what it does not vary is NUM_HIDDEN, FAN_OUT and
# the aggregator mean. An empty list leaves its panel out.

#       NAME             laptop             paper              test
setting DATASET          synthetic-arxiv    ogbn-products      synthetic-tiny
setting CAPACITY         512MiB             24GB               700KiB
setting AGGREGATORS      "mean pool lstm"   "mean pool lstm"   "mean lstm"
setting NUM_HIDDEN       64                 256                16
setting FAN_OUT          10,25              10,25              3,5
setting LAYERS_FAN_OUTS  "10 10,25 10,25,30 10,25,30,40 10,25,30,40,50" \
                         "10 10,25 10,25,30 10,25,30,40 10,25,30,40,50" "3,5"
setting HIDDEN_SIZES     "64 128 256 512"   "64 128 256 512"   "16"
setting LSTM_FAN_OUTS    "5 10 15 20"       "5 10 15 20"       ""
setting BATCH_SIZE       ""                 ""                 ""
setting NUM_EPOCHS       2                  2                  2
setting DROPOUT          0.5                0.5                0.5
setting LR               0.003              0.003              0.003

# configuration AGGREGATOR HIDDEN FAN_OUTS: the name of a run.
configuration() {
    named "$1-$2-hidden-fan-out-${3//,/-}"
}

PANELS=()
CONFIGURATIONS=()

# panel VARIED CONFIGURATION…: a configuration is AGGREGATOR/HIDDEN/FAN_OUTS; without any there is no panel.
panel() {
    local varied="$1" each aggre hidden fan_out
    shift
    [ $# -eq 0 ] && return
    PANELS+=(--panel "$varied")
    for each in "$@"; do
        IFS=/ read -r aggre hidden fan_out <<<"$each"
        PANELS+=("$(configuration "$aggre" "$hidden" "$fan_out")")
        [[ " ${CONFIGURATIONS[*]-} " = *" $each "* ]] || CONFIGURATIONS+=("$each")
    done
}

panel aggre $(for aggre in $AGGREGATORS; do echo "$aggre/$NUM_HIDDEN/$FAN_OUT"; done)
panel num_layers $(for fan_out in $LAYERS_FAN_OUTS; do echo "mean/$NUM_HIDDEN/$fan_out"; done)
panel num_hidden $(for hidden in $HIDDEN_SIZES; do echo "mean/$hidden/$FAN_OUT"; done)
panel fan_out $(for fan_out in $LSTM_FAN_OUTS; do echo "lstm/$NUM_HIDDEN/$fan_out"; done)

# train_all FOLDER FLAGS: a run of every configuration into a figure's folder, with further flags.
train_all() {
    local folder="$1" each aggre hidden fan_out
    shift
    for each in "${CONFIGURATIONS[@]}"; do
        IFS=/ read -r aggre hidden fan_out <<<"$each"
        train micro_batch_train "$folder/runs/$(configuration "$aggre" "$hidden" "$fan_out")" \
            --fan-out "$fan_out" --num-layers "$(num_layers "$fan_out")" --aggre "$aggre" --num-hidden "$hidden" \
            --dropout "$DROPOUT" --lr "$LR" --num-epochs "$NUM_EPOCHS" \
            ${BATCH_SIZE:+--batch-size "$BATCH_SIZE"} --measure-memory "$@"
    done
}

# Figure 2's own runs, which figure 10 compares with.
train_whole_batches() {
    train_all "$RESULTS/figure02" --selection-method range --num-batch 1
}
