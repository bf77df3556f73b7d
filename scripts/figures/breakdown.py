"""The breakdown: where an epoch's time goes, per method and K."""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from published import EPOCH
from runs import Epoch, Run, read_finished_runs
from style import looks, new_figure, save, styled
from tables import add_run_flags, describe, machine, markdown_table, write_table

from betty.command_line import CommandLineParser, run_command

STAGES = ("sample_s", "partition_s", "split_s", "transfer_s", "compute_s")
NAMES = ("sampling", "partition", "split", "transfer", "compute")


def label_of(run: Run) -> str:
    return f"{run.flag('selection_method')}, K = {run.flag('num_batch')}"


def first_and_later(run: Run) -> dict[str, Sequence[Epoch]]:
    """The first epoch, which waits for its plan, and the others, if there are any."""
    first, *later = run.epochs
    return {"first epoch": [first]} | ({"later epochs": later} if later else {})


def median(epochs: Sequence[Epoch], name: str) -> float:
    return statistics.median(getattr(epoch, name) for epoch in epochs)


def plot(axes: Axes, runs: Sequence[Run], which: str) -> None:
    """A bar per run, stacked from the left, and a mark where the epoch ended by the clock."""
    positions, lefts = range(len(runs)), [0.0] * len(runs)
    chosen = [first_and_later(run)[which] for run in runs]
    for stage, name, look in zip(STAGES, NAMES, looks(NAMES).values(), strict=True):
        widths = [median(epochs, stage) for epochs in chosen]
        axes.barh(positions, widths, 0.7, lefts, label=name, **look.bar)
        lefts = [left + width for left, width in zip(lefts, widths, strict=True)]
    ends = [median(epochs, "epoch_s") for epochs in chosen]
    axes.plot(ends, positions, "k|", ms=15, mew=2, label="epoch, by the clock")
    axes.grid(axis="y", visible=False)
    axes.grid(axis="x")
    axes.set(xlabel=f"seconds, {which}", xlim=(0, None))


def draw(runs: Sequence[Run]) -> Figure:
    """A panel of the first epoch and one of the others."""
    parts = list(first_and_later(runs[0]))
    figure = new_figure(1.5 + 4.5 * len(parts), 1.2 + 0.34 * len(runs))
    all_axes = figure.subplots(1, len(parts), sharex=True, sharey=True, squeeze=False)[0]
    for axes, which in zip(all_axes, parts, strict=True):
        plot(axes, runs, which)
    all_axes[0].set_yticks(range(len(runs)), [label_of(run) for run in runs])
    all_axes[0].invert_yaxis()
    figure.legend(*all_axes[0].get_legend_handles_labels(), loc="outside upper center", ncols=len(STAGES) + 1)
    return figure


def rows_of(run: Run) -> list[list[str]]:
    """A row of the table for the first epoch and one for the others."""
    rows = []
    for which, epochs in first_and_later(run).items():
        times = [median(epochs, stage) for stage in STAGES]
        texts = [f"{time:.3f}" for time in (*times, sum(times), median(epochs, "epoch_s"))]
        redundancy = f"{epochs[-1].redundancy:.2f}"
        rows.append([run.flag("selection_method"), run.flag("num_batch"), which, *texts, redundancy])
    return rows


def show(flags: argparse.Namespace) -> None:
    """Write the picture and the table."""
    runs = read_finished_runs(flags.folder, flags.runs)
    with styled():
        save(draw(runs), flags.folder)
    header = ["method", "K", "of", *(f"{name} (s)" for name in NAMES), "sum (s)", "epoch (s)", "redundancy"]
    first = runs[0]
    write_table(
        flags.folder,
        markdown_table(header, [row for run in runs for row in rows_of(run)]),
        f"GraphSAGE ({first.flag('aggre')}), {describe(first)}, {machine(first)}; medians of the epochs after the "
        "first. Sampling and partition of the next epoch, split and transfer go on in the background of the "
        "computation, so that the stack can exceed the epoch by the clock. Methods whose parts serve every "
        "epoch partition in the first one.",
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
