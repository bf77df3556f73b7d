"""Files appear whole or not at all."""

import hashlib
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from betty import BettyError
from betty.files import LOCK, MOST_JSON_BYTES, append, hold_lock, locked, read_json, sha256, whole_file, write_json


def test_a_written_file_is_there_and_nothing_else(tmp_path: Path) -> None:
    with whole_file(tmp_path / "new" / "file") as file:
        file.write(b"content")
    assert [path.name for path in (tmp_path / "new").iterdir()] == ["file"]
    assert (tmp_path / "new" / "file").read_bytes() == b"content"


def fail_halfway(path: Path) -> None:
    with whole_file(path) as file:
        file.write(b"half")
        raise RuntimeError("the disk is full")


def test_after_an_error_the_old_file_stands(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"old")
    with pytest.raises(RuntimeError, match="the disk is full"):
        fail_halfway(tmp_path / "file")
    assert [path.name for path in tmp_path.iterdir()] == ["file"]
    assert (tmp_path / "file").read_bytes() == b"old"


def test_after_a_kill_the_old_file_stands_and_the_next_write_cleans_up(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"old")
    code = f"""
import os, signal
from pathlib import Path
from betty.files import whole_file

with whole_file(Path({str(tmp_path / "file")!r})) as file:
    file.write(b"half")
    file.flush()
    os.kill(os.getpid(), signal.SIGKILL)
"""
    source = str(Path(__file__).parents[1] / "pytorch")
    killed = subprocess.run([sys.executable, "-c", code], env=os.environ | {"PYTHONPATH": source})
    assert killed.returncode == -signal.SIGKILL
    assert (tmp_path / "file").read_bytes() == b"old"
    with whole_file(tmp_path / "file") as file:
        file.write(b"new")
    assert [path.read_bytes() for path in tmp_path.iterdir()] == [b"new"]


@pytest.mark.parametrize("exists", [True, False], ids=["of a file", "of none"])
def test_a_link_in_the_place_of_the_unfinished_file_is_not_followed(tmp_path: Path, exists: bool) -> None:
    outside = tmp_path / "outside"
    if exists:
        outside.write_bytes(b"mine")
    (tmp_path / "file.partial").symlink_to(outside)
    with whole_file(tmp_path / "file") as file:
        file.write(b"new")
    assert (tmp_path / "file").read_bytes() == b"new"
    assert not (tmp_path / "file").is_symlink()
    assert outside.exists() == exists
    assert not exists or outside.read_bytes() == b"mine"


@pytest.mark.parametrize("write", [lambda folder: append(folder / LOCK, b"more"), hold_lock], ids=["append", "lock"])
def test_nothing_is_written_through_a_link(tmp_path: Path, write: Callable[[Path], object]) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / LOCK).symlink_to(tmp_path / "outside")
    with pytest.raises(OSError, match="symbolic links"):
        write(tmp_path / "folder")
    assert not (tmp_path / "outside").exists()


def test_what_is_appended_stands_behind_what_was_there(tmp_path: Path) -> None:
    append(tmp_path / "file", b"one\n")
    append(tmp_path / "file", b"two\n")
    assert (tmp_path / "file").read_bytes() == b"one\ntwo\n"


def test_json_comes_back(tmp_path: Path) -> None:
    content = {"a": [1, 2.5, None], "ü": "ö"}
    write_json(tmp_path / "file.json", content)
    assert read_json(tmp_path / "file.json") == content


@pytest.mark.parametrize("content", [b"", b"{", b"\xff\xfe\x00"])
def test_what_is_not_json_is_refused_by_name(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "file.json").write_bytes(content)
    with pytest.raises(BettyError, match=r"file\.json is not JSON"):
        read_json(tmp_path / "file.json")


HOSTILE = {
    "brackets": b"[" * 200_000,
    "objects": b'{"a":' * 200_000,
    "many digits": b'{"epoch": ' + b"9" * 5_000 + b"}",
    "a number too large": b'{"epoch": 1e999}',
    "not a number": b'{"epoch": NaN}',
    "another type": b'{"epoch": "x"}',
    "a truth value": b'{"epoch": true}',
    "a fraction": b'{"epoch": 1.5}',
    "nothing in it": b"{}",
    "a list": b"[]",
    "in a list": b'{"epoch": 1, "sizes": ["x"]}',
}


@dataclass(frozen=True)
class Entry:
    epoch: int
    sizes: tuple[int, ...] = ()


@pytest.mark.parametrize("content", HOSTILE.values(), ids=HOSTILE)
def test_json_of_another_form_is_refused_in_one_line(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "file.json").write_bytes(content)
    with pytest.raises(BettyError, match=r"file\.json is not .*make it again") as refused:
        read_json(tmp_path / "file.json", Entry)
    assert "\n" not in str(refused.value)


def test_json_of_the_form_comes_back_as_that(tmp_path: Path) -> None:
    write_json(tmp_path / "file.json", {"epoch": 3, "sizes": [1, 2], "unknown": None})
    assert read_json(tmp_path / "file.json", Entry) == Entry(3, (1, 2))


def test_a_json_file_too_large_to_be_one_is_refused_unread(tmp_path: Path) -> None:
    with open(tmp_path / "file.json", "wb") as file:
        file.truncate(MOST_JSON_BYTES + 1)
    with pytest.raises(BettyError, match=r"file\.json is larger than"):
        read_json(tmp_path / "file.json")


def test_a_pipe_in_the_place_of_a_json_file_is_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "file.json")
    with pytest.raises(BettyError, match="is not a regular file"):
        read_json(tmp_path / "file.json")


def test_a_missing_json_file_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(BettyError, match=r"file\.json does not exist"):
        read_json(tmp_path / "file.json")


def test_checksum_is_sha256_of_all_bytes(tmp_path: Path) -> None:
    content = os.urandom((1 << 22) + 17)
    (tmp_path / "file").write_bytes(content)
    assert sha256(tmp_path / "file") == hashlib.sha256(content).hexdigest()


def test_a_folder_that_the_command_itself_writes_to_is_refused_and_not_waited_for(tmp_path: Path) -> None:
    held = hold_lock(tmp_path)
    with pytest.raises(BettyError, match=r"this command writes to .* for two purposes"), locked(tmp_path):
        pass
    held.close()
    with locked(tmp_path):
        pass


def test_a_pipe_in_the_place_of_a_lock_is_refused_and_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / LOCK)
    with pytest.raises(OSError, match="No such device"):
        hold_lock(tmp_path)
