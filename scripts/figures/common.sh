# Sourced by scripts/figureNN.sh and breakdown.sh: arguments, settings by scale, and the list of commands of a figure.
# A script says with micro_batches, mini_batches, … what to run and with draw how to draw it; finish runs the list, or
# prints it for --dry-run. The environment may set, besides every variable that a script has at its top:
#
#   SCALE=laptop            laptop (10 minutes at most), paper (the paper's data sets and sizes) or test (seconds)
#   RESULTS=folder          where results are written, a folder per figure; results/ if not given
#   DATA_ROOT=folder        for data sets; data/ if not given
#   FULL_BATCH_ROOT=folder  for stored full batches; betty_dataset/ if not given
#   GRAPHS=folder           with cora.npz, citeseer.npz and tolokers.npz (see the README); ../shared/data if not given
#   DEVICE=auto             auto, cpu, cuda, cuda:1, …
#   SEED=1236               of everything random

PROJECT="$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)"
FIGURE="$(basename "$0" .sh)"

fail() {
    echo "$FIGURE: error: $*" >&2
    exit 2
}

DRY_RUN=""
for argument in "$@"; do
    case "$argument" in
        --dry-run) DRY_RUN=1 ;;
        -h | --help)
            sed -n '2,/^[^#]/s/^# \{0,1\}//p' "$0"
            exit 0 ;;
        *) fail "there is no argument $argument; there are --dry-run and --help, everything else is a variable" ;;
    esac
done

absolute() {
    case "$1" in
        /*) echo "$1" ;;
        *) echo "$PWD/$1" ;;
    esac
}

SCALE="${SCALE:-laptop}"
RESULTS="$(absolute "${RESULTS:-$PROJECT/results}")"
DATA_ROOT="$(absolute "${DATA_ROOT:-$PROJECT/data}")"
FULL_BATCH_ROOT="$(absolute "${FULL_BATCH_ROOT:-$PROJECT/betty_dataset}")"
GRAPHS="$(absolute "${GRAPHS:-$PROJECT/../shared/data}")"
DEVICE="${DEVICE:-auto}"
SEED="${SEED:-1236}"
case "$SCALE" in
    laptop | paper | test) ;;
    *) fail "there is no SCALE=$SCALE; there are laptop, paper and test" ;;
esac

# setting NAME LAPTOP PAPER TEST: a variable's value at each scale, unless the environment gives one.
setting() {
    [ -n "${!1+set}" ] && return
    case "$SCALE" in
        laptop) printf -v "$1" %s "$2" ;;
        paper) printf -v "$1" %s "$3" ;;
        test) printf -v "$1" %s "$4" ;;
    esac
}

# The data set of a name: the path of a real graph that is in $GRAPHS, else the name itself.
dataset_of() {
    [ -f "$GRAPHS/$1.npz" ] && echo "$GRAPHS/$1.npz" || echo "$1"
}

# Of the names of graphs, those that are there: the files of real ones are not part of the project.
present() {
    local graph
    for graph in "$@"; do
        case "$graph" in
            cora | citeseer | tolokers)
                if [ ! -f "$GRAPHS/$graph.npz" ]; then
                    echo "$FIGURE: $graph is left out: $GRAPHS/$graph.npz does not exist" >&2
                    continue
                fi ;;
        esac
        echo "$graph"
    done
}

num_layers() {
    local commas="${1//[^,]/}"
    echo $((${#commas} + 1))
}

COMMANDS=()
STORE=full-batches # run.py empties it

# add WORDS: one more command, quoted so that a shell reads the same words again.
add() {
    local word line="PYTHONPATH=$(quoted "$PROJECT/pytorch") $(quoted "$PROJECT/.venv/bin/python")"
    for word in "$@"; do
        line+=" $(quoted "$word")"
    done
    COMMANDS+=("$line")
}

quoted() {
    case "$1" in
        "" | *[!A-Za-z0-9_./,:=+@%-]*) printf %s "${1@Q}" ;;
        *) printf %s "$1" ;;
    esac
}

# train MODULE FOLDER FLAGS: a run into a folder, which goes on where one was interrupted.
# Parts are stored with full batches and used again. A run that brings no full batches has a store of its own, empty at
# its start, so that the time of partitioning is that of partitioning.
train() {
    local module="$1" folder="$2"
    shift 2
    local store=(--full-batch-root "$folder/$STORE")
    [ "$module" = mini_batch_train ] && store=()
    [[ " $* " = *" --load-full-batch "* ]] && store=(--full-batch-root "$FULL_BATCH_ROOT")
    add -m "betty.$module" --dataset "$(dataset_of "$DATASET")" --data-root "$DATA_ROOT" --device "$DEVICE" \
        --seed "$SEED" "$@" ${store[@]+"${store[@]}"} --quiet --output "$folder" --resume
}

# named NAME: with the data set before it, so that a run of one scale does not replace another's.
named() {
    echo "$(basename "$DATASET" .npz)-$1"
}

# micro_batches NAME FLAGS, mini_batches NAME FLAGS: a run into runs/NAME of the figure's folder.
micro_batches() {
    train micro_batch_train "$RESULTS/$FIGURE/runs/$1" "${@:2}"
}

mini_batches() {
    train mini_batch_train "$RESULTS/$FIGURE/runs/$1" "${@:2}"
}

# full_batches FLAGS: full batches to be stored, for the runs with --load-full-batch that come after.
full_batches() {
    add -m betty.full_batch --dataset "$(dataset_of "$DATASET")" --data-root "$DATA_ROOT" --seed "$SEED" \
        --full-batch-root "$FULL_BATCH_ROOT" --quiet "$@"
}

# measure SCRIPT NAME FLAGS: what the command lines do not write, into runs/NAME of the figure's folder.
measure() {
    add "$PROJECT/scripts/figures/$1" --dataset "$(dataset_of "$DATASET")" --data-root "$DATA_ROOT" --seed "$SEED" \
        "${@:3}" --quiet --output "$RESULTS/$FIGURE/runs/$2"
}

# draw FLAGS: the picture and the table, from the runs' own files.
draw() {
    add "$PROJECT/scripts/figures/$FIGURE.py" --folder "$RESULTS/$FIGURE" "$@"
}

# In place of this shell, so that whoever stops the script stops its work.
finish() {
    if [ -n "$DRY_RUN" ]; then
        printf '%s\n' "${COMMANDS[@]}"
        return
    fi
    source "$PROJECT/scripts/environment.sh"
    exec python "$PROJECT/scripts/figures/run.py" --title "$FIGURE" < <(printf '%s\n' "${COMMANDS[@]}")
}
