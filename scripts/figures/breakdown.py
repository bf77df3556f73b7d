"""The breakdown: where an epoch's time goes, per method and K."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from matplotlib.figure import Figure
from published import EPOCH
from runs import Run, median_of, read_finished_runs
from style import looks, new_figure, save, styled
from tables import add_run_flags, describe, machine, markdown_table, write_table

from betty.command_line import CommandLineParser, run_command

STAGES = ("sample_s", "partition_s", "split_s", "transfer_s", "compute_s")
NAMES = ("sampling", "partition", "split", "transfer", "compute")


def seconds(run: Run, stage: str) -> float:
    return run.per_run(median_of(stage))[0]


def label_of(run: Run) -> str:
    return f"{run.flag('selection_method')}, K = {run.flag('num_batch')}"


def draw(runs: Sequence[Run]) -> Figure:
    """A bar per run, stacked from the left, and a mark where the epoch ended by the clock."""
    figure = new_figure(8.5, 1.2 + 0.34 * len(runs))
    axes = figure.subplots()
    positions, lefts = range(len(runs)), [0.0] * len(runs)
    for stage, name, look in zip(STAGES, NAMES, looks(NAMES).values(), strict=True):
        widths = [seconds(run, stage) for run in runs]
        axes.barh(positions, widths, 0.7, lefts, label=name, **look.bar)
        lefts = [left + width for left, width in zip(lefts, widths, strict=True)]
    ends = [seconds(run, "epoch_s") for run in runs]
    axes.plot(ends, positions, "k|", ms=15, mew=2, label="epoch_s, by the clock")
    axes.set_yticks(positions, [label_of(run) for run in runs])
    axes.invert_yaxis()
    axes.grid(axis="y", visible=False)
    axes.grid(axis="x")
    axes.set(xlabel="seconds of an epoch", xlim=(0, None))
    figure.legend(loc="outside upper center", ncols=len(STAGES) + 1)
    return figure


def row(run: Run) -> list[str]:
    """One row of the table."""
    times = [seconds(run, stage) for stage in STAGES]
    cells = [run.flag("selection_method"), run.flag("num_batch"), *(f"{time:.3f}" for time in times)]
    return [*cells, f"{sum(times):.3f}", f"{seconds(run, 'epoch_s'):.3f}", f"{run.epochs[-1].redundancy:.2f}"]


def show(flags: argparse.Namespace) -> None:
    """Write the picture and the table."""
    runs = read_finished_runs(flags.folder, flags.runs)
    with styled():
        save(draw(runs), flags.folder)
    header = ["method", "K", *(f"{name} (s)" for name in NAMES), "sum (s)", "epoch_s (s)", "redundancy"]
    first = runs[0]
    write_table(
        flags.folder,
        markdown_table(header, [row(run) for run in runs]),
        f"GraphSAGE ({first.flag('aggre')}), {describe(first)}, {machine(first)}; medians of the epochs after the "
        "first. Splitting and transfer go on in the background of the computation, so that the stack can exceed "
        "epoch_s, the time by the clock.",
        EPOCH,
    )


def main(arguments: list[str] | None = None) -> None:
    """Run the command line."""
    parser = CommandLineParser("scripts/figures/breakdown.py", "Draw the breakdown from its runs.")
    add_run_flags(parser)
    flags = parser.parse_args(arguments)
    run_command(parser.prog, lambda: show(flags))


if __name__ == "__main__":
    main()
