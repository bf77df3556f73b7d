#!/usr/bin/env bash
# Runs the tests and checks the style, in .venv, which is made if it is missing. Further arguments go to pytest:
#
#   ./scripts/run_tests.sh tests/models -k lstm

set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/environment.sh"

cd "$PROJECT"
python -m pytest "$@"
# With arguments somebody works on a part; the style of the whole is for the whole run.
if [ $# -eq 0 ]; then
    python -m ruff check --quiet .
    python -m ruff format --check --quiet .
fi
