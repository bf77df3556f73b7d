"""Figure 4: loss and test accuracy over epochs, full batch against small mini-batches."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from runs import Run, median_of, read_finished_runs, spread
from style import Look, epoch_axis, looks, new_figure, save, styled
from tables import add_run_flags, describe, machine, markdown_table, number_or_nothing, spread_text, write_table

from betty.command_line import CommandLineParser, run_command


def label_of(run: Run) -> str:
    """What was trained on: the batch size tells."""
    size = run.flags["batch_size"]
    if size is None:
        return "full batch"
    return f"{run.epochs[-1].num_micro_batches} mini-batches of {size:,}"


def curve(run: Run, name: str) -> tuple[np.ndarray, np.ndarray]:
    """A field over epochs.

    Returns:
        The epochs in which it is known, from 1, int64 ``[epochs]``, and its values, float64 ``[runs, epochs]``.
    """
    known = [epoch for epoch in run.epochs if getattr(epoch, name) is not None]
    numbers = sorted({epoch.epoch for epoch in known})
    values = np.array([getattr(epoch, name) for epoch in known], dtype=np.float64)
    return np.array(numbers) + 1, values.reshape(-1, len(numbers))


def plot(axes: Axes, run: Run, name: str, look: Look, factor: float = 1.0) -> None:
    """The mean over runs with a band of a standard deviation to both sides."""
    epochs, values = curve(run, name)
    if not len(epochs):
        return
    mean, deviation = factor * values.mean(0), factor * values.std(0, ddof=1 if len(values) > 1 else 0)
    marked = max(1, len(epochs) // 8)
    axes.plot(epochs, mean, label=label_of(run), markevery=marked, **look.curve)
    if len(values) > 1:
        axes.fill_between(epochs, mean - deviation, mean + deviation, color=look.color, alpha=0.25, lw=0)


def draw(runs: Sequence[Run]) -> Figure:
    """Loss on the left, test accuracy on the right."""
    figure = new_figure(8.5, 3.5)
    loss, accuracy = figure.subplots(1, 2)
    for run, look in zip(runs, looks([run.name for run in runs]).values(), strict=True):
        plot(loss, run, "loss", look)
        plot(accuracy, run, "test_acc", look, factor=100)
    epoch_axis(loss, "training loss (nats)")
    epoch_axis(accuracy, "test accuracy (%)")
    figure.legend(*loss.get_legend_handles_labels(), loc="outside upper center", ncols=len(runs))
    return figure


def row(run: Run) -> list[str]:
    """One row of the table."""
    count, summary = run.summary.num_runs, run.summary
    last = spread(run.per_run(lambda epochs: epochs[-1].test_acc)) if run.epochs[-1].test_acc is not None else None
    return [
        label_of(run),
        "1" if run.flags["batch_size"] is None else str(run.epochs[-1].num_micro_batches),
        str(len(run.epochs) // count),
        str(count),
        spread_text(summary.final_loss, count, 4),
        spread_text(last, count, 2, 100) if last else "",
        spread_text(summary.test_acc, count, 2, 100) if summary.test_acc else "",
        number_or_nothing(spread(run.per_run(median_of("epoch_s"))).mean, 2),
    ]


def show(flags: argparse.Namespace) -> None:
    """Write the picture and the table."""
    runs = read_finished_runs(flags.folder, flags.runs)
    with styled():
        save(draw(runs), flags.folder)
    header = ["training", "steps an epoch", "epochs", "runs", "final loss", "final test accuracy (%)"]
    header += ["test accuracy at the best validation epoch (%)", "epoch (s)"]
    write_table(
        flags.folder,
        markdown_table(header, [row(run) for run in runs]),
        f"GraphSAGE ({runs[0].flag('aggre')}), {describe(runs[0])}, dropout {runs[0].flag('dropout')}, learning rate "
        f"{runs[0].flag('lr')}, {machine(runs[0])}. Mean ± standard deviation over runs, in the picture as a band. "
        "In the paper: ogbn-products, all 196,615 training nodes against 16 mini-batches of 12,289.",
    )


def main(arguments: list[str] | None = None) -> None:
    """Run the command line."""
    parser = CommandLineParser("scripts/figures/figure04.py", "Draw figure 4 from its runs.")
    add_run_flags(parser)
    flags = parser.parse_args(arguments)
    run_command(parser.prog, lambda: show(flags))


if __name__ == "__main__":
    main()
