"""Figure 5: the in-degree distribution, and the estimated memory by part against the measured peak."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import StrMethodFormatter
from measurement import read_measurement
from published import IN_DEGREES, EstimateOfLstm
from runs import Run, read_finished_runs
from style import LOOKS, label_bars, looks, new_figure, save, size_unit, styled
from tables import add_run_flags, describe, machine, markdown_table, size_or_nothing, write_table

from betty import BettyError
from betty.command_line import CommandLineParser, run_command

MOST_DEGREES_IN_THE_TABLE = 16


@dataclass(frozen=True)
class Case:
    """A run's last epoch: estimated by part, and measured, in bytes."""

    run: Run
    by_part: dict[str, int]

    @property
    def estimate(self) -> int:
        return self.run.epochs[-1].estimated_peak_bytes

    @property
    def measured(self) -> int:
        return self.run.epochs[-1].peak_memory_bytes

    @property
    def error(self) -> float:
        """In percent, above 0 where the estimate is too high."""
        return 100 * (self.estimate / self.measured - 1)

    @property
    def label(self) -> str:
        return f"{self.run.flag('aggre')}\nK = {self.run.flag('num_batch')}"


def case_of(run: Run, measurements: Sequence[dict]) -> Case:
    """A run beside the measurement of the same flags.

    Raises:
        BettyError: they do not tell of the same estimate.
    """
    for measurement in measurements:
        for estimate in measurement["estimates"]:
            same_model = measurement["flags"]["aggre"] == run.flag("aggre")
            if same_model and estimate["num_batch"] == run.flags["num_batch"]:
                if estimate["peak"] != run.epochs[-1].estimated_peak_bytes:
                    raise BettyError(f"{run.name} and the measurement of its parts are of different batches")
                return Case(run, estimate["by_part"])
    raise BettyError(f"there is no measurement of {run.name}")


def plot_degrees(axes: Axes, degrees: Sequence[tuple[int, int]]) -> None:
    """Output nodes by in-degree."""
    axes.bar([degree for degree, _ in degrees], [count for _, count in degrees], 0.8, **LOOKS[2].bar)
    axes.yaxis.set_major_formatter(StrMethodFormatter("{x:,.0f}"))
    axes.set(xlabel="in-degree (sampled neighbours)", ylabel="output nodes")


def plot_cases(axes: Axes, cases: Sequence[Case]) -> None:
    """A stack of parts beside what was measured, per case."""
    unit = size_unit([case.measured for case in cases])
    parts = list(cases[0].by_part)
    positions = range(len(cases))
    bottoms = [0.0] * len(cases)
    for part, look in looks(parts).items():
        heights = [unit(case.by_part[part]) for case in cases]
        left = [position - 0.2 for position in positions]
        axes.bar(left, heights, 0.38, bottoms, label=part.replace("_", " "), **look.bar)
        bottoms = [bottom + height for bottom, height in zip(bottoms, heights, strict=True)]
    right = [position + 0.2 for position in positions]
    axes.bar(right, [unit(case.measured) for case in cases], 0.38, color="0.2", label="measured peak")
    tops = [max(bottom, unit(case.measured)) for bottom, case in zip(bottoms, cases, strict=True)]
    label_bars(axes, positions, tops, [f"{case.error:+.2f} %" for case in cases])
    axes.set_xticks(positions, [case.label for case in cases])
    axes.set_ylabel(f"memory ({unit.name}): estimate by part, measured")
    handles, labels = axes.get_legend_handles_labels()
    axes.legend(handles[::-1], labels[::-1], loc="upper left", bbox_to_anchor=(1, 1))


def draw(cases: Sequence[Case], degrees: Sequence[tuple[int, int]]) -> Figure:
    """In-degrees on the left, estimates on the right."""
    figure = new_figure(6.5 + 0.6 * len(cases), 3.8)
    left, right = figure.subplots(1, 2, width_ratios=[1, 0.6 + 0.22 * len(cases)])
    plot_degrees(left, degrees)
    plot_cases(right, cases)
    return figure


def table(cases: Sequence[Case]) -> str:
    """A row per case, and the published one."""
    parts = list(cases[0].by_part)
    header = ["model", "K", *(part.replace("_", " ") for part in parts), "estimate", "measured peak", "error (%)"]
    rows = [
        [
            case.run.flag("aggre"),
            case.run.flag("num_batch"),
            *(size_or_nothing(case.by_part[part]) for part in parts),
            size_or_nothing(case.estimate),
            size_or_nothing(case.measured),
            f"{case.error:+.2f}",
        ]
        for case in cases
    ]
    theirs = EstimateOfLstm()
    sizes = [f"{theirs.estimate_gb:.2f} GB", f"{theirs.measured_gb:.2f} GB", theirs.error]
    return markdown_table(header, [*rows, ["lstm, published", "1", *("" for _ in parts), *sizes]])


def degree_table(degrees: Sequence[tuple[int, int]]) -> list[str]:
    """The distribution beside the published one, where it is short enough to be read."""
    if len(degrees) > MOST_DEGREES_IN_THE_TABLE:
        return []
    header = ["in-degree", *(str(degree) for degree, _ in degrees)]
    ours = ["output nodes", *(f"{count:,}" for _, count in degrees)]
    theirs = ["published, ogbn-arxiv"]
    theirs += [f"{IN_DEGREES[degree]:,}" if degree in IN_DEGREES else "" for degree, _ in degrees]
    return [markdown_table(header, [ours, theirs])]


def show(flags: argparse.Namespace) -> None:
    """Write the picture and the table."""
    runs = read_finished_runs(flags.folder, flags.runs)
    measurements = [read_measurement(flags.folder / "runs" / name) for name in flags.estimates]
    cases = [case_of(run, measurements) for run in runs]
    degrees = measurements[0]["in_degrees"]
    with styled():
        save(draw(cases, degrees), flags.folder)
    first = runs[0]
    write_table(
        flags.folder,
        table(cases),
        *degree_table(degrees),
        f"{describe(first)}, {first.flag('selection_method')}, {machine(first)}. Estimates are of the largest of K "
        "micro-batches while the next one is loaded, made before anything runs; peaks are measured in the same epoch. "
        "Published: the artifact's 1-layer LSTM on ogbn-arxiv, 128 hidden channels, fan-out 10.",
    )


def main(arguments: list[str] | None = None) -> None:
    """Run the command line."""
    parser = CommandLineParser("scripts/figures/figure05.py", "Draw figure 5 from its runs.")
    add_run_flags(parser)
    parser.add_argument("--estimates", nargs="+", required=True, metavar="NAME", help="measurements of the estimates")
    flags = parser.parse_args(arguments)
    run_command(parser.prog, lambda: show(flags))


if __name__ == "__main__":
    main()
