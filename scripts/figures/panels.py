"""Panels of bars: runs that differ in one flag."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from runs import Run, read_runs
from style import new_figure
from tables import counted, machine

from betty import BettyError
from betty.command_line import CommandLineParser
from betty.memory import parse_size

VARIED = {"aggre": "aggregator", "num_layers": "layers", "num_hidden": "hidden channels", "fan_out": "fan-out"}


@dataclass(frozen=True)
class Panel:
    """Runs that differ in one flag, in the order in which their bars stand."""

    varied: str
    runs: tuple[Run, ...]

    @property
    def title(self) -> str:
        return VARIED[self.varied]

    @property
    def labels(self) -> list[str]:
        return [run.flag(self.varied) for run in self.runs]

    @property
    def fixed(self) -> str:
        """What its runs have in common, in words."""
        first = self.runs[0]
        parts = {
            "num_layers": counted(int(first.flag("num_layers")), "layer"),
            "aggre": first.flag("aggre"),
            "num_hidden": f"{first.flag('num_hidden')} hidden",
            "fan_out": f"fan-outs {first.flag('fan_out')}",
        }
        left_out = {self.varied} | ({"fan_out"} if self.varied == "num_layers" else set())
        return ", ".join(text for name, text in parts.items() if name not in left_out)


def add_panel_flags(parser: CommandLineParser) -> None:
    parser.add_argument("--folder", type=Path, required=True, help="of the figure, with runs/ in it")
    parser.add_argument("--capacity", type=parse_size, required=True, help="of the device, like 24GiB")
    parser.add_argument(
        "--panel",
        nargs="+",
        action="append",
        required=True,
        metavar=("FLAG", "RUN"),
        help=f"what is varied ({', '.join(VARIED)}) and the names of the runs",
    )


def read_panels(flags: argparse.Namespace, folder: Path) -> list[Panel]:
    """The panels that the flags name, with the runs of a folder.

    Raises:
        BettyError: a run is missing, or what is varied is unknown.
    """
    for varied, *_ in flags.panel:
        if varied not in VARIED:
            raise BettyError(f"a panel varies {', '.join(VARIED)}, not {varied}")
    return [Panel(varied, tuple(read_runs(folder, names))) for varied, *names in flags.panel]


def exceeds(run: Run, capacity: int) -> bool:
    """Whether a run needs more than the device has: it was measured, or the device said so."""
    return run.ran_out_of_memory or (run.peak_memory_bytes or 0) > capacity


def size_to_draw(run: Run) -> int | None:
    """Bytes: what was measured, or what was estimated of a run that did not get that far."""
    return run.estimated_peak_bytes if run.ran_out_of_memory else run.peak_memory_bytes


def configuration(run: Run) -> list[str]:
    """The cells of a table that tell a run from the others."""
    return [run.flag(name) for name in ("aggre", "num_layers", "num_hidden", "fan_out")]


CONFIGURATION = ["aggregator", "layers", "hidden", "fan-outs"]


def figure_of(panels: Sequence[Panel]) -> tuple[Figure, list[Axes]]:
    """A figure with axes for each panel side by side, as wide as its bars need, and one scale of sizes."""
    widths = [max(3, len(panel.runs)) for panel in panels]
    figure = new_figure(1.5 + 0.65 * sum(widths), 3.4)
    all_axes = list(figure.subplots(1, len(panels), sharey=True, squeeze=False, width_ratios=widths)[0])
    for axes, width in zip(all_axes, widths, strict=True):
        axes.set_xlim(-0.6, width - 0.4)
    return figure, all_axes


def place_of(panels: Sequence[Panel]) -> str:
    """Data set and machine; a run without memory for a single epoch does not know the machine."""
    runs = [run for panel in panels for run in panel.runs]
    known = next((run for run in runs if run.environment), None)
    return f"{runs[0].dataset}, {machine(known)}" if known else runs[0].dataset
