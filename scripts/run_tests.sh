#!/usr/bin/env bash
# Runs the tests, in .venv, which is made if it is missing. Further arguments go to pytest:
#
#   ./scripts/run_tests.sh tests/models -k lstm

set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/environment.sh"

cd "$PROJECT"
python -m ruff check .
python -m ruff format --check --quiet .
exec python -m pytest "$@"
