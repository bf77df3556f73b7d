"""Files appear whole or not at all."""

import hashlib
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from betty import BettyError
from betty.files import read_json, sha256, whole_file, write_json


def test_a_written_file_is_there_and_nothing_else(tmp_path: Path) -> None:
    with whole_file(tmp_path / "new" / "file") as partial:
        partial.write_bytes(b"content")
    assert [path.name for path in (tmp_path / "new").iterdir()] == ["file"]
    assert (tmp_path / "new" / "file").read_bytes() == b"content"


def fail_halfway(path: Path) -> None:
    with whole_file(path) as partial:
        partial.write_bytes(b"half")
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

with whole_file(Path({str(tmp_path / "file")!r})) as partial:
    partial.write_bytes(b"half")
    os.kill(os.getpid(), signal.SIGKILL)
"""
    source = str(Path(__file__).parents[1] / "pytorch")
    killed = subprocess.run([sys.executable, "-c", code], env=os.environ | {"PYTHONPATH": source})
    assert killed.returncode == -signal.SIGKILL
    assert (tmp_path / "file").read_bytes() == b"old"
    with whole_file(tmp_path / "file") as partial:
        partial.write_bytes(b"new")
    assert [path.read_bytes() for path in tmp_path.iterdir()] == [b"new"]


def test_json_comes_back(tmp_path: Path) -> None:
    content = {"a": [1, 2.5, None], "ü": "ö"}
    write_json(tmp_path / "file.json", content)
    assert read_json(tmp_path / "file.json") == content


@pytest.mark.parametrize("content", [b"", b"{", b"\xff\xfe\x00"])
def test_what_is_not_json_is_refused_by_name(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "file.json").write_bytes(content)
    with pytest.raises(BettyError, match=r"file\.json is not a JSON file"):
        read_json(tmp_path / "file.json")


def test_a_missing_json_file_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(BettyError, match=r"file\.json does not exist"):
        read_json(tmp_path / "file.json")


def test_checksum_is_sha256_of_all_bytes(tmp_path: Path) -> None:
    content = os.urandom((1 << 22) + 17)
    (tmp_path / "file").write_bytes(content)
    assert sha256(tmp_path / "file") == hashlib.sha256(content).hexdigest()
