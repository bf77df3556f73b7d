"""What is stored is found under its own key and no other, and nothing that is wrong with a file ends a run."""

import errno
import logging
import multiprocessing
import os
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from betty.envelope import write_sealed
from betty.files import PARTIAL_SUFFIX
from betty.micro_batch_train import stored_parts
from betty.micro_batch_train.graph_partitioner import positions_by_part
from betty.micro_batch_train.stored_parts import StoredTensors, part_of_output

COMMON = {"dataset": "some", "fan_outs": (10, 25), "batch_size": None}
KEY = {"method": "locality", "seed": 7, "takes": {"hidden": 12}}
VALUES = torch.tensor([2, 0, 1, 1, 0, 2, 2], dtype=torch.int32)


def store_in(folder: Path) -> StoredTensors:
    return StoredTensors(folder / "parts", COMMON)


def only_file(folder: Path) -> Path:
    (path,) = (folder / "parts").glob("*.safetensors")
    return path


def test_what_was_stored_is_found_by_another_process_of_the_same_key(tmp_path: Path) -> None:
    store_in(tmp_path).save("parts-locality", KEY, VALUES)
    found = store_in(tmp_path).load("parts-locality", dict(reversed(KEY.items())))
    assert torch.equal(found, VALUES)
    assert found.dtype == torch.int32
    assert only_file(tmp_path).name.startswith("parts-locality_")


@pytest.mark.parametrize("values", [torch.empty(0, dtype=torch.int32), torch.tensor([0], dtype=torch.int32)])
def test_few_values_are_stored_too(tmp_path: Path, values: torch.Tensor) -> None:
    store_in(tmp_path).save("parts", KEY, values)
    assert torch.equal(store_in(tmp_path).load("parts", KEY), values)


@pytest.mark.parametrize("other", [{"seed": 8}, {"method": "REG"}, {"takes": {"hidden": 13}}, {"more": None}])
def test_another_key_is_not_found(tmp_path: Path, other: dict) -> None:
    store_in(tmp_path).save("parts", KEY, VALUES)
    assert store_in(tmp_path).load("parts", {**KEY, **other}) is None
    assert StoredTensors(tmp_path / "parts", {**COMMON, "batch_size": 7}).load("parts", KEY) is None


def test_another_version_of_the_values_is_not_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store_in(tmp_path).save("parts", KEY, VALUES)
    monkeypatch.setattr(stored_parts, "FORMAT_VERSION", stored_parts.FORMAT_VERSION + 1)
    assert store_in(tmp_path).load("parts", KEY) is None


def test_nothing_is_logged_where_nothing_is_stored(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    assert store_in(tmp_path).load("parts", KEY) is None
    assert not caplog.records
    assert not list(tmp_path.iterdir())


def test_equal_tensors_are_stored_as_equal_bytes(tmp_path: Path) -> None:
    contents = set()
    for _ in range(6):
        store_in(tmp_path).save("parts", KEY, VALUES)
        contents.add(only_file(tmp_path).read_bytes())
        only_file(tmp_path).unlink()
    assert len(contents) == 1


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-5])


def emptied(path: Path) -> None:
    path.write_bytes(b"")


def of_another_format(path: Path) -> None:
    path.write_bytes(b"PK\x03\x04" + bytes(range(200)))


def with_another_value(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[-4] ^= 1
    path.write_bytes(content)


def foreign(path: Path) -> None:
    save_file({"weight": torch.zeros(3)}, path)


def foreign_of_the_same_name(path: Path) -> None:
    save_file({"values": torch.zeros(7, dtype=torch.bfloat16)}, path)


def of_another_key(path: Path) -> None:
    write_sealed(path, {"values": VALUES}, {})


def with_another_dtype_in_its_header(path: Path) -> None:
    content = path.read_bytes()
    assert content.count(b'"I32"') == 1
    path.write_bytes(content.replace(b'"I32"', b'"F32"'))


def replaced_by_a_folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


DAMAGES = [
    cut,
    emptied,
    of_another_format,
    with_another_value,
    foreign,
    foreign_of_the_same_name,
    of_another_key,
    with_another_dtype_in_its_header,
]


@pytest.mark.parametrize("damage", [*DAMAGES, replaced_by_a_folder])
def test_a_file_that_is_not_as_it_was_written_counts_as_not_there_with_one_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, damage: Callable[[Path], None]
) -> None:
    store_in(tmp_path).save("parts", KEY, VALUES)
    damage(only_file(tmp_path))
    assert store_in(tmp_path).load("parts", KEY) is None
    (warning,) = caplog.records
    assert warning.levelno == logging.WARNING
    assert "made again" in warning.message
    assert "\n" not in warning.message


@pytest.mark.parametrize("damage", DAMAGES)
def test_what_is_made_again_takes_the_place_of_the_damaged_file(tmp_path: Path, damage: Callable[[Path], None]) -> None:
    store_in(tmp_path).save("parts", KEY, VALUES)
    damage(only_file(tmp_path))
    store_in(tmp_path).save("parts", KEY, VALUES)
    assert torch.equal(store_in(tmp_path).load("parts", KEY), VALUES)


def test_what_was_loaded_stays_when_the_file_is_cut_short(tmp_path: Path) -> None:
    store_in(tmp_path).save("parts", KEY, VALUES)
    found = store_in(tmp_path).load("parts", KEY)
    emptied(only_file(tmp_path))
    assert torch.equal(found, VALUES)


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EROFS, errno.EACCES])
def test_a_full_or_read_only_folder_costs_a_warning_and_leaves_nothing_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, number: int
) -> None:
    def fail(descriptor: int) -> None:
        raise OSError(number, "the disk says no")

    monkeypatch.setattr(os, "fsync", fail)
    store_in(tmp_path).save("parts", KEY, VALUES)
    (warning,) = caplog.records
    assert "cannot be written (the disk says no)" in warning.message
    assert [path.name for path in (tmp_path / "parts").iterdir()] == [".lock"]


def test_a_file_in_the_place_of_the_folder_costs_a_warning(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "parts").write_text("no folder")
    assert store_in(tmp_path).load("parts", KEY) is None
    store_in(tmp_path).save("parts", KEY, VALUES)
    (warning,) = caplog.records
    assert "cannot be written" in warning.message


def test_a_folder_that_must_not_be_looked_into_costs_a_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(path: Path) -> bool:
        raise PermissionError(errno.EACCES, "Permission denied", str(path))

    monkeypatch.setattr(Path, "exists", refuse)
    assert store_in(tmp_path).load("parts", KEY) is None
    (warning,) = caplog.records
    assert "cannot be used" in warning.message


def store_often(folder: Path, start: object, times: int) -> None:
    start.wait()
    for _ in range(times):
        store_in(folder).save("parts", KEY, VALUES)
        assert torch.equal(store_in(folder).load("parts", KEY), VALUES)


def test_two_processes_may_store_the_same_at_the_same_time(tmp_path: Path) -> None:
    context = multiprocessing.get_context("spawn")
    start = context.Barrier(2)
    processes = [context.Process(target=store_often, args=(tmp_path, start, 30)) for _ in range(2)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(120)
    assert [process.exitcode for process in processes] == [0, 0]
    assert torch.equal(store_in(tmp_path).load("parts", KEY), VALUES)
    assert not list((tmp_path / "parts").glob(f"*{PARTIAL_SUFFIX}"))


def test_parts_are_the_same_from_the_part_of_every_output_node() -> None:
    parts = [torch.tensor([1, 4]), torch.tensor([0]), torch.tensor([2, 3, 5])]
    found = positions_by_part(part_of_output(parts).long())
    assert [part.tolist() for part in found] == [[1, 4], [0], [2, 3, 5]]
