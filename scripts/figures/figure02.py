"""Figure 2: the peak memory of the whole batch, and which configurations the device has no room for."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

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
from published import SOURCE, WHOLE_BATCH
from runs import Run
from style import LOOKS, OUT_OF_MEMORY, SizeUnit, label_bars, legend_patch, save, size_unit, styled
from tables import markdown_table, size_or_nothing, write_table

from betty.command_line import CommandLineParser, run_command
from betty.memory import size_text

FITS = LOOKS[2]


def plot(axes: Axes, panel: Panel, capacity: int, unit: SizeUnit) -> None:
    """A bar per configuration, the capacity as a line."""
    sizes = [size_to_draw(run) or capacity for run in panel.runs]
    too_large = [exceeds(run, capacity) for run in panel.runs]
    for position, (size, is_too_large) in enumerate(zip(sizes, too_large, strict=True)):
        axes.bar(position, unit(size), 0.65, **(OUT_OF_MEMORY if is_too_large else FITS).bar)
    marks = ["OOM" if is_too_large else "" for is_too_large in too_large]
    label_bars(axes, range(len(sizes)), [unit(size) for size in sizes], marks)
    axes.axhline(unit(capacity), color="black", ls="--", lw=1)
    axes.set_xticks(range(len(sizes)), panel.labels)
    axes.set(xlabel=panel.title, title=panel.fixed)


def draw(panels: Sequence[Panel], capacity: int) -> Figure:
    """All panels side by side, with one axis of sizes."""
    sizes = [size_to_draw(run) or 0 for panel in panels for run in panel.runs]
    unit = size_unit([*sizes, capacity])
    figure, all_axes = figure_of(panels)
    for axes, panel in zip(all_axes, panels, strict=True):
        plot(axes, panel, capacity, unit)
    all_axes[0].set_ylabel(f"peak memory of the whole batch ({unit.name})")
    line = Line2D([], [], color="black", ls="--", lw=1, label=f"the device's capacity, {size_text(capacity)}")
    handles = [legend_patch(FITS, "fits"), legend_patch(OUT_OF_MEMORY, "out of memory (OOM)"), line]
    figure.legend(handles=handles, loc="outside upper center", ncols=3)
    return figure


def row(panel: Panel, run: Run, capacity: int) -> list[str]:
    """One row of the table."""
    size = None if run.ran_out_of_memory else run.peak_memory_bytes
    return [
        panel.title,
        *configuration(run),
        size_or_nothing(run.estimated_peak_bytes),
        size_or_nothing(size),
        f"{size / capacity:.2f}" if size else "",
        "yes" if exceeds(run, capacity) else "no",
        WHOLE_BATCH.get((panel.varied, run.flag(panel.varied)), ""),
    ]


def show(flags: argparse.Namespace) -> None:
    """Write the picture and the table."""
    panels = read_panels(flags, flags.folder)
    with styled():
        save(draw(panels, flags.capacity), flags.folder)
    header = ["varied", *CONFIGURATION, "estimated", "measured peak", "÷ capacity", "out of memory", "published"]
    rows = [row(panel, run, flags.capacity) for panel in panels for run in panel.runs]
    write_table(
        flags.folder,
        markdown_table(header, rows),
        f"Peak memory of training on the whole batch at once, {place_of(panels)}; capacity "
        f"{size_text(flags.capacity)}. Out of memory: the measured peak exceeds the capacity, or the device had no "
        f"room. {SOURCE}, 256 hidden channels, fan-outs 10,25,30,40.",
    )


def main(arguments: list[str] | None = None) -> None:
    """Run the command line."""
    parser = CommandLineParser("scripts/figures/figure02.py", "Draw figure 2 from its runs.")
    add_panel_flags(parser)
    flags = parser.parse_args(arguments)
    run_command(parser.prog, lambda: show(flags))


if __name__ == "__main__":
    main()
