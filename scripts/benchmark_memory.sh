#!/usr/bin/env bash
# Measures the memory of training against its estimates, and plans against their budgets; prints the README's tables
# (an hour; the sections memory_estimates, memory_budgets and memory_lstm of benchmark.sh are its parts).
#
#   GRAPHS=folder   with cora.npz and tolokers.npz (see the README); ../shared/data if not given

set -euo pipefail
exec "$(dirname "${BASH_SOURCE[0]}")/benchmark.sh" memory
