"""Figure 10: figure 2's configurations in as few micro-batches as fit the device."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from panels import (
    CONFIGURATION,
    Panel,
    add_panel_flags,
    configuration,
    exceeds,
    figure_of,
    place_of,
    read_panels,
    size_to_draw,
)
from published import MICRO_BATCHES, SOURCE
from runs import Run, median_of
from style import (
    LOOKS,
    WHOLE,
    SizeUnit,
    grouped_positions,
    label_bars,
    legend_patch,
    save,
    size_unit,
    styled,
)
from tables import markdown_table, number_or_nothing, size_or_nothing, write_table

from betty.command_line import CommandLineParser, run_command
from betty.memory import size_text

MICRO = LOOKS[0]


def trained_inside(run: Run, capacity: int) -> bool:
    """Whether a run kept to the capacity, as measured."""
    return run.peak_memory_bytes is not None and run.peak_memory_bytes <= capacity


def num_micro_batches(run: Run) -> int | None:
    return run.epochs[-1].num_micro_batches if run.epochs else None


def planned_peak(run: Run) -> int | None:
    """Bytes: the largest of all epochs, as the measured peak is."""
    return max((epoch.estimated_peak_bytes for epoch in run.epochs), default=None)


def plot(axes: Axes, panel: Panel, whole: Panel, capacity: int, unit: SizeUnit) -> None:
    """Two bars per configuration: the whole batch, and micro-batches with their number above."""
    left, right = grouped_positions(len(panel.runs), 2)
    axes.bar(left, [unit(size_to_draw(run) or capacity) for run in whole.runs], 0.38, **WHOLE.bar)
    tops = [unit(run.peak_memory_bytes or 0) for run in panel.runs]
    axes.bar(right, tops, 0.38, **MICRO.bar)
    label_bars(axes, right, tops, [str(num_micro_batches(run) or "OOM") for run in panel.runs])
    axes.axhline(unit(capacity), color="black", ls="--", lw=1)
    axes.set_xticks(range(len(panel.runs)), panel.labels)
    axes.set(xlabel=panel.title, title=panel.fixed)


def draw(panels: Sequence[Panel], wholes: Sequence[Panel], capacity: int) -> Figure:
    """All panels side by side, with one axis of sizes."""
    sizes = [size_to_draw(run) or 0 for panel in wholes for run in panel.runs]
    unit = size_unit([*sizes, capacity])
    figure, all_axes = figure_of(panels)
    for axes, panel, whole in zip(all_axes, panels, wholes, strict=True):
        plot(axes, panel, whole, capacity, unit)
    all_axes[0].set_ylabel(f"peak memory ({unit.name})")
    line = Line2D([], [], color="black", ls="--", lw=1, label=f"the device's capacity, {size_text(capacity)}")
    bars = [legend_patch(WHOLE, "whole batch"), legend_patch(MICRO, "micro-batches, their number above")]
    figure.legend(handles=[*bars, line], loc="outside upper center", ncols=3)
    return figure


def row(panel: Panel, run: Run, whole: Run, capacity: int) -> list[str]:
    """One row of the table."""
    size = run.peak_memory_bytes
    epoch_s = run.per_run(median_of("epoch_s"))[0] if run.epochs else None
    return [
        panel.title,
        *configuration(run),
        size_or_nothing(size_to_draw(whole)),
        "yes" if exceeds(whole, capacity) else "no",
        str(num_micro_batches(run) or ""),
        size_or_nothing(planned_peak(run)),
        size_or_nothing(size),
        f"{size / capacity:.3f}" if size else "",
        "yes" if trained_inside(run, capacity) else "no",
        number_or_nothing(run.epochs[-1].redundancy if run.epochs else None, 2),
        number_or_nothing(epoch_s, 2),
        MICRO_BATCHES.get((panel.varied, run.flag(panel.varied)), ""),
    ]


def verdict(panels: Sequence[Panel], wholes: Sequence[Panel], capacity: int) -> str:
    """Whether all that the device has no room for at once trained on it in micro-batches."""
    pairs = {
        run.name: (run, whole)
        for panel, whole_panel in zip(panels, wholes, strict=True)
        for run, whole in zip(panel.runs, whole_panel.runs, strict=True)
    }
    too_large = [run for run, whole in pairs.values() if exceeds(whole, capacity)]
    outside = [run.name for run in too_large if not trained_inside(run, capacity)]
    answer = f"not: {', '.join(outside)}" if outside else "all of them"
    return (
        f"Of {len(pairs)} configurations {len(too_large)} are out of memory as a whole batch (figure 2); of these "
        f"{len(too_large) - len(outside)} trained inside the capacity as micro-batches, {answer}."
    )


def show(flags: argparse.Namespace) -> None:
    """Write the picture and the table."""
    panels, wholes = read_panels(flags, flags.folder), read_panels(flags, flags.whole_batches)
    with styled():
        save(draw(panels, wholes, flags.capacity), flags.folder)
    header = ["varied", *CONFIGURATION, "whole batch", "out of memory", "micro-batches", "planned peak"]
    header += ["measured peak", "÷ capacity", "inside the capacity", "redundancy", "epoch (s)", "published"]
    rows = [
        row(panel, run, whole, flags.capacity)
        for panel, whole_panel in zip(panels, wholes, strict=True)
        for run, whole in zip(panel.runs, whole_panel.runs, strict=True)
    ]
    write_table(
        flags.folder,
        markdown_table(header, rows),
        verdict(panels, wholes, flags.capacity),
        f"As few micro-batches as the capacity of {size_text(flags.capacity)} allows, by "
        f"{panels[0].runs[0].flag('selection_method')}, {place_of(panels)}. {SOURCE}: micro-batches and their peak.",
    )


def main(arguments: list[str] | None = None) -> None:
    """Run the command line."""
    parser = CommandLineParser("scripts/figures/figure10.py", "Draw figure 10 from its runs and those of figure 2.")
    add_panel_flags(parser)
    parser.add_argument("--whole-batches", type=Path, required=True, help="the folder of figure 2")
    flags = parser.parse_args(arguments)
    run_command(parser.prog, lambda: show(flags))


if __name__ == "__main__":
    main()
