"""What a run writes, and going on with it."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from betty import BettyError
from betty.run_folder import RunFolder, describe_environment

CONFIG = {"flags": {"lr": 0.1, "output": "a"}, "environment": {}}


def begin(path: Path, if_exists: str) -> RunFolder:
    folder = RunFolder(path, CONFIG, if_exists)
    folder.begin()
    return folder


def model_and_optimizer() -> tuple[torch.nn.Module, torch.optim.Optimizer]:
    model = torch.nn.Linear(3, 2)
    optimizer = torch.optim.Adam(model.parameters())
    model(torch.ones(1, 3)).sum().backward()
    optimizer.step()
    return model, optimizer


def test_a_folder_with_a_run_is_refused(tmp_path: Path) -> None:
    begin(tmp_path, "refuse")
    with pytest.raises(BettyError, match="holds a run already; add --resume or --overwrite"):
        RunFolder(tmp_path, CONFIG, "refuse")


def test_a_file_in_the_place_of_the_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(BettyError, match="is a file"):
        RunFolder(tmp_path / "file", CONFIG, "overwrite")


def test_overwriting_removes_the_old_run_and_nothing_else(tmp_path: Path) -> None:
    folder = begin(tmp_path, "refuse")
    folder.append_epoch({"epoch": 0})
    folder.write_summary({})
    (tmp_path / "notes.txt").write_text("mine")
    begin(tmp_path, "overwrite")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["config.json", "notes.txt"]


def test_resuming_with_other_flags_is_refused_by_their_names(tmp_path: Path) -> None:
    begin(tmp_path, "refuse")
    with pytest.raises(BettyError, match=r"other flags \(--lr\)"):
        RunFolder(tmp_path, {"flags": {"lr": 0.2, "output": "b"}, "environment": {}}, "resume")


def test_nothing_is_written_before_the_beginning(tmp_path: Path) -> None:
    RunFolder(tmp_path / "new", CONFIG, "refuse")
    assert list(tmp_path.iterdir()) == []


def test_a_checkpoint_comes_back_and_later_epochs_are_cut_off(tmp_path: Path) -> None:
    folder = begin(tmp_path, "refuse")
    model, optimizer = model_and_optimizer()
    folder.append_epoch({"epoch": 0})
    folder.save_checkpoint(0, 0, model, optimizer)
    folder.append_epoch({"epoch": 1})
    with open(tmp_path / "metrics.jsonl", "a") as file:
        file.write('{"epoch": 2, "lo')

    checkpoint = RunFolder(tmp_path, CONFIG, "resume").begin()
    assert (checkpoint.run, checkpoint.epoch) == (0, 0)
    assert folder.epochs() == [{"epoch": 0}]
    assert torch.equal(checkpoint.model["weight"], model.weight)
    assert torch.equal(checkpoint.optimizer["state"][0]["exp_avg"], optimizer.state[model.weight]["exp_avg"])


def test_without_a_checkpoint_there_are_no_epochs(tmp_path: Path) -> None:
    folder = begin(tmp_path, "refuse")
    folder.append_epoch({"epoch": 0})
    assert RunFolder(tmp_path, CONFIG, "resume").begin() is None
    assert folder.epochs() == []


@pytest.mark.parametrize("damage", [lambda content: content[:100], lambda content: b"", lambda content: b"x" * 50])
def test_a_broken_checkpoint_is_refused_by_name(tmp_path: Path, damage) -> None:
    folder = begin(tmp_path, "refuse")
    folder.append_epoch({"epoch": 0})
    folder.save_checkpoint(0, 0, *model_and_optimizer())
    path = tmp_path / "checkpoint.pt"
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(BettyError, match=r"checkpoint\.pt cannot be read"):
        RunFolder(tmp_path, CONFIG, "resume").begin()


def test_weights_are_saved_for_others_to_load(tmp_path: Path) -> None:
    folder = begin(tmp_path, "refuse")
    model, _ = model_and_optimizer()
    folder.save_weights(model)
    assert torch.equal(load_file(tmp_path / "model.safetensors")["weight"], model.weight)


def test_the_environment_names_versions_and_device() -> None:
    environment = describe_environment(torch.device("cpu"))
    assert environment["torch"].split("+")[0] == torch.__version__.split("+")[0]
    assert environment["device"] == "cpu"
