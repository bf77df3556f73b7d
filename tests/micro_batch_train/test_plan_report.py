import re
from pathlib import Path

import numpy as np
from matplotlib.image import imread

from betty import GraphSAGE, MicroBatchPlan, partition
from betty.memory import parse_size
from betty.micro_batch_train.plan import estimated, model_estimate
from betty.micro_batch_train.plan_report import plan_table, plot_plan
from tests.random_blocks import random_full_batch


def plan(memory_budget: int | None, is_known: bool = True) -> MicroBatchPlan:
    full_batch = random_full_batch([200, 100, 50], 4, seed=0)
    estimate = model_estimate(GraphSAGE(40, 32, 5, 2), "cpu") if is_known else None
    return estimated(full_batch, partition(full_batch, 3, "range"), estimate, memory_budget)


def cells(table: str) -> list[list[str]]:
    return [re.split(r"  +", line.strip()) for line in table.splitlines()]


def test_the_kinds_of_a_row_sum_to_its_need_and_to_its_share() -> None:
    planned = plan(memory_budget=10**6)
    header, *rows = cells(plan_table(planned))
    assert header[:4] == ["micro-batch", "output nodes", "input nodes", "edges"]
    for row, need, batch in zip(rows, planned.needs, planned.micro_batches, strict=True):
        assert row[1:4] == [str(batch.output_ids.numel()), str(batch.input_ids.numel()), str(batch.num_edges)]
        assert abs(sum(parse_size(cell) for cell in row[4:-2] if cell != "0 B") - need) < 0.01 * need
        assert row[-1] == f"{need / 10**6:.1%}"


def test_what_is_not_known_is_left_out() -> None:
    assert cells(plan_table(plan(None)))[0][-1] == "all"
    assert cells(plan_table(plan(10**6, is_known=False)))[0][-1] == "edges"


def test_the_picture_shows_the_budget_above_the_bars(tmp_path: Path) -> None:
    """The topmost black row that crosses the whole picture is the budget's line."""
    for budget in (plan(None).peak, 4 * plan(None).peak):
        plot_plan(tmp_path / f"{budget}.png", plan(budget))
    heights = []
    for path in sorted(tmp_path.iterdir(), key=lambda path: int(path.stem)):
        image = imread(path)[:, 200:700, :3]
        bars = ((image > 0.05) & (image < 0.97)).mean(axis=(1, 2)) > 0.2
        heights.append(int(np.count_nonzero(bars)))
    assert heights[0] > 2 * heights[1] > 0
