import json
import logging
import sys
from pathlib import Path

import pytest
import torch

from betty.cost import Operations, Speed, stored_speed
from betty.envelope import write_sealed_json

CPU = torch.device("cpu")
SPEEDS = [Speed(Operations(call=2.0**-power), Operations(gate=2.0**-power)) for power in (18, 19)]


@pytest.fixture
def measurements(monkeypatch):
    """What is left to be measured: every measurement finds another speed."""
    left = list(SPEEDS)
    # The package offers a function of the module's name.
    module = sys.modules[stored_speed.__module__]
    monkeypatch.setattr(module, "measured_speed", lambda device: left.pop(0))
    return left


def only_file(folder: Path) -> Path:
    (path,) = folder.glob("speed_*.json")
    return path


def test_what_was_measured_once_is_read_from_then_on(tmp_path, measurements, caplog):
    assert stored_speed(tmp_path / "new", CPU) == SPEEDS[0]
    assert stored_speed(tmp_path / "new", CPU) == SPEEDS[0]
    assert len(measurements) == 1
    assert not caplog.records


def test_another_number_of_threads_is_measured_anew(tmp_path, measurements, monkeypatch):
    monkeypatch.setattr(torch, "get_num_threads", lambda: 1)
    assert stored_speed(tmp_path, CPU) == SPEEDS[0]
    monkeypatch.setattr(torch, "get_num_threads", lambda: 2)
    assert stored_speed(tmp_path, CPU) == SPEEDS[1]
    monkeypatch.setattr(torch, "get_num_threads", lambda: 1)
    assert stored_speed(tmp_path, CPU) == SPEEDS[0]


def test_the_stored_file_tells_what_it_was_measured_on(tmp_path, measurements):
    stored_speed(tmp_path, CPU)
    made_from = json.loads(only_file(tmp_path).read_text())["made_from"]
    assert made_from["device"] == "cpu"
    assert made_from["num_threads"] == torch.get_num_threads()
    assert made_from["torch"] == torch.__version__


def cut_short(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-10])


def change_a_digit(path: Path) -> None:
    path.write_text(path.read_text().replace("3", "4", 1))


def put_something_else_there(path: Path) -> None:
    write_sealed_json(path, {"made_from": {"device": "another"}, "speed": {}})


def forget_a_direction(path: Path) -> None:
    content = json.loads(path.read_text())
    write_sealed_json(path, {"made_from": content["made_from"], "speed": {"forward": {}}})


def make_it_a_folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


@pytest.mark.parametrize("damage", [cut_short, change_a_digit, put_something_else_there, forget_a_direction])
def test_a_damaged_or_foreign_file_is_replaced_with_one_warning(tmp_path, measurements, caplog, damage):
    stored_speed(tmp_path, CPU)
    damage(only_file(tmp_path))
    assert stored_speed(tmp_path, CPU) == SPEEDS[1]
    assert [record.levelno for record in caplog.records] == [logging.WARNING]
    assert "measured again" in caplog.text
    assert stored_speed(tmp_path, CPU) == SPEEDS[1]
    assert len(caplog.records) == 1


def test_what_cannot_be_read_nor_written_is_measured_all_the_same(tmp_path, measurements, caplog):
    stored_speed(tmp_path, CPU)
    make_it_a_folder(only_file(tmp_path))
    assert stored_speed(tmp_path, CPU) == SPEEDS[1]
    assert "cannot be written" in caplog.text


def test_a_folder_that_cannot_be_made_is_no_error(tmp_path, measurements, caplog):
    (tmp_path / "file").write_text("in the way")
    assert stored_speed(tmp_path / "file" / "folder", CPU) == SPEEDS[0]
    assert "cannot be written" in caplog.text
