#!/usr/bin/env bash
# Measures the layers against dgl.nn, and dropout against PyTorch's, and prints the README's tables (10 minutes).
#
#   GRAPHS=folder   with tolokers.npz (see the README); ../shared/data if not given

set -euo pipefail
exec "$(dirname "${BASH_SOURCE[0]}")/benchmark.sh" kernels
