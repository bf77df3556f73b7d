"""Commands and the parent that watches them, as real processes."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[1] / "pytorch"
MAIN = "from betty.watch import watched\n\nwatched('job')\n"
WAITS = """
import os, time

def main():
    print(os.getpid(), flush=True)
    time.sleep(600)
"""
INTERRUPTED = "python -m job: interrupted\n"


def start(folder: Path, command: str, main: str = MAIN, prefix: tuple[str, ...] = ()) -> subprocess.Popen:
    """Start a watched command, ``python -m job``, in a session of its own, with a new package."""
    package = folder / "job"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "__main__.py").write_text(main)
    (package / "command_line.py").write_text(command)
    return start_module("job", [], folder, prefix)


def start_module(module: str, flags: list[str], folder: Path, prefix: tuple[str, ...] = ()) -> subprocess.Popen:
    return subprocess.Popen(
        [*prefix, sys.executable, "-m", module, *flags],
        cwd=folder,
        env=os.environ | {"PYTHONPATH": os.pathsep.join([str(folder), str(SOURCE)])},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def end_of(process: subprocess.Popen) -> tuple[int, str]:
    """The exit code and what went to the error stream, when all who hold it are gone."""
    try:
        errors = process.communicate(timeout=120)[1]
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        raise
    return process.returncode, errors


def body(statements: str) -> str:
    return f"import os, signal, sys\n\ndef main():\n    {statements}\n"


@pytest.mark.parametrize(("statements", "code"), [("pass", 0), ("sys.exit(0)", 0), ("sys.exit(7)", 7)])
def test_exit_codes_pass(tmp_path: Path, statements: str, code: int) -> None:
    assert end_of(start(tmp_path, body(statements))) == (code, "")


def test_what_it_prints_and_its_flags_pass(tmp_path: Path) -> None:
    process = start(tmp_path, body("print(sys.argv[1:])"))
    assert process.communicate(timeout=60)[0] == "[]\n"


def test_a_defect_shows_where_it_is(tmp_path: Path) -> None:
    code, errors = end_of(start(tmp_path, body("raise KeyError('missing')")))
    assert code == 1
    assert errors.startswith("Traceback")
    assert errors.endswith("KeyError: 'missing'\n")


@pytest.mark.parametrize(
    ("name", "by_whom"),
    [
        ("SIGSEGV", "a library crashed"),
        ("SIGABRT", "a library crashed"),
        ("SIGBUS", "a library crashed"),
        ("SIGKILL", "the system or somebody ended it"),
        ("SIGTERM", "the system or somebody ended it"),
    ],
)
def test_a_signal_that_ends_it_is_told_in_one_line(tmp_path: Path, name: str, by_whom: str) -> None:
    code, errors = end_of(start(tmp_path, body(f"os.kill(os.getpid(), signal.{name})")))
    assert code == 2
    assert errors.startswith(f"python -m job: error: {by_whom} ({name}), most likely for want of memory; ")
    assert errors.count("\n") == 1


def test_a_library_that_ends_it_is_told_in_one_line(tmp_path: Path) -> None:
    code, errors = end_of(start(tmp_path, body("os._exit(1)")))
    assert code == 2
    assert errors.startswith("python -m job: error: a library ended it with code 1, most likely for want of memory; ")
    assert errors.count("\n") == 1


@pytest.mark.parametrize(
    ("error", "message"),
    [
        ("MemoryError", "this machine is out of memory"),
        ("ImportError('libx.so: failed to map segment from shared object')", "a library cannot be loaded"),
        ("OSError(12, 'Cannot allocate memory')", "this machine is out of memory"),
    ],
)
def test_a_shortage_while_libraries_are_loaded_is_told_in_one_line(tmp_path: Path, error: str, message: str) -> None:
    code, errors = end_of(start(tmp_path, f"raise {error}"))
    assert code == 2
    assert errors.startswith(f"python -m job: error: {message}")
    assert errors.count("\n") == 1


def test_libraries_that_are_never_loaded_are_told_of_in_one_line(tmp_path: Path) -> None:
    impatient = f"import betty.watch\n\nbetty.watch.LOADING_CPU_S = 0.2\n{MAIN}"
    code, errors = end_of(start(tmp_path, "while True:\n    pass\n", impatient))
    assert code == 2
    assert errors.startswith("python -m job: error: a library crashed (SIGPROF), most likely for want of memory; ")
    assert errors.count("\n") == 1


def test_the_time_for_loading_is_of_computation_and_ends_with_it(tmp_path: Path) -> None:
    impatient = f"import betty.watch\n\nbetty.watch.LOADING_CPU_S = 0.2\n{MAIN}"
    slow = "import time\n\ntime.sleep(0.5)\n\ndef main():\n    while time.process_time() < 0.5:\n        pass\n"
    assert end_of(start(tmp_path, slow, impatient)) == (0, "")


def is_there(number: int) -> bool:
    try:
        os.kill(number, 0)
    except ProcessLookupError:
        return False
    return True


@pytest.mark.parametrize("number", [1, 2, 5])
def test_interrupts_end_it_in_one_line(tmp_path: Path, number: int) -> None:
    process = start(tmp_path, WAITS)
    command = int(process.stdout.readline())
    for _ in range(number):
        process.send_signal(signal.SIGINT)
    assert end_of(process) == (130, INTERRUPTED)
    assert not is_there(command)


def test_an_interrupt_by_the_terminal_reaches_both_and_is_told_once(tmp_path: Path) -> None:
    process = start(tmp_path, WAITS)
    process.stdout.readline()
    os.killpg(process.pid, signal.SIGINT)
    assert end_of(process) == (130, INTERRUPTED)


def test_an_interrupt_of_the_command_alone_does_nothing(tmp_path: Path) -> None:
    assert end_of(start(tmp_path, body("os.kill(os.getpid(), signal.SIGINT)"))) == (0, "")


READS = "def main():\n    print(flush=True)\n    input()\n"


def test_in_the_background_of_a_shell_interrupts_are_ignored(tmp_path: Path) -> None:
    process = start(tmp_path, READS, prefix=("sh", "-c", "trap '' INT; exec \"$@\"", "sh"))
    process.stdout.readline()
    os.killpg(process.pid, signal.SIGINT)
    process.stdin.write("go on\n")
    assert end_of(process) == (0, "")


@pytest.mark.skipif(sys.platform != "linux", reason="needs Linux's death signal of parents")
@pytest.mark.parametrize("ended_by", [signal.SIGKILL, signal.SIGTERM, signal.SIGHUP])
def test_the_command_dies_with_its_parent(tmp_path: Path, ended_by: signal.Signals) -> None:
    process = start(tmp_path, WAITS)
    process.stdout.readline()
    process.send_signal(ended_by)
    # The command holds the error stream as long as it lives.
    assert end_of(process) == (-ended_by, "")


def test_it_can_be_stopped_and_continued(tmp_path: Path) -> None:
    process = start(tmp_path, READS)
    process.stdout.readline()
    os.killpg(process.pid, signal.SIGSTOP)
    os.killpg(process.pid, signal.SIGCONT)
    process.stdin.write("go on\n")
    assert end_of(process) == (0, "")


INTERRUPTS_AT_AN_IMPORT = """
import os, sys

class Interrupting:
    def find_spec(name, *_):
        if name == {module!r}:
            sys.meta_path.remove(Interrupting)
            os.kill(os.getpid(), 2)

sys.meta_path.insert(0, Interrupting)
"""


@pytest.mark.parametrize(
    "module",
    [
        "betty.lazy_package",
        "betty.micro_batch_train",
        "betty.micro_batch_train.__main__",
        "betty.watch",
        "enum",
        "betty.explanation",
        "betty.memory",
    ],
)
def test_an_interrupt_before_the_parent_waits_is_told_in_one_line(tmp_path: Path, module: str) -> None:
    (tmp_path / "sitecustomize.py").write_text(INTERRUPTS_AT_AN_IMPORT.format(module=module))
    process = start_module("betty.micro_batch_train", ["--help"], tmp_path)
    assert end_of(process) == (130, "python -m betty.micro_batch_train: interrupted\n")


def is_ours(process: subprocess.Popen) -> bool:
    """Whether it holds interrupts back, or has started the command and waits for them."""
    state = Path(f"/proc/{process.pid}/status").read_text()
    blocked = int(state.partition("SigBlk:")[2].split()[0], 16)
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text()
    return bool(blocked >> (signal.SIGINT - 1) & 1 or children)


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="needs Linux's state of processes")
@pytest.mark.parametrize("seconds", [0, 0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 0.8, 1.5, 2.5])
def test_an_interrupt_of_a_command_is_one_line_from_the_first_moment_on(tmp_path: Path, seconds: float) -> None:
    many = ["--dataset", "synthetic-tiny", "--num-epochs", "2000", "--quiet"]
    process = start_module("betty.micro_batch_train", many, tmp_path)
    while not is_ours(process):
        assert process.poll() is None
    time.sleep(seconds)
    process.send_signal(signal.SIGINT)
    assert end_of(process) == (130, "python -m betty.micro_batch_train: interrupted\n")


@pytest.mark.parametrize("module", ["compare", "full_batch", "micro_batch_train", "mini_batch_train"])
def test_wrong_flags_end_every_command_as_before(tmp_path: Path, module: str) -> None:
    code, errors = end_of(start_module(f"betty.{module}", ["--no-such-flag", "x"], tmp_path))
    assert code == 2
    assert errors == (
        f"python -m betty.{module}: error: unrecognized arguments: --no-such-flag"
        f"{'' if module == 'compare' else ' x'} (see --help)\n"
    )
