"""A finished command in numbers, a table and a picture."""

from __future__ import annotations

import logging
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator

from betty.files import whole_file
from betty.run_folder import BatchRecord, weights_file

# Without a home folder to write to, it warns of its font cache at every start.
logging.getLogger("matplotlib").setLevel(logging.ERROR)

Metrics = dict[str, Any]

LABELS = {
    "sample_s": "sampling",
    "partition_s": "partitioning",
    "split_s": "splitting",
    "transfer_s": "transfer",
    "compute_s": "forward and backward",
    "epoch_s": "everything",
}
SECONDS = tuple(LABELS)


def summarize(epochs: Sequence[Metrics]) -> dict[str, Any]:
    """Condense the epochs' objects into ``summary.json``.

    A run's test accuracy is that of its epoch with the best validation accuracy (the first such epoch).

    Args:
        epochs: the objects of ``metrics.jsonl``, of one or more runs.

    Returns:
        A JSON object: every run's outcome, their mean and standard deviation, and means over all epochs.
    """
    runs = [_summarize_run(run, [e for e in epochs if e["run"] == run]) for run in sorted({e["run"] for e in epochs})]
    peaks = [e["peak_memory_bytes"] for e in epochs if e["peak_memory_bytes"] is not None]
    return {
        "num_runs": len(runs),
        "num_epochs": len(epochs) // len(runs),
        **{name: _spread([run[name] for run in runs]) for name in ("final_loss", "val_acc", "test_acc")},
        "num_micro_batches": statistics.fmean(e["num_micro_batches"] for e in epochs),
        "input_nodes": statistics.fmean(e["input_nodes"] for e in epochs),
        "redundancy": _mean([e["redundancy"] for e in epochs]),
        "peak_memory_bytes": max(peaks, default=None),
        **{name: statistics.fmean(e[name] for e in epochs) for name in SECONDS},
        "runs": runs,
    }


def _summarize_run(run: int, epochs: Sequence[Metrics]) -> dict[str, Any]:
    evaluated = [e for e in epochs if e["val_acc"] is not None]
    best = max(evaluated, key=lambda e: e["val_acc"], default=None)
    names = ("train_acc", "val_acc", "test_acc")
    return {
        "run": run,
        "final_loss": epochs[-1]["loss"],
        "best_epoch": best["epoch"] if best else None,
        **{name: best[name] if best else None for name in names},
        "weights": {"best": weights_file(run, "best") if best else None, "last": weights_file(run, "last")},
    }


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return statistics.fmean(known) if known else None


def _spread(values: Sequence[float | None]) -> dict[str, float] | None:
    known = [value for value in values if value is not None]
    if not known:
        return None
    return {"mean": statistics.fmean(known), "std": statistics.stdev(known) if len(known) > 1 else 0.0}


def summary_table(summary: dict[str, Any]) -> str:
    """The summary as the terminal shows it: what is known, and the times that were taken."""
    rows = [
        ("final loss", spread_text(summary["final_loss"], summary["num_runs"])),
        ("validation accuracy", spread_text(summary["val_acc"], summary["num_runs"])),
        ("test accuracy", spread_text(summary["test_acc"], summary["num_runs"])),
        ("redundancy", _text(summary["redundancy"], "{:.3f}")),
        ("peak memory", _text(summary["peak_memory_bytes"], "{:,} bytes")),
        ("per epoch: batches", f"{summary['num_micro_batches']:g}"),
        ("per epoch: input nodes", f"{summary['input_nodes']:,.0f}"),
        *((f"per epoch: {LABELS[name]}", f"{summary[name]:.3f} s" if summary[name] else "") for name in SECONDS),
    ]
    shown = [(name, text) for name, text in rows if text]
    width = max(len(name) for name, _ in shown)
    return "\n".join(f"{name:<{width}}  {text}" for name, text in shown)


def _text(value: float | None, form: str) -> str:
    return "" if value is None else form.format(value)


def spread_text(spread: dict[str, float] | None, num_runs: int) -> str:
    """Mean and standard deviation; of a single run the number alone, where there is one."""
    if spread is None:
        return ""
    mean = f"{spread['mean']:.4f}"
    return mean if num_runs == 1 else f"{mean} ± {spread['std']:.4f}"


def plot_run(path: Path, epochs: Sequence[Metrics], batches: Sequence[BatchRecord]) -> None:
    """Draw loss and accuracy over epochs, and the last epoch's micro-batches.

    Args:
        path: of the PNG file.
        epochs: the objects of ``metrics.jsonl``.
        batches: the last epoch's.
    """
    with matplotlib.rc_context({"font.size": 9, "axes.spines.top": False, "axes.spines.right": False}):
        figure = Figure(figsize=(10, 6.5), layout="constrained")
        loss, accuracy, nodes, seconds = figure.subplots(2, 2).flat
        _plot_epochs(loss, epochs, {"loss": "-"}, "training loss")
        _plot_epochs(accuracy, epochs, {"train_acc": ":", "val_acc": "--", "test_acc": "-"}, "accuracy")
        _plot_batches(nodes, batches, {"input_nodes": "0.75", "output_nodes": "0.2"}, "nodes")
        _plot_batches(seconds, batches, {"compute_s": "0.45"}, "forward and backward (s)")
        with whole_file(path) as file:
            figure.savefig(file, format="png", dpi=120)


def _plot_epochs(axes: Axes, epochs: Sequence[Metrics], styles: dict[str, str], label: str) -> None:
    """A line per run (its colour) and metric (its style)."""
    runs = sorted({e["run"] for e in epochs})
    for run in runs:
        for name, style in styles.items():
            known = [(e["epoch"], e[name]) for e in epochs if e["run"] == run and e[name] is not None]
            if known:
                marker = "o" if len(known) == 1 else None
                axes.plot(*zip(*known, strict=True), style, color=f"C{run % 10}", marker=marker)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.set(xlabel="epoch", ylabel=label)
    if not axes.lines:
        axes.text(0.5, 0.5, "not evaluated", ha="center", transform=axes.transAxes)
        return
    handles = []
    if len(styles) > 1:
        handles += [
            Line2D([], [], color="0.3", ls=style, label=name.removesuffix("_acc")) for name, style in styles.items()
        ]
    if len(runs) > 1:
        handles += [Line2D([], [], color=f"C{run % 10}", label=f"run {run}") for run in runs[:10]]
    if handles:
        axes.legend(handles=handles, frameon=False, fontsize=8)


def _plot_batches(axes: Axes, batches: Sequence[BatchRecord], colors: dict[str, str], label: str) -> None:
    """Bars that stand before each other, the larger numbers behind."""
    for name, color in colors.items():
        legend = name.replace("_", " ")
        axes.bar(range(len(batches)), [getattr(batch, name) for batch in batches], color=color, label=legend)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.set(xlabel="batch of the last epoch", ylabel=label, xlim=(-0.7, max(len(batches), 4) - 0.3))
    if len(colors) > 1:
        axes.legend(frameon=False, fontsize=8, loc="lower left", bbox_to_anchor=(0, 1), ncols=2)
