"""A plan as a table and as a picture."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

import matplotlib
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from betty.files import whole_file
from betty.memory import MemoryEstimate, parse_size, size_text
from betty.micro_batch_train.plan import MicroBatchPlan

STYLES = [(shade, hatch) for hatch in ("", "////", "....") for shade in ("0.15", "0.85", "0.5")] + [("white", "")]
"""Shade and hatching of every kind of memory, from the bottom of a bar."""

NEXT_ONE = "next one, being loaded"


def plan_table(plan: MicroBatchPlan) -> str:
    """A row per micro-batch: its nodes and edges, what it is estimated to take by part, its share of the budget.

    Sizes include the next micro-batch, which is loaded beside it.
    """
    header = ["micro-batch", "output nodes", "input nodes", "edges"]
    header += [name for name, _ in _stacked(plan)] + ["all"] * bool(plan.estimates)
    header += ["of the budget"] * _has_shares(plan)
    rows = [header, *(_row(plan, number) for number in range(len(plan.parts)))]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join("  ".join(f"{cell:>{width}}" for cell, width in zip(row, widths, strict=True)) for row in rows)


def _row(plan: MicroBatchPlan, number: int) -> list[str]:
    batch = plan.micro_batches[number]
    counts = (batch.output_ids.numel(), batch.input_ids.numel(), batch.num_edges)
    row = [str(number), *(f"{count:,}" for count in counts)]
    row += [size_text(sizes[number]) for _, sizes in _stacked(plan)]
    row += [size_text(need) for need in plan.needs[number : number + 1]]
    return row + ([f"{plan.needs[number] / plan.memory_budget:.1%}"] if _has_shares(plan) else [])


def _has_shares(plan: MicroBatchPlan) -> bool:
    return bool(plan.estimates) and plan.memory_budget is not None


def _stacked(plan: MicroBatchPlan) -> list[tuple[str, list[int]]]:
    """What each kind of memory takes of every micro-batch; they sum to its need."""
    if not plan.estimates:
        return []
    kinds = list(asdict(plan.estimates[0]))
    sizes = [(kind.replace("_", " "), [getattr(estimate, kind) for estimate in plan.estimates]) for kind in kinds]
    return [*sizes, (NEXT_ONE, _beside(plan.estimates, plan.needs))]


def _beside(estimates: list[MemoryEstimate], needs: list[int]) -> list[int]:
    return [need - estimate.peak for estimate, need in zip(estimates, needs, strict=True)]


def plot_plan(path: Path, plan: MicroBatchPlan) -> None:
    """Draw a stacked bar per micro-batch, and the budget as a line.

    Neighbours in a stack differ in brightness and hatching, so that a print in grey can be read.

    Args:
        path: of the PNG file.
        plan: with estimates.
    """
    unit = size_text(max(plan.peak, plan.memory_budget or 0)).split()[1]
    factor = parse_size(f"1{unit}")
    with matplotlib.rc_context({"font.size": 9, "axes.spines.top": False, "axes.spines.right": False}):
        figure = Figure(figsize=(10, 4.5), layout="constrained")
        axes = figure.subplots()
        numbers, bottom = range(len(plan.parts)), [0.0] * len(plan.parts)
        for (name, sizes), (shade, hatch) in zip(_stacked(plan), STYLES, strict=True):
            heights = [size / factor for size in sizes]
            axes.bar(numbers, heights, 0.8, bottom, label=name, color=shade, hatch=hatch, edgecolor="0.35", lw=0.4)
            bottom = [low + height for low, height in zip(bottom, heights, strict=True)]
        if plan.memory_budget is not None:
            budget = f"budget, {size_text(plan.memory_budget)}"
            axes.axhline(plan.memory_budget / factor, color="black", ls="--", label=budget)
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        axes.set(xlabel="micro-batch", ylabel=f"estimated peak memory ({unit})")
        axes.set(xlim=(-0.7, max(len(plan.parts), 4) - 0.3))
        handles, names = axes.get_legend_handles_labels()
        axes.legend(handles[::-1], names[::-1], frameon=False, loc="center left", bbox_to_anchor=(1, 0.5))
        with whole_file(path) as file:
            figure.savefig(file, format="png", dpi=120)
