#!/usr/bin/env bash
# All figures of the paper and the breakdown, one after the other, and results/index.html: one page with the figures,
# their tables and the published numbers. A figure that fails is named at the end; the others are drawn all the same.
#
#   ./scripts/all_figures.sh --dry-run                          prints the commands of all and runs nothing
#   ./scripts/all_figures.sh --publish                          copies pictures and tables into docs/ at the end
#   SCALE=paper ./scripts/all_figures.sh                        laptop (default), paper or test
#   FIGURES="figure02 figure10" ./scripts/all_figures.sh        only these
#
# Every other variable goes to the figures' scripts, see scripts/figures/common.sh.

set -uo pipefail
PUBLISH=""
for argument in "$@"; do
    shift
    case "$argument" in
        --publish) PUBLISH=1 ;;
        *) set -- "$@" "$argument" ;;
    esac
done
source "$(dirname "${BASH_SOURCE[0]}")/figures/common.sh"

ALL_FIGURES="figure02 figure04 figure05 figure09 figure10 figure11 figure12 figure13 breakdown"
FIGURES="${FIGURES:-$ALL_FIGURES}"

for figure in $FIGURES; do
    [[ " $ALL_FIGURES " = *" $figure "* ]] || fail "there is no figure $figure; there are $ALL_FIGURES"
done

FAILED=()
for figure in $FIGURES; do
    [ -n "$DRY_RUN" ] || echo "== $figure"
    "$PROJECT/scripts/$figure.sh" ${DRY_RUN:+--dry-run} || {
        code=$?
        [ $code -eq 130 ] && exit 130
        FAILED+=("$figure")
    }
done

if [ -z "$DRY_RUN" ]; then
    source "$PROJECT/scripts/environment.sh"
    python "$PROJECT/scripts/figures/index.py" --results "$RESULTS" || FAILED+=("index.html")
    if [ -n "$PUBLISH" ]; then
        python "$PROJECT/scripts/figures/publish.py" --results "$RESULTS" --figures $FIGURES || FAILED+=("docs")
    fi
fi
if [ ${#FAILED[@]} -gt 0 ]; then
    echo "$FIGURE: failed: ${FAILED[*]}" >&2
    exit 1
fi
