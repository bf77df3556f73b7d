"""The command lines from end to end, on a tiny graph."""

import gc
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file

from betty.datasets import load_dataset
from betty.errors import BettyError
from betty.full_batch.command_line import main as store_full_batches
from betty.memory import size_text
from betty.micro_batch_train import locality_order, stage_training
from betty.micro_batch_train.command_line import main as train_by_micro_batches
from betty.micro_batch_train.planner import BudgetPartitioning
from betty.micro_batch_train.trainer import MicroBatchTrainer, Partitioning
from betty.mini_batch_train.command_line import main as train_by_mini_batches
from betty.models import GraphSAGE
from betty.training import score

FIELDS = [
    "epoch",
    "loss",
    "train_acc",
    "val_acc",
    "test_acc",
    "num_micro_batches",
    "input_nodes",
    "redundancy",
    "estimated_peak_bytes",
    "peak_memory_bytes",
    "sample_s",
    "partition_s",
    "split_s",
    "transfer_s",
    "compute_s",
    "epoch_s",
]


@pytest.fixture(scope="module")
def data_flags(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    root = tmp_path_factory.mktemp("data")
    return [
        "--dataset",
        "synthetic-tiny",
        "--data-root",
        str(root / "data"),
        "--full-batch-root",
        str(root / "batches"),
    ]


def train(data_flags: list[str], output: Path, *more: str) -> list[dict]:
    train_by_micro_batches([*data_flags, "--quiet", "--output", str(output), *more])
    return read_epochs(output)


def read_epochs(output: Path) -> list[dict]:
    return [json.loads(line) for line in (output / "metrics.jsonl").read_text().splitlines()]


def without_times(epochs: list[dict]) -> list[dict]:
    return [{name: value for name, value in epoch.items() if not name.endswith("_s")} for epoch in epochs]


def same_weights(one: Path, other: Path) -> bool:
    """Of every run, the last ones and the best ones."""
    files = [{path.name: load_file(path) for path in folder.glob("run-*.safetensors")} for folder in (one, other)]
    assert files[0].keys() == files[1].keys() != set()
    return all(
        torch.equal(weights[name], files[1][file][name]) for file, weights in files[0].items() for name in weights
    )


def test_a_run_writes_everything_that_it_promises(data_flags: list[str], tmp_path: Path) -> None:
    epochs = train(data_flags, tmp_path, "--num-epochs", "2", "--num-batch", "3", "--eval", "--eval-every", "2")
    assert [set(FIELDS) - set(epoch) for epoch in epochs] == [set(), set()]
    assert [epoch["val_acc"] is None for epoch in epochs] == [True, False]
    assert all(epoch["num_micro_batches"] == 3 for epoch in epochs)
    assert json.loads((tmp_path / "config.json").read_text())["flags"]["num_batch"] == 3
    summary = json.loads((tmp_path / "summary.json").read_text())
    assert summary["test_acc"]["mean"] == epochs[-1]["test_acc"]
    assert len(json.loads((tmp_path / "micro_batches.json").read_text())) == 3
    assert (tmp_path / "run.png").read_bytes().startswith(b"\x89PNG")
    assert not list(tmp_path.glob("*.partial"))


@pytest.mark.parametrize("main", [train_by_micro_batches, train_by_mini_batches])
def test_peak_memory_of_every_epoch_is_recorded_on_the_cpu_where_asked_for(
    main: Callable[[list[str]], None], data_flags: list[str], tmp_path: Path
) -> None:
    flags = [*data_flags[:4], "--quiet", "--num-epochs", "2", "--device", "cpu"]
    main([*flags, "--output", str(tmp_path / "without")])
    main([*flags, "--output", str(tmp_path / "with"), "--measure-memory"])
    assert [epoch["peak_memory_bytes"] for epoch in read_epochs(tmp_path / "without")] == [None, None]
    weights = sum(weight.nbytes for weight in load_file(tmp_path / "with" / "run-0_last.safetensors").values())
    assert all(epoch["peak_memory_bytes"] > 4 * weights for epoch in read_epochs(tmp_path / "with"))


def test_the_same_flags_give_the_same_numbers(data_flags: list[str], tmp_path: Path) -> None:
    first = train(data_flags, tmp_path / "a", "--num-epochs", "2", "--num-runs", "2")
    second = train(data_flags, tmp_path / "b", "--num-epochs", "2", "--num-runs", "2")
    assert without_times(first) == without_times(second)
    assert same_weights(tmp_path / "a", tmp_path / "b")
    losses = {(epoch["run"], epoch["epoch"]): epoch["loss"] for epoch in first}
    assert losses[0, 1] != losses[1, 1]


@pytest.mark.parametrize("batch_flags", [[], ["--batch-size", "100"]])
def test_stored_full_batches_train_bit_for_bit_as_sampled_ones(
    data_flags: list[str], tmp_path: Path, batch_flags: list[str]
) -> None:
    store_full_batches([*data_flags, *batch_flags, "--num-epochs", "2", "--quiet"])
    stored = train(data_flags, tmp_path / "stored", *batch_flags, "--num-epochs", "2", "--load-full-batch")
    sampled = train(data_flags, tmp_path / "sampled", *batch_flags, "--num-epochs", "2")
    assert without_times(stored) == without_times(sampled)
    assert same_weights(tmp_path / "stored", tmp_path / "sampled")


def test_a_killed_run_goes_on_and_ends_in_the_same_numbers(data_flags: list[str], tmp_path: Path) -> None:
    flags = [*data_flags, "--quiet", "--num-runs", "2", "--num-epochs", "12", "--eval"]
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).parents[2] / "pytorch")}
    command = [sys.executable, "-m", "betty.micro_batch_train", *flags, "--output", str(tmp_path / "killed")]
    process = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE)
    metrics = tmp_path / "killed" / "metrics.jsonl"
    while not (metrics.exists() and len(metrics.read_text().splitlines()) >= 3):
        assert process.poll() is None
        time.sleep(0.01)
    process.send_signal(signal.SIGKILL)
    # Until the process in which the command runs is gone, too, which holds the other end.
    process.communicate()
    assert not (tmp_path / "killed" / "summary.json").exists()

    train_by_micro_batches([*flags, "--output", str(tmp_path / "killed"), "--resume"])
    train_by_micro_batches([*flags, "--output", str(tmp_path / "whole")])
    assert without_times(read_epochs(tmp_path / "killed")) == without_times(read_epochs(tmp_path / "whole"))
    assert same_weights(tmp_path / "killed", tmp_path / "whole")


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--fan-out", "10"], "--num-layers 2 needs as many fan-outs, --fan-out has 1"),
        (["--fan-out", "10,0"], "each is at least 1, or -1 for all"),
        (["--fan-out", "10,99999999999999999999"], "is not a list of whole numbers"),
        (["--batch-size", "99999999999999999999"], "is not a whole number from 0 to"),
        (["--num-hidden", "2000000000"], "out of memory"),
        (["--lr", "1e38"], "is not a number from 0 to 1e30"),
        (["--device", "meta"], "this machine has no device"),
        (["--output", ""], "an empty name is no folder"),
        (["--output", __file__], "test_command_line.py is a file; choose another folder"),
        (["--output", f"{__file__}/run", "--plan-only"], "test_command_line.py is a file; choose another folder"),
        (["--data-root", "/dev/null/x"], "/dev/null"),
        (["--fan-out", "ten"], "is not a list of whole numbers"),
        (["--num-batch", "0"], "is not a whole number above 0"),
        (["--num-batch", "x"], "is not a whole number"),
        (["--memory-budget", "20 apples"], "'20 apples' is not a size like 20GiB, 512MB or 4096 (bytes), or auto"),
        (["--memory-budget", "0"], "is not a size from 1 byte to"),
        (["--memory-budget", "1KiB"], "too small even for one output node at a time"),
        (["--memory-budget", "1GiB", "--num-batch", "4"], "not allowed with argument"),
        (["--memory-budget", "1GiB", "--num-re-partition", "1"], "--num-re-partition goes with --num-batch"),
        (["--aggre", "median"], "invalid choice: 'median'"),
        (["--selection-method", "best"], "invalid choice: 'best'"),
        (["--reg-max-degree", "0"], "is not a whole number above 0"),
        (["--dropout", "1"], "below 1"),
        (["--dropout-mode", "sometimes"], "invalid choice: 'sometimes'"),
        (["--lr", "nan"], "is not a number"),
        (["--device", "quantum"], "this machine has no device 'quantum'"),
        (["--dataset", "nonsense"], "there is no data set 'nonsense'"),
        (["--dataset", "missing.npz"], "missing.npz"),
        (["--load-full-batch", "--seed", "99"], "is not stored in"),
        (["--num-layer", "2"], "unrecognized arguments"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(
    data_flags: list[str], tmp_path: Path, flags: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as end:
        train_by_micro_batches([*data_flags, "--quiet", "--output", str(tmp_path / "run"), *flags])
    assert end.value.code == 2
    errors = capsys.readouterr().err
    assert message in errors
    assert len(errors.splitlines()) == 1
    assert not (tmp_path / "run" / "config.json").exists()


def test_all_neighbours_can_be_asked_for_with_a_space(data_flags: list[str], tmp_path: Path) -> None:
    train(data_flags, tmp_path / "a", "--fan-out", "-1,-1", "--num-epochs", "1")
    config = json.loads((tmp_path / "a" / "config.json").read_text())
    assert config["flags"]["fan_out"] == [-1, -1]


def test_a_loss_that_is_no_number_ends_the_run(
    data_flags: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as end:
        train(data_flags, tmp_path, "--lr", "1e30", "--num-epochs", "5")
    assert end.value.code == 2
    assert "try a lower --lr" in capsys.readouterr().err
    assert len(read_epochs(tmp_path)) < 5


def test_resuming_on_changed_data_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    graph = {"edges": np.array([[0, 1], [1, 2], [2, 3]]), "node_labels": np.array([0, 1, 0, 1])}
    flags = [
        "--dataset",
        str(tmp_path / "graph.npz"),
        "--quiet",
        "--num-epochs",
        "1",
        "--output",
        str(tmp_path / "run"),
    ]
    np.savez(tmp_path / "graph.npz", node_features=np.zeros((4, 3)), **graph)
    train_by_micro_batches(flags)
    np.savez(tmp_path / "graph.npz", node_features=np.ones((4, 3)), **graph)
    with pytest.raises(SystemExit) as end:
        train_by_micro_batches([*flags, "--resume"])
    assert end.value.code == 2
    assert "holds a run on other data" in capsys.readouterr().err


def test_a_run_that_cannot_start_leaves_the_old_one_alone(data_flags: list[str], tmp_path: Path) -> None:
    epochs = train(data_flags, tmp_path, "--num-epochs", "1")
    with pytest.raises(SystemExit):
        train(data_flags, tmp_path, "--num-hidden", "2000000000", "--overwrite")
    assert read_epochs(tmp_path) == epochs
    assert (tmp_path / "summary.json").exists()


def test_mini_batches_are_the_baseline_with_a_step_each(data_flags: list[str], tmp_path: Path) -> None:
    train_by_mini_batches(
        [*data_flags[:4], "--quiet", "--output", str(tmp_path), "--batch-size", "100", "--num-epochs", "2", "--eval"]
    )
    epochs = read_epochs(tmp_path)
    num_training_nodes = sum(
        batch["output_nodes"] for batch in json.loads((tmp_path / "micro_batches.json").read_text())
    )
    assert [epoch["num_micro_batches"] for epoch in epochs] == [-(-num_training_nodes // 100)] * 2
    assert epochs[-1]["redundancy"] is None
    assert epochs[-1]["loss"] < epochs[0]["loss"]
    assert epochs[-1]["test_acc"] is not None


def test_micro_batches_drop_what_the_full_batch_drops(data_flags: list[str], tmp_path: Path) -> None:
    def losses(num_batch: int, dropout_mode: str) -> list[float]:
        flags = ["--num-epochs", "3", "--num-batch", str(num_batch), "--dropout-mode", dropout_mode]
        return [epoch["loss"] for epoch in train(data_flags, tmp_path / f"{num_batch} {dropout_mode}", *flags)]

    assert losses(4, "exact") == pytest.approx(losses(1, "exact"), abs=1e-5)
    assert losses(4, "torch") != pytest.approx(losses(1, "torch"), abs=1e-3)


def test_the_mlp_sees_no_neighbours(data_flags: list[str], tmp_path: Path) -> None:
    epochs = train(data_flags, tmp_path, "--model", "mlp", "--num-epochs", "2")
    assert epochs[-1]["loss"] < epochs[0]["loss"]
    assert {name.split(".")[0] for name in load_file(tmp_path / "run-0_last.safetensors")} == {"layers"}


def table_of(text: str) -> list[list[str]]:
    return [re.split(r"  +", line.strip()) for line in text.splitlines()]


def test_a_budget_decides_on_the_number_of_micro_batches(data_flags: list[str], tmp_path: Path) -> None:
    flags = ["--num-epochs", "2", "--aggre", "sum"]
    (whole, *_) = train(data_flags, tmp_path / "whole", *flags, "--num-batch", "1")
    budget = whole["estimated_peak_bytes"] // 2
    epochs = train(data_flags, tmp_path / "budget", *flags, "--memory-budget", str(budget))
    assert all(epoch["num_micro_batches"] > 2 for epoch in epochs)
    assert all(0 < epoch["estimated_peak_bytes"] <= budget for epoch in epochs)
    assert json.loads((tmp_path / "budget" / "config.json").read_text())["flags"]["num_batch"] is None
    assert epochs[-1]["loss"] < epochs[0]["loss"]


def test_a_budget_of_all_that_is_free_needs_one_micro_batch(data_flags: list[str], tmp_path: Path) -> None:
    (epoch,) = train(data_flags, tmp_path, "--num-epochs", "1", "--memory-budget", "auto")
    assert epoch["num_micro_batches"] == 1


def test_without_a_number_or_a_budget_there_are_four_micro_batches(data_flags: list[str], tmp_path: Path) -> None:
    (epoch,) = train(data_flags, tmp_path, "--num-epochs", "1")
    assert epoch["num_micro_batches"] == 4


def test_the_plan_that_is_printed_is_the_one_that_is_trained(
    data_flags: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    flags = ["--memory-budget", "500KiB", "--num-epochs", "1"]
    train_by_micro_batches([*data_flags, "--quiet", "--output", str(tmp_path / "plan"), *flags, "--plan-only"])
    header, *rows = table_of(capsys.readouterr().out)
    assert sorted(path.name for path in (tmp_path / "plan").iterdir()) == ["estimate.png"]
    assert (tmp_path / "plan" / "estimate.png").read_bytes().startswith(b"\x89PNG")
    assert header[-1] == "of the budget"
    assert 60 < max(float(row[-1].rstrip("%")) for row in rows) <= 100

    (epoch,) = train(data_flags, tmp_path / "run", *flags)
    batches = json.loads((tmp_path / "run" / "micro_batches.json").read_text())
    sizes = [[f"{batch[name]:,}" for name in ("output_nodes", "input_nodes", "edges")] for batch in batches]
    assert [row[1:4] for row in rows] == sizes
    assert size_text(epoch["estimated_peak_bytes"]) in [row[-2] for row in rows]


def test_the_plan_of_a_given_number_has_no_shares(
    data_flags: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    train_by_micro_batches([*data_flags, "--quiet", "--output", str(tmp_path), "--num-batch", "3", "--plan-only"])
    header, *rows = table_of(capsys.readouterr().out)
    assert header[-1] == "all"
    assert [row[0] for row in rows] == ["0", "1", "2"]
    assert (tmp_path / "estimate.png").exists()


@pytest.fixture
def plans(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The kind of every planner that plans, and ``order`` for every locality order that is made."""
    made: list[str] = []

    def note(owner: object, name: str, what: str) -> None:
        original = getattr(owner, name)

        def noted(*arguments: object) -> object:
            made.append(what)
            return original(*arguments)

        monkeypatch.setattr(owner, name, noted)

    note(Partitioning, "plan", "number")
    note(BudgetPartitioning, "plan", "budget")
    note(locality_order, "locality_leaves", "order")
    return made


def own_store(data_flags: list[str], folder: Path) -> list[str]:
    return [*data_flags[:4], "--full-batch-root", str(folder / "store")]


LOCALITY = ["--selection-method", "locality", "--num-epochs", "3"]
SMALL_BUDGET = ["--memory-budget", "500KiB"]


@pytest.mark.parametrize(
    ("more", "first_plans"),
    [
        (LOCALITY, ["order", "number"]),
        ([*LOCALITY, *SMALL_BUDGET], ["order", "budget"]),
        ([*LOCALITY, "--batch-size", "150"], ["order", *["number"] * 12]),
        (["--selection-method", "REG", "--num-epochs", "3", *SMALL_BUDGET], ["budget"] * 3),
    ],
)
def test_a_second_run_plans_nothing_and_gives_the_same_numbers(
    data_flags: list[str], tmp_path: Path, plans: list[str], more: list[str], first_plans: list[str]
) -> None:
    flags = own_store(data_flags, tmp_path)
    first = train(flags, tmp_path / "first", *more)
    assert plans == first_plans
    plans.clear()
    second = train(flags, tmp_path / "second", *more)
    assert plans == []
    assert without_times(second) == without_times(first)
    assert same_weights(tmp_path / "first", tmp_path / "second")
    assert train(own_store(data_flags, tmp_path / "other"), tmp_path / "third", *more)[-1]["loss"] == first[-1]["loss"]


@pytest.mark.parametrize(
    "changed",
    [
        ["--num-hidden", "48"],
        ["--aggre", "pool"],
        ["--seed", "7"],
        ["--fan-out", "9,25"],
        ["--average-degree", "9"],
        ["--memory-budget", "600KiB"],
        ["--reg-max-degree", "3"],
    ],
)
def test_a_run_that_differs_plans_for_itself(
    data_flags: list[str], tmp_path: Path, plans: list[str], changed: list[str]
) -> None:
    flags = [*own_store(data_flags, tmp_path), "--fan-out", "10,25"]
    train(flags, tmp_path / "first", *LOCALITY, *SMALL_BUDGET)
    plans.clear()
    train(flags, tmp_path / "second", *LOCALITY, *SMALL_BUDGET, *changed)
    assert plans[-1:] == ["budget"]


def test_the_weights_that_the_summary_names_give_the_accuracies_that_it_reports(
    data_flags: list[str], tmp_path: Path
) -> None:
    flags = ["--num-epochs", "6", "--num-runs", "2", "--eval", "--eval-every", "1", "--lr", "1", "--num-hidden", "8"]
    epochs = train(data_flags, tmp_path, *flags)
    dataset = load_dataset("synthetic-tiny", data_flags[data_flags.index("--data-root") + 1])
    model = GraphSAGE(dataset.num_features, 8, dataset.num_classes, num_layers=2)
    runs = json.loads((tmp_path / "summary.json").read_text())["runs"]
    for run in runs:
        last = [epoch for epoch in epochs if epoch["run"] == run["run"]][-1]
        for which, reported in (("best", run), ("last", last)):
            model.load_state_dict(load_file(tmp_path / run["weights"][which]))
            scores = score(model, dataset, torch.device("cpu"))
            assert {name: reported[name] for name in vars(scores)} == vars(scores)
    assert any(run["best_epoch"] != 5 for run in runs)


def test_a_finished_run_goes_on_to_more_epochs_as_if_it_had_been_to_have_them(
    data_flags: list[str], tmp_path: Path
) -> None:
    flags = ["--eval", "--eval-every", "2", "--num-epochs"]
    train(data_flags, tmp_path / "extended", *flags, "3")
    extended = train(data_flags, tmp_path / "extended", *flags, "5", "--resume")
    whole = train(data_flags, tmp_path / "whole", *flags, "5")
    for name in ("train_acc", "val_acc", "test_acc"):
        # The former end was evaluated as such.
        assert extended[2][name] is not None
        assert whole[2][name] is None
        extended[2][name] = None
    assert without_times(extended) == without_times(whole)
    weights = [load_file(tmp_path / name / "run-0_last.safetensors") for name in ("extended", "whole")]
    assert all(torch.equal(weights[0][name], weights[1][name]) for name in weights[0])
    assert json.loads((tmp_path / "extended" / "summary.json").read_text())["num_epochs"] == 5
    assert json.loads((tmp_path / "extended" / "config.json").read_text())["flags"]["num_epochs"] == 5


@pytest.mark.parametrize("amount", [["--num-batch", "3"], ["--memory-budget", "700KB"]])
@pytest.mark.parametrize("method", ["locality", "REG"])
def test_what_a_shortage_taught_is_known_when_the_run_is_resumed(
    data_flags: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, amount: list[str], method: str
) -> None:
    flags = [*amount, "--selection-method", method, "--num-epochs", "4"]
    train_epoch, share_of_loss = MicroBatchTrainer.train_epoch, stage_training.share_of_loss
    at = {"epoch": 0, "trained": 0, "broken off in": None}

    def short_of_memory_in_the_second_epoch(*arguments):
        at["trained"] += 1
        if at["epoch"] == 1 and at["trained"] == 2:
            raise MemoryError
        return share_of_loss(*arguments)

    def noting_the_epoch(trainer: MicroBatchTrainer, model, optimizer, run: int, epoch: int):
        at.update(epoch=epoch, trained=0)
        if epoch == at["broken off in"]:
            raise BettyError("broken off")
        return train_epoch(trainer, model, optimizer, run, epoch)

    monkeypatch.setattr(stage_training, "share_of_loss", short_of_memory_in_the_second_epoch)
    monkeypatch.setattr(MicroBatchTrainer, "train_epoch", noting_the_epoch)
    whole = train(own_store(data_flags, tmp_path / "one"), tmp_path / "whole", *flags)
    with safe_open(tmp_path / "whole" / "checkpoint.safetensors", framework="pt") as checkpoint:
        learned = json.loads(checkpoint.metadata()["betty"])["facts"]["learned"]
    assert learned in ({"num_parts": 4}, {"share": 0.9})

    at["broken off in"] = 2
    with pytest.raises(SystemExit):
        train(own_store(data_flags, tmp_path / "other"), tmp_path / "resumed", *flags)
    at["broken off in"] = None
    gc.collect()  # what the error's traceback holds has the folder's lock
    resumed = train(own_store(data_flags, tmp_path / "other"), tmp_path / "resumed", *flags, "--resume")
    assert without_times(resumed) == without_times(whole)
    assert same_weights(tmp_path / "resumed", tmp_path / "whole")


@pytest.mark.parametrize("method", ["locality", "REG"])
@pytest.mark.parametrize("is_stored", [True, False])
def test_a_run_resumed_in_the_fourth_epoch_ends_in_the_numbers_of_an_uninterrupted_one(
    data_flags: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, method: str, is_stored: bool
) -> None:
    flags, more = own_store(data_flags, tmp_path), ["--selection-method", method, "--num-epochs", "5", *SMALL_BUDGET]
    train_epoch = MicroBatchTrainer.train_epoch

    def broken_off(trainer: MicroBatchTrainer, model, optimizer, run: int, epoch: int):
        if epoch == 3:
            raise BettyError("broken off")
        return train_epoch(trainer, model, optimizer, run, epoch)

    monkeypatch.setattr(MicroBatchTrainer, "train_epoch", broken_off)
    with pytest.raises(SystemExit):
        train(flags, tmp_path / "resumed", *more)
    monkeypatch.setattr(MicroBatchTrainer, "train_epoch", train_epoch)
    gc.collect()  # what the error's traceback holds has the folder's lock
    assert len(read_epochs(tmp_path / "resumed")) == 3
    if not is_stored:
        shutil.rmtree(tmp_path / "store")
    resumed = train(flags, tmp_path / "resumed", *more, "--resume")
    whole = train(own_store(data_flags, tmp_path / "other"), tmp_path / "whole", *more)
    assert without_times(resumed) == without_times(whole)
    assert same_weights(tmp_path / "resumed", tmp_path / "whole")


def test_a_store_that_cannot_be_written_costs_a_warning_and_not_the_run(
    data_flags: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    expected = train(own_store(data_flags, tmp_path), tmp_path / "first", *LOCALITY)
    capsys.readouterr()
    flags = own_store(data_flags, tmp_path / "other")
    (tmp_path / "other" / "store").mkdir(parents=True)
    (tmp_path / "other" / "store" / "synthetic-tiny").write_text("no folder")
    found = train(flags, tmp_path / "second", *LOCALITY)
    assert without_times(found) == without_times(expected)
    warnings = capsys.readouterr().err.splitlines()
    assert [warning.count("cannot be written") for warning in warnings] == [1, 1]


@pytest.mark.parametrize("damage", [b"", b"not one of ours", None])
def test_damaged_files_of_the_store_are_made_again_with_a_warning_each(
    data_flags: list[str],
    tmp_path: Path,
    plans: list[str],
    capsys: pytest.CaptureFixture[str],
    damage: bytes | None,
) -> None:
    flags = own_store(data_flags, tmp_path)
    expected = train(flags, tmp_path / "first", *LOCALITY)
    stored = {path: load_file(path)["values"].clone() for path in (tmp_path / "store").rglob("*.safetensors")}
    assert len(stored) == 2
    for path in stored:
        path.write_bytes(path.read_bytes()[:-3] if damage is None else damage)
    plans.clear()
    capsys.readouterr()
    found = train(flags, tmp_path / "second", *LOCALITY)
    assert without_times(found) == without_times(expected)
    assert plans == ["order", "number"]
    warnings = capsys.readouterr().err.splitlines()
    assert [warning.endswith("is made again") for warning in warnings] == [True, True]
    assert all(torch.equal(load_file(path)["values"], values) for path, values in stored.items())


@pytest.mark.parametrize("fan_out", ["1,2", "2,2", "3,1"])
@pytest.mark.parametrize("share", [3, 8])
def test_no_epoch_is_estimated_above_the_budget_where_each_samples_few_of_many(
    data_flags: list[str], tmp_path: Path, fan_out: str, share: int
) -> None:
    flags = ["--selection-method", "locality", "--fan-out", fan_out, "--num-hidden", "8"]
    (whole,) = train(data_flags, tmp_path / "whole", *flags, "--num-batch", "1", "--num-epochs", "1")
    budget = str(whole["estimated_peak_bytes"] * 2 // share)
    epochs = train(data_flags, tmp_path / "budget", *flags, "--memory-budget", budget, "--num-epochs", "8")
    assert all(epoch["estimated_peak_bytes"] <= int(budget) for epoch in epochs)
    assert all(epoch["num_micro_batches"] >= epochs[0]["num_micro_batches"] > 1 for epoch in epochs)


INTERRUPTED = """
import sys, time
from pathlib import Path

from betty.micro_batch_train.trainer import Partitioning
from betty.watch import watched

plan, marker = Partitioning.plan, Path(sys.argv.pop(1))

def slow_from_the_second_on(*arguments):
    if marker.exists():
        Path(f"{marker}-second").touch()
        time.sleep(600)
    marker.touch()
    return plan(*arguments)

Partitioning.plan = slow_from_the_second_on
watched("betty.micro_batch_train")
"""


def test_an_interrupt_ends_the_command_whatever_is_planned_in_the_background(
    data_flags: list[str], tmp_path: Path
) -> None:
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).parents[2] / "pytorch")}
    flags = [
        *own_store(data_flags, tmp_path),
        "--quiet",
        "--selection-method",
        "REG",
        "--output",
        str(tmp_path / "run"),
    ]
    command = [sys.executable, "-c", INTERRUPTED, str(tmp_path / "marker"), *flags]
    process = subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True)
    while not (tmp_path / "marker-second").exists():
        assert process.poll() is None
        time.sleep(0.01)
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 130
    assert errors == "python -m betty.micro_batch_train: interrupted\n"


@pytest.mark.parametrize("flag", ["--output", "--data-root", "--full-batch-root", "--dataset"])
def test_a_path_that_is_not_in_utf_8_is_refused_in_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], flag: str
) -> None:
    with pytest.raises(SystemExit) as end:
        train_by_micro_batches([flag, f"{tmp_path}/\udcff"])
    assert end.value.code == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "is not in UTF-8" in line
