"""What a run writes, and going on with it."""

import json
import logging
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from betty import BettyError
from betty.files import LOCK
from betty.run_folder import BatchRecord, Best, Checkpoint, RunFolder, describe_environment, finished_summary

FLAGS = {"lr": 0.1, "output": "a"}
DATA = {"graph": "abc"}
BATCHES = (BatchRecord(output_nodes=1, input_nodes=2, edges=3, compute_s=0.5),)
LEARNED = {"num_parts": 5}


def open_folder(
    path: Path, if_exists: str, flags: dict = FLAGS, data: dict = DATA
) -> tuple[RunFolder, Checkpoint | None]:
    folder = RunFolder(path, flags, if_exists)
    return folder, folder.open(data, {})


def model_and_optimizer() -> tuple[torch.nn.Module, torch.optim.Optimizer]:
    model = torch.nn.Linear(3, 2)
    optimizer = torch.optim.Adam(model.parameters())
    model(torch.ones(1, 3)).sum().backward()
    optimizer.step()
    return model, optimizer


def record_epoch(
    folder: RunFolder, epoch: int = 0, best: Best | None = None
) -> tuple[torch.nn.Module, torch.optim.Optimizer]:
    model, optimizer = model_and_optimizer()
    folder.record(0, epoch, {"epoch": epoch}, BATCHES, model, optimizer, LEARNED, best)
    return model, optimizer


@pytest.fixture
def finished(tmp_path: Path) -> Path:
    """A folder with a run of one epoch."""
    folder, _ = open_folder(tmp_path / "run", "refuse")
    record_epoch(folder)
    folder.write_summary({"loss": 0.5})
    return tmp_path / "run"


def names(path: Path) -> list[str]:
    return sorted(file.name for file in path.iterdir() if file.name != LOCK)


def test_a_folder_with_a_run_is_refused(finished: Path) -> None:
    with pytest.raises(BettyError, match="holds a run already; add --resume or --overwrite"):
        RunFolder(finished, FLAGS, "refuse")


def test_a_file_in_the_place_of_the_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(BettyError, match="is a file"):
        RunFolder(tmp_path / "file", FLAGS, "overwrite")


def test_a_folder_that_another_run_is_in_is_refused(tmp_path: Path) -> None:
    first, _ = open_folder(tmp_path, "refuse")
    with pytest.raises(BettyError, match="another process is writing to"):
        open_folder(tmp_path, "overwrite")
    record_epoch(first)


def test_overwriting_removes_the_old_run_with_the_first_epoch_and_nothing_else(finished: Path) -> None:
    (finished / "notes.txt").write_text("mine")
    before = names(finished)
    folder, checkpoint = open_folder(finished, "overwrite", {"lr": 0.2})
    assert checkpoint is None
    assert names(finished) == before
    record_epoch(folder)
    assert "summary.json" not in names(finished)
    assert "notes.txt" in names(finished)
    assert folder.epochs() == [{"epoch": 0}]


def test_nothing_is_written_before_the_first_epoch(tmp_path: Path) -> None:
    open_folder(tmp_path / "new", "refuse")
    assert names(tmp_path / "new") == []


def test_resuming_with_other_flags_is_refused_by_their_names(finished: Path) -> None:
    with pytest.raises(BettyError, match=r"other flags \(--lr\)"):
        RunFolder(finished, {"lr": 0.2, "output": "b"}, "resume")


def test_resuming_on_other_data_is_refused(finished: Path) -> None:
    with pytest.raises(BettyError, match="a run on other data"):
        open_folder(finished, "resume", data={"graph": "def"})


def test_a_checkpoint_comes_back_and_later_epochs_are_cut_off(tmp_path: Path) -> None:
    folder, _ = open_folder(tmp_path, "refuse")
    model, optimizer = record_epoch(folder)
    with open(tmp_path / "metrics.jsonl", "a") as file:
        file.write('{"epoch": 1}\n{"epoch": 2, "lo')
    del folder

    folder, checkpoint = open_folder(tmp_path, "resume")
    assert (checkpoint.progress.run, checkpoint.progress.epoch) == (0, 0)
    assert (folder.batches, checkpoint.progress.learned) == (BATCHES, LEARNED)
    assert folder.epochs() == [{"epoch": 0}]
    assert torch.equal(checkpoint.model["weight"], model.weight)
    assert torch.equal(checkpoint.optimizer[0]["exp_avg"], optimizer.state[model.weight]["exp_avg"])
    record_epoch(folder, 1)
    del folder
    folder, checkpoint = open_folder(tmp_path, "resume")
    assert (checkpoint.progress.epoch, folder.epochs()) == (1, [{"epoch": 0}, {"epoch": 1}])


def test_a_run_killed_before_its_first_checkpoint_starts_anew(tmp_path: Path) -> None:
    folder, _ = open_folder(tmp_path, "refuse")
    record_epoch(folder)
    (tmp_path / "checkpoint.safetensors").unlink()
    del folder
    folder, checkpoint = open_folder(tmp_path, "resume")
    assert checkpoint is None
    record_epoch(folder)
    assert folder.epochs() == [{"epoch": 0}]


def change(name: str, content: bytes | None) -> Callable[[Path], None]:
    def damage(path: Path) -> None:
        file = path / name
        file.write_bytes(file.read_bytes()[:100] if content is None else content)

    return damage


@pytest.mark.parametrize(
    "damage",
    [
        change("checkpoint.safetensors", None),
        change("checkpoint.safetensors", b""),
        change("checkpoint.safetensors", b"x" * 50),
        change("metrics.jsonl", b""),
        change("metrics.jsonl", b"x" * 50),
        change("metrics.jsonl", b'{"epoch": 1}\n'),
        change("config.json", b"[]"),
        change("config.json", b'{"flags": null}'),
        change("config.json", b"[" * 200_000),
        change("config.json", b'{"flags": {"lr": 0.1, "output": "a"}, "data": {"graph": "abc"}}'),
    ],
)
def test_a_broken_run_is_refused_by_the_files_name_and_not_damaged_further(
    finished: Path, damage: Callable[[Path], None]
) -> None:
    damage(finished)
    before = {name: (finished / name).read_bytes() for name in names(finished)}
    with pytest.raises(
        BettyError, match=r"(checkpoint\.safetensors cannot be used|config\.json is not the conf).*--overwrite"
    ):
        open_folder(finished, "resume")
    assert {name: (finished / name).read_bytes() for name in names(finished)} == before


@pytest.mark.parametrize("name", ["checkpoint.safetensors", "metrics.jsonl", "config.json"])
def test_a_run_with_a_flipped_bit_is_refused_or_is_the_same_run(finished: Path, name: str) -> None:
    intact, refused = (finished / name).read_bytes(), 0
    for position in range(0, len(intact), max(1, len(intact) // 100)):
        flipped = bytearray(intact)
        flipped[position] ^= 1
        (finished / name).write_bytes(flipped)
        try:
            folder, checkpoint = open_folder(finished, "resume")
            assert (folder.epochs(), checkpoint.progress.learned) == ([{"epoch": 0}], LEARNED)
            del folder
        except BettyError:
            refused += 1
        (finished / name).write_bytes(intact)
    # Another space between two tokens is no damage.
    assert refused > 0.6 * len(range(0, len(intact), max(1, len(intact) // 100)))


@pytest.mark.parametrize("if_exists", ["resume", "overwrite", "refuse"])
def test_a_checkpoint_without_a_configuration_is_no_run(
    finished: Path, caplog: pytest.LogCaptureFixture, if_exists: str
) -> None:
    (finished / "config.json").unlink()
    folder, checkpoint = open_folder(finished, if_exists, {"lr": 0.2})
    assert checkpoint is None
    assert "so of no run; a new run replaces it" in caplog.text
    record_epoch(folder)
    assert "summary.json" not in names(finished)


def test_a_checkpoint_of_another_run_beside_a_configuration_is_refused(finished: Path, tmp_path: Path) -> None:
    other, _ = open_folder(tmp_path / "other", "refuse", {"lr": 0.2})
    record_epoch(other)
    shutil.copy(tmp_path / "other" / "checkpoint.safetensors", finished)
    with pytest.raises(BettyError, match=r"checkpoint\.safetensors cannot be used.*made from something else"):
        open_folder(finished, "resume")


def test_the_summary_of_a_finished_run_comes_back(finished: Path) -> None:
    assert finished_summary(finished) == {"loss": 0.5}
    assert json.loads((finished / "micro_batches.json").read_text()) == [vars(BATCHES[0])]


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda path: (path / "config.json").unlink(), "holds no run"),
        (lambda path: (path / "summary.json").unlink(), r"summary\.json does not exist"),
        (change("config.json", b"{}"), "is not the configuration of a run"),
        (change("summary.json", b'{"loss": 0.25}'), r"summary\.json cannot be used .*--resume"),
        (change("summary.json", b"["), r"summary\.json cannot be used .*--resume"),
    ],
)
def test_no_other_summary_is_taken_for_that_of_the_run(
    finished: Path, damage: Callable[[Path], None], message: str
) -> None:
    damage(finished)
    with pytest.raises(BettyError, match=message):
        finished_summary(finished)


def test_the_summary_of_another_run_is_refused(finished: Path, tmp_path: Path) -> None:
    other, _ = open_folder(tmp_path / "other", "refuse", {"lr": 0.2})
    record_epoch(other)
    other.write_summary({})
    shutil.copy(tmp_path / "other" / "summary.json", finished)
    with pytest.raises(BettyError, match=r"summary\.json is of another run than config\.json"):
        finished_summary(finished)


def test_weights_are_saved_for_others_to_load(tmp_path: Path) -> None:
    folder, _ = open_folder(tmp_path, "refuse")
    model, _ = record_epoch(folder)
    folder.save_weights(0, model, None)
    folder.save_weights(1, model, Best(0, 0.5, {"weight": torch.ones(2)}))
    assert torch.equal(load_file(tmp_path / "run-0_last.safetensors")["weight"], model.weight)
    assert torch.equal(load_file(tmp_path / "run-1_best.safetensors")["weight"], torch.ones(2))
    assert not (tmp_path / "run-0_best.safetensors").exists()


def test_damaged_weights_of_a_run_that_is_done_are_refused(tmp_path: Path) -> None:
    folder, _ = open_folder(tmp_path, "refuse")
    model, _ = record_epoch(folder)
    folder.save_weights(0, model, None)
    record_epoch(folder)
    del folder
    path = tmp_path / "run-0_last.safetensors"
    path.write_bytes(path.read_bytes()[:-1] + b"?")
    with pytest.raises(BettyError, match=r"run-0_last\.safetensors is damaged.*--overwrite"):
        open_folder(tmp_path, "resume")


def test_best_weights_come_back_with_the_checkpoint(tmp_path: Path) -> None:
    folder, _ = open_folder(tmp_path, "refuse")
    record_epoch(folder, 3, Best(2, 0.25, {"weight": torch.ones(2)}))
    del folder
    _, checkpoint = open_folder(tmp_path, "resume")
    assert (checkpoint.best.epoch, checkpoint.best.val_acc) == (2, 0.25)
    assert torch.equal(checkpoint.best.model["weight"], torch.ones(2))


def test_a_run_may_go_on_to_more_epochs(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    folder, _ = open_folder(tmp_path, "refuse", {"num_epochs": 1})
    record_epoch(folder)
    folder.write_summary({})
    del folder
    with caplog.at_level(logging.INFO, logger="betty"):
        folder, checkpoint = open_folder(tmp_path, "resume", {"num_epochs": 3})
    assert "going on to 3 epochs; the last of 1 was the end and evaluated as such" in caplog.text
    assert checkpoint.progress.epoch == 0
    with pytest.raises(BettyError, match=r"summary\.json does not exist"):
        finished_summary(tmp_path)
    record_epoch(folder, 1)
    del folder
    with pytest.raises(BettyError, match=r"other flags \(--num-epochs\)"):
        open_folder(tmp_path, "resume", {"num_epochs": 2})
    assert open_folder(tmp_path, "resume", {"num_epochs": 3})[1].progress.epoch == 1


def test_runs_that_are_done_do_not_go_on_to_more_epochs(tmp_path: Path) -> None:
    folder, _ = open_folder(tmp_path, "refuse", {"num_epochs": 1})
    model, optimizer = record_epoch(folder)
    folder.record(1, 0, {"epoch": 0}, BATCHES, model, optimizer, LEARNED, None)
    del folder
    with pytest.raises(BettyError, match="holds runs of 1 epochs that are done"):
        open_folder(tmp_path, "resume", {"num_epochs": 3})


def test_the_environment_names_versions_and_device() -> None:
    environment = describe_environment(torch.device("cpu"))
    assert environment["torch"].split("+")[0] == torch.__version__.split("+")[0]
    assert environment["device"] == "cpu"


@pytest.mark.parametrize("content", [b"", b'{"epoch": 7}\n'])
def test_metrics_that_somebody_else_changed_are_refused(tmp_path: Path, content: bytes) -> None:
    folder, _ = open_folder(tmp_path, "refuse")
    record_epoch(folder)
    (tmp_path / "metrics.jsonl").write_bytes(content)
    with pytest.raises(BettyError, match=r"metrics\.jsonl was changed while the command ran"):
        folder.epochs()
