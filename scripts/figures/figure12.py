"""Figure 12: peak memory, epoch time and redundancy over the number of micro-batches, per aggregator."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from published import BY_NUM_BATCH, SOURCE
from runs import Run, median_of, read_finished_runs
from style import PUBLISHED, SizeUnit, looks, new_figure, save, size_unit, styled
from tables import add_run_flags, describe, machine, markdown_table, size_or_nothing, write_table

from betty.command_line import CommandLineParser, run_command
from betty.memory import parse_size

PUBLISHED_LABEL = "published: LSTM, ogbn-products"


def epoch_s(run: Run) -> float:
    return run.per_run(median_of("epoch_s"))[0]


def redundancy(run: Run) -> float:
    """Of the last epoch; other epochs have other samples."""
    return run.epochs[-1].redundancy


def by_aggregator(runs: Sequence[Run]) -> dict[str, list[Run]]:
    """The runs of each aggregator, in the order of the runs."""
    names = list(dict.fromkeys(run.flag("aggre") for run in runs))
    return {name: [run for run in runs if run.flag("aggre") == name] for name in names}


def plot_aggregators(peaks: Axes, times: Axes, redundancies: Axes, runs: Sequence[Run], unit: SizeUnit) -> None:
    """A line per aggregator."""
    groups = by_aggregator(runs)
    for (aggre, group), look in zip(groups.items(), looks(list(groups)).values(), strict=True):
        counts = [run.flags["num_batch"] for run in group]
        peaks.plot(counts, [unit(run.peak_memory_bytes) for run in group], label=aggre, **look.curve)
        times.plot(counts, [epoch_s(run) for run in group], label=aggre, **look.curve)
        redundancies.plot(counts, [redundancy(run) for run in group], label=aggre, **look.curve)


def plot_published(peaks: Axes, times: Axes, redundancies: Axes, unit: SizeUnit) -> None:
    """The artifact's numbers, in grey."""
    counts, values = list(BY_NUM_BATCH), list(BY_NUM_BATCH.values())
    gigabyte = parse_size("1GB")
    peaks.plot(counts, [unit(value.peak_gb * gigabyte) for value in values], label=PUBLISHED_LABEL, **PUBLISHED.curve)
    times.plot(counts, [value.epoch_s for value in values], label=PUBLISHED_LABEL, **PUBLISHED.curve)
    redundancies.plot(counts, [value.redundancy for value in values], label=PUBLISHED_LABEL, **PUBLISHED.curve)


def draw(runs: Sequence[Run]) -> Figure:
    """Three panels over K."""
    unit = size_unit([run.peak_memory_bytes for run in runs])
    figure = new_figure(10.5, 3.4)
    peaks, times, redundancies = all_axes = figure.subplots(1, 3)
    plot_aggregators(*all_axes, runs, unit)
    plot_published(*all_axes, unit)
    counts = sorted({run.flags["num_batch"] for run in runs} | set(BY_NUM_BATCH))
    for axes in all_axes:
        axes.set_xscale("log", base=2)
        axes.set_xticks(counts, [str(count) for count in counts])
        axes.set_xlabel("micro-batches (K)")
    peaks.set_yscale("log")
    times.set_yscale("log")
    peaks.set_ylabel(f"peak memory ({unit.name})")
    times.set_ylabel("epoch time (s)")
    redundancies.set_ylabel("input nodes ÷ those of the whole batch")
    handles, labels = peaks.get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside upper center", ncols=len(labels))
    return figure


def row(run: Run, whole: Run | None) -> list[str]:
    """One row of the table; ``whole`` is the run of K = 1, where there is one."""
    count = run.flags["num_batch"]
    published = BY_NUM_BATCH.get(count) if run.flag("aggre") == "lstm" else None
    share = f"{run.peak_memory_bytes / whole.peak_memory_bytes:.3f}" if whole else ""
    row = [run.flag("aggre"), str(count), size_or_nothing(run.peak_memory_bytes), share]
    row += [f"{redundancy(run):.2f}", f"{epoch_s(run):.3f}", f"{run.per_run(median_of('compute_s'))[0]:.3f}"]
    if published is None:
        return [*row, "", "", "", ""]
    peak, of_one = published.peak_gb, BY_NUM_BATCH[1].peak_gb
    return [*row, f"{peak:.2f} GB", f"{peak / of_one:.3f}", f"{published.redundancy:.2f}", f"{published.epoch_s:.3f}"]


def show(flags: argparse.Namespace) -> None:
    """Write the picture and the table."""
    runs = read_finished_runs(flags.folder, flags.runs)
    with styled():
        save(draw(runs), flags.folder)
    wholes = {run.flag("aggre"): run for run in runs if run.flags["num_batch"] == 1}
    header = ["aggregator", "K", "peak memory", "÷ K = 1", "redundancy", "epoch (s)", "of it compute (s)"]
    header += ["published peak", "÷ K = 1", "published redundancy", "published epoch (s)"]
    first = runs[0]
    write_table(
        flags.folder,
        markdown_table(header, [row(run, wholes.get(run.flag("aggre"))) for run in runs]),
        f"{describe(first)}, {first.flag('selection_method')}, {machine(first)}. Peaks are measured, times are medians "
        "of the epochs after the first; an epoch's time includes what it waits for partitioning beside the training. "
        f"{SOURCE}, 1-layer LSTM, 256 hidden channels, fan-out 10; its times are of training alone.",
    )


def main(arguments: list[str] | None = None) -> None:
    """Run the command line."""
    parser = CommandLineParser("scripts/figures/figure12.py", "Draw figure 12 from its runs.")
    add_run_flags(parser)
    flags = parser.parse_args(arguments)
    run_command(parser.prog, lambda: show(flags))


if __name__ == "__main__":
    main()
