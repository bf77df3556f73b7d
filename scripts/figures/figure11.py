"""Figure 11: the partitioning methods at equal K, by measured peak memory, redundancy and time."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import groupby

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from published import LARGEST_REDUCTION
from runs import Run, Spread, largest_of, mean_of, median_of, read_finished_runs, spread
from style import Look, grouped_positions, legend_patch, looks, new_figure, save, size_unit, styled
from tables import add_run_flags, machine, markdown_table, size_or_nothing, spread_text, write_table

from betty.command_line import CommandLineParser, run_command

BASELINES = ("range", "random", "metis")


@dataclass(frozen=True)
class Measured:
    """What a run measured, as means and standard deviations over its seeds; bytes and seconds."""

    dataset: str
    num_batch: int
    method: str
    num_runs: int
    peak: Spread
    redundancy: Spread
    epoch_s: Spread
    first_partition_s: float
    partition_s: Spread
    compute_s: Spread

    @classmethod
    def of(cls, run: Run) -> Measured:
        return cls(
            dataset=run.dataset,
            num_batch=run.flags["num_batch"],
            method=run.flag("selection_method"),
            num_runs=run.summary.num_runs,
            peak=spread(run.per_run(largest_of("peak_memory_bytes"))),
            redundancy=spread(run.per_run(mean_of("redundancy"))),
            epoch_s=spread(run.per_run(median_of("epoch_s"))),
            first_partition_s=run.epochs[0].partition_s,
            partition_s=spread(run.per_run(median_of("partition_s"))),
            compute_s=spread(run.per_run(median_of("compute_s"))),
        )


def plot_bars(
    axes: Axes, cases: Sequence[Measured], methods: dict[str, Look], value: Callable[[Measured], Spread], factor: float
) -> None:
    """A group of bars per K, one per method, with the standard deviation over seeds as an error bar."""
    counts = sorted({case.num_batch for case in cases})
    found = {(case.method, case.num_batch): value(case) for case in cases}
    positions = grouped_positions(len(counts), len(methods))
    for (method, look), xs in zip(methods.items(), positions, strict=True):
        known = [(x, found[method, count]) for x, count in zip(xs, counts, strict=True) if (method, count) in found]
        heights = [value.mean / factor for _, value in known]
        errors = [value.std / factor for _, value in known]
        bars = look.bar | {"error_kw": {"elinewidth": 0.9, "capsize": 2}}
        axes.bar([x for x, _ in known], heights, 0.8 / len(methods), yerr=errors, **bars)
    axes.set_xticks(range(len(counts)), [f"K = {count}" for count in counts])


def draw(cases: Sequence[Measured]) -> Figure:
    """A row per data set; peak memory, redundancy and epoch time."""
    methods = looks(list(dict.fromkeys(case.method for case in cases)))
    datasets = list(dict.fromkeys(case.dataset for case in cases))
    figure = new_figure(10.5, 0.6 + 2.4 * len(datasets))
    rows = figure.subplots(len(datasets), 3, squeeze=False)
    for dataset, (peaks, redundancies, times) in zip(datasets, rows, strict=True):
        own = [case for case in cases if case.dataset == dataset]
        unit = size_unit([case.peak.mean for case in own])
        plot_bars(peaks, own, methods, lambda case: case.peak, unit.num_bytes)
        plot_bars(redundancies, own, methods, lambda case: case.redundancy, 1)
        plot_bars(times, own, methods, lambda case: case.epoch_s, 1)
        peaks.set_ylabel(f"{dataset}\npeak memory ({unit.name})")
        redundancies.set_ylabel("input nodes ÷\nthose of the whole batch")
        times.set_ylabel("epoch time (s)")
    handles = [legend_patch(look, method) for method, look in methods.items()]
    figure.legend(handles=handles, loc="outside upper center", ncols=len(handles))
    return figure


def measured_row(case: Measured) -> list[str]:
    """One row of the first table."""
    count = case.num_runs
    deviation = f" ± {size_or_nothing(case.peak.std)}" if count > 1 else ""
    return [
        case.dataset,
        str(case.num_batch),
        case.method,
        size_or_nothing(case.peak.mean) + deviation,
        spread_text(case.redundancy, count, 3),
        f"{case.first_partition_s:.3f}",
        spread_text(case.partition_s, count, 3),
        spread_text(case.compute_s, count, 3),
        spread_text(case.epoch_s, count, 3),
    ]


def reduction(case: Measured, baseline: Measured) -> str:
    """By how much a peak is below a baseline's, in percent."""
    return f"{100 * (1 - case.peak.mean / baseline.peak.mean):.1f} ({baseline.method})"


def reduction_rows(cases: Sequence[Measured]) -> list[list[str]]:
    """Every other method against the worst and the best baseline at equal K."""
    rows = []
    for (dataset, count), group in groupby(cases, key=lambda case: (case.dataset, case.num_batch)):
        own = list(group)
        baselines = sorted((case for case in own if case.method in BASELINES), key=lambda case: case.peak.mean)
        for case in own:
            if baselines and case.method not in BASELINES:
                against = [reduction(case, baselines[-1]), reduction(case, baselines[0])]
                rows.append([dataset, str(count), case.method, *against])
    return rows


def show(flags: argparse.Namespace) -> None:
    """Write the picture and the table."""
    runs = read_finished_runs(flags.folder, flags.runs)
    cases = [Measured.of(run) for run in runs]
    with styled():
        save(draw(cases), flags.folder)
    header = ["graph", "K", "method", "peak memory", "redundancy"]
    header += ["first partition (s)", "later ones (s)", "compute (s)", "epoch (s)"]
    against = ["graph", "K", "method", "less than the worst baseline (%)", "less than the best baseline (%)"]
    first = runs[0]
    write_table(
        flags.folder,
        markdown_table(header, [measured_row(case) for case in cases]),
        f"Reduction of the measured peak against the baselines {', '.join(BASELINES)}, at equal K; published: up to "
        f"{LARGEST_REDUCTION}.",
        markdown_table(against, reduction_rows(cases)),
        f"GraphSAGE ({first.flag('aggre')}), {first.flag('num_layers')} layers, {first.flag('num_hidden')} hidden "
        f"channels, fan-outs {first.flag('fan_out')}, {machine(first)}. Mean ± standard deviation over "
        f"{first.summary.num_runs} runs, which differ in weights and, where parts do not serve every epoch, "
        "in partitions. Times are medians of the epochs after the first; partitioning goes on beside the training.",
    )


def main(arguments: list[str] | None = None) -> None:
    """Run the command line."""
    parser = CommandLineParser("scripts/figures/figure11.py", "Draw figure 11 from its runs.")
    add_run_flags(parser)
    flags = parser.parse_args(arguments)
    run_command(parser.prog, lambda: show(flags))


if __name__ == "__main__":
    main()
