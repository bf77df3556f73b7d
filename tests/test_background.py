"""Work beside the main thread."""

import subprocess
import sys
import threading
from pathlib import Path

import pytest

from betty.background import in_background, require_room_for_a_thread

WITHOUT_ROOM = """
import resource
from betty.background import in_background
from betty.memory.shortage import explain_shortage

resource.setrlimit(resource.RLIMIT_AS, (64 << 20, resource.RLIM_INFINITY))
try:
    in_background(lambda: None)
except RuntimeError as error:
    print(explain_shortage(error))
"""


def test_the_result_comes_from_another_thread() -> None:
    assert in_background(threading.get_ident).result() != threading.get_ident()


def test_an_error_is_raised_where_the_result_is_asked_for() -> None:
    def fail() -> None:
        raise KeyError("gone")

    with pytest.raises(KeyError, match="gone"):
        in_background(fail).result()


def test_there_is_room_where_nothing_limits_it() -> None:
    assert require_room_for_a_thread() is None


def test_a_thread_that_would_have_no_room_is_refused_and_not_waited_for() -> None:
    source = str(Path(__file__).parents[1] / "pytorch")
    command = [sys.executable, "-c", WITHOUT_ROOM]
    ended = subprocess.run(command, env={"PYTHONPATH": source}, capture_output=True, text=True, timeout=60)
    assert "this machine has no memory for one more thread" in ended.stdout, ended.stderr
