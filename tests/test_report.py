"""Summaries against numbers worked out by hand."""

from pathlib import Path

import pytest
import torch

from betty import BettyError
from betty.compare.command_line import comparison
from betty.report import plot_run, summarize, summary_table
from betty.run_folder import BatchRecord, RunFolder


def epoch(run: int, number: int, loss: float, val: float | None, test: float | None) -> dict:
    times = dict.fromkeys(("sample_s", "partition_s", "split_s", "transfer_s", "compute_s"), 0.5)
    return {
        "run": run,
        "epoch": number,
        "loss": loss,
        "train_acc": val,
        "val_acc": val,
        "test_acc": test,
        "num_micro_batches": 4,
        "input_nodes": 100 + number,
        "redundancy": 1.5,
        "estimated_peak_bytes": None,
        "peak_memory_bytes": None,
        **times,
        "epoch_s": 1.0 + number,
    }


EPOCHS = [
    epoch(0, 0, 3.0, 0.5, 0.4),
    epoch(0, 1, 2.0, 0.7, 0.6),
    epoch(0, 2, 1.0, 0.6, 0.9),
    epoch(1, 0, 3.0, 0.5, 0.4),
    epoch(1, 1, 2.5, None, None),
    epoch(1, 2, 2.0, 0.8, 0.8),
]
BATCHES = [BatchRecord(output_nodes=5, input_nodes=50, edges=100, compute_s=0.1)] * 4


def test_test_accuracy_is_that_of_the_best_validation_epoch() -> None:
    summary = summarize(EPOCHS)
    assert [run["best_epoch"] for run in summary["runs"]] == [1, 2]
    assert [run["test_acc"] for run in summary["runs"]] == [0.6, 0.8]
    assert summary["test_acc"]["mean"] == pytest.approx(0.7)
    assert summary["test_acc"]["std"] == pytest.approx(0.02**0.5)
    assert summary["final_loss"]["mean"] == pytest.approx(1.5)
    assert summary["epoch_s"] == pytest.approx(2.0)
    assert summary["input_nodes"] == pytest.approx(101)


def test_runs_that_were_not_evaluated_have_no_accuracy() -> None:
    summary = summarize([epoch(0, 0, 1.0, None, None)])
    assert summary["test_acc"] is None
    assert summary["runs"][0]["best_epoch"] is None
    assert "test accuracy" not in summary_table(summary)


def test_a_single_run_has_no_deviation() -> None:
    assert "±" not in summary_table(summarize(EPOCHS[:3]))


def test_the_table_shows_mean_and_deviation() -> None:
    assert "test accuracy                    0.7000 ± 0.1414" in summary_table(summarize(EPOCHS))


@pytest.mark.parametrize("epochs", [EPOCHS, [epoch(0, 0, 1.0, None, None)]])
def test_the_picture_is_a_whole_png_file(tmp_path: Path, epochs: list[dict]) -> None:
    plot_run(tmp_path / "run.png", epochs, BATCHES)
    assert (tmp_path / "run.png").read_bytes().startswith(b"\x89PNG")
    assert [path.name for path in tmp_path.iterdir()] == ["run.png"]


def test_runs_are_compared_side_by_side(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path / "ours", {}, "refuse")
    folder.open({}, {})
    model = torch.nn.Linear(1, 1)
    folder.record(0, 0, EPOCHS[0], BATCHES, model, torch.optim.Adam(model.parameters()), {}, None)
    folder.write_summary(summarize(EPOCHS))
    table = comparison([tmp_path / "ours"]).splitlines()
    assert table[2] == "| ours | 4 | 1.500 | 1.5000 ± 0.7071 | 0.7000 ± 0.1414 | 2.00 |"


def test_a_folder_without_a_finished_run_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BettyError, match=r"holds no run: there is no config\.json"):
        comparison([tmp_path])
