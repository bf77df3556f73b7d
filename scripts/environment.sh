# Sourced by the other scripts: makes .venv if it is missing, installs requirements.txt into it and activates it.
# What is installed there already is used again. Sets PROJECT (the project's folder) and PYTHONPATH.
#
#   PYTHON=python3.11   the interpreter to make .venv with, instead of the first suitable one on the PATH

PROJECT="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)"
export PYTHONPATH="$PROJECT/pytorch${PYTHONPATH:+:$PYTHONPATH}"

is_suitable() {
    "$1" -c 'import sys; sys.exit(not (3, 10) <= sys.version_info[:2] <= (3, 12))' 2>/dev/null
}

find_python() {
    local candidate
    for candidate in ${PYTHON:-python3 python3.12 python3.11 python3.10 python}; do
        if is_suitable "$candidate"; then
            echo "$candidate"
            return
        fi
    done
    local found
    found="$("${PYTHON:-python3}" --version 2>/dev/null || echo "no ${PYTHON:-python3}")"
    echo "error: Betty needs Python 3.10, 3.11 or 3.12, for which DGL has wheels; found $found." \
         "Install one of them, or name it: PYTHON=/path/to/python3.11 $0" >&2
    return 2
}

prepare_environment() {
    local venv="$PROJECT/.venv" python
    if [ ! -x "$venv/bin/python" ]; then
        python="$(find_python)" || return 2
        echo "making $venv with $("$python" --version)"
        "$python" -m venv "$venv" || return 2
    elif ! is_suitable "$venv/bin/python"; then
        echo "error: $venv holds $("$venv/bin/python" --version 2>&1), but Betty needs Python 3.10, 3.11 or 3.12;" \
             "remove that folder and run $0 again" >&2
        return 2
    fi
    # The stamp is the list that was installed: another list, or an installation that was broken off, installs anew.
    if ! cmp -s "$PROJECT/requirements.txt" "$venv/installed-requirements.txt"; then
        echo "installing requirements.txt into $venv"
        "$venv/bin/python" -m pip install --quiet --disable-pip-version-check -r "$PROJECT/requirements.txt" || {
            echo "error: pip could not install requirements.txt into $venv; see its message above" >&2
            return 2
        }
        cp "$PROJECT/requirements.txt" "$venv/installed-requirements.txt"
    fi
    # shellcheck disable=SC1091
    source "$venv/bin/activate"
}

prepare_environment || exit 2
