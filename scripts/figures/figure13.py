"""Figure 13: the curves of K micro-batches lie on that of the whole batch."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from runs import Epoch, Run, read_finished_runs
from style import epoch_axis, looks, new_figure, save, styled
from tables import add_run_flags, counted, describe, machine, markdown_table, write_table

from betty import BettyError
from betty.command_line import CommandLineParser, run_command

SMALLEST_DIFFERENCE = 1e-8
"""Where the logarithmic axis of differences ends; below it is linear, down to none at all."""


def label_of(run: Run) -> str:
    """The number of micro-batches."""
    return "whole batch" if run.flags["num_batch"] == 1 else f"K = {run.flags['num_batch']}"


def known(run: Run, name: str) -> list[Epoch]:
    """The epochs in which a field is known."""
    return [epoch for epoch in run.epochs if getattr(epoch, name) is not None]


def differences(run: Run, whole: Run, name: str) -> list[float]:
    """How far a run's field is from the whole batch's, in every epoch in which it is known."""
    pairs = zip(known(run, name), known(whole, name), strict=True)
    return [abs(getattr(epoch, name) - getattr(other, name)) for epoch, other in pairs]


def plot_on_each_other(axes: Axes, runs: Sequence[Run], name: str, factor: float = 1.0) -> None:
    """The first as a broad line in grey, the others on it, each with its markers at other epochs."""
    for position, (run, look) in enumerate(zip(runs, looks([run.name for run in runs]).values(), strict=True)):
        epochs = known(run, name)
        xs, ys = [epoch.epoch + 1 for epoch in epochs], [factor * getattr(epoch, name) for epoch in epochs]
        if position == 0:
            axes.plot(xs, ys, color="0.8", lw=6, solid_capstyle="round", label=label_of(run))
        else:
            every = max(1, len(xs) // 6)
            axes.plot(xs, ys, lw=1.2, markevery=(position % every, every), label=label_of(run), **look.curve)


def plot_differences(axes: Axes, runs: Sequence[Run], whole: Run) -> None:
    """The distance of every run's loss from the whole batch's."""
    for run, look in list(zip(runs, looks([run.name for run in runs]).values(), strict=True))[1:]:
        every = max(1, len(run.epochs) // 6)
        axes.plot(
            [epoch.epoch + 1 for epoch in run.epochs],
            differences(run, whole, "loss"),
            markevery=every,
            label=label_of(run),
            **look.curve,
        )
    axes.set_yscale("symlog", linthresh=SMALLEST_DIFFERENCE)
    axes.set_ylim(0, 2 * max(SMALLEST_DIFFERENCE, axes.get_ylim()[1]))


def draw(runs: Sequence[Run]) -> Figure:
    """Loss, test accuracy, and how far the losses are apart."""
    figure = new_figure(11, 3.3)
    loss, accuracy, difference = figure.subplots(1, 3)
    plot_on_each_other(loss, runs, "loss")
    plot_on_each_other(accuracy, runs, "test_acc", factor=100)
    plot_differences(difference, runs, runs[0])
    epoch_axis(loss, "training loss (nats)")
    epoch_axis(accuracy, "test accuracy (%)")
    epoch_axis(difference, "|loss − the whole batch's loss| (nats)")
    figure.legend(*loss.get_legend_handles_labels(), loc="outside upper center", ncols=len(runs))
    return figure


def row(run: Run, whole: Run) -> list[str]:
    """One row of the table."""
    accuracies = known(run, "test_acc")
    accuracy = f"{100 * accuracies[-1].test_acc:.2f}" if accuracies else ""
    row = [str(run.flags["num_batch"]), f"{run.epochs[-1].loss:.6f}", accuracy]
    if run is whole:
        return [*row, "", ""]
    apart = f"{100 * largest(run, whole, 'test_acc'):.2f}" if accuracies else ""
    return [*row, f"{largest(run, whole, 'loss'):.1e}", apart]


def largest(run: Run, whole: Run, name: str) -> float:
    return max(differences(run, whole, name))


def verdict(runs: Sequence[Run]) -> str:
    """The largest difference of all, in words."""
    whole, *others = runs
    furthest = max(others, key=lambda run: largest(run, whole, "loss"))
    apart = f"{largest(furthest, whole, 'loss'):.1e}"
    text = f"The largest difference of a loss from the whole batch's is {apart}, of {label_of(furthest)}"
    if known(whole, "test_acc"):
        text += f"; of a test accuracy {100 * max(largest(run, whole, 'test_acc') for run in others):.2f} points"
    return f"{text}, in {counted(len(whole.epochs), 'epoch')}."


def show(flags: argparse.Namespace) -> None:
    """Write the picture and the table."""
    runs = read_finished_runs(flags.folder, flags.runs)
    if len(runs) < 2:
        raise BettyError("there is nothing to compare with; name two numbers of micro-batches at least")
    with styled():
        save(draw(runs), flags.folder)
    header = ["K", "final loss", "final test accuracy (%)", "largest difference of a loss", "of an accuracy (points)"]
    first = runs[0]
    write_table(
        flags.folder,
        markdown_table(header, [row(run, first) for run in runs]),
        verdict(runs),
        f"GraphSAGE ({first.flag('aggre')}), {describe(first)}, dropout {first.flag('dropout')} "
        f"({first.flag('dropout_mode')}), learning rate {first.flag('lr')}, "
        f"{first.flag('selection_method')}, {machine(first)}. Differences from K = {first.flag('num_batch')}.",
    )


def main(arguments: list[str] | None = None) -> None:
    """Run the command line."""
    parser = CommandLineParser("scripts/figures/figure13.py", "Draw figure 13 from its runs.")
    add_run_flags(parser)
    flags = parser.parse_args(arguments)
    run_command(parser.prog, lambda: show(flags))


if __name__ == "__main__":
    main()
