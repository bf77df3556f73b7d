"""A process that imports Betty's command lines once and forks a child for every command, in a tenth of its start.

There is one thread at the start, as in ``python -m``, and threads and exit functions come to their end.
"""

from __future__ import annotations

import atexit
import fcntl
import gc
import importlib
import json
import os
import select
import signal
import subprocess
import sys
import threading
import traceback
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO, NoReturn

from matplotlib.figure import Figure

from tests.hostile.file_operations import Interference, interfere
from tests.hostile.outcome import Ended

PROJECT = Path(__file__).parents[2]
MODULES = ("full_batch", "micro_batch_train", "mini_batch_train", "compare")
ONE_THREAD = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
SLOW_IMPORTS = ("matplotlib.pyplot", "matplotlib.ticker", "torch._dynamo")
"""What Betty's libraries import at their first use."""

SECONDS = 60
PIPE_BYTES = 1 << 20


def environment() -> dict[str, str]:
    """Of the server and of commands beside it: this checkout, one thread, a picture without a display."""
    places = os.pathsep.join(map(str, (PROJECT / "pytorch", PROJECT)))
    return os.environ | ONE_THREAD | {"PYTHONPATH": places, "MPLBACKEND": "agg", "PYTHONUNBUFFERED": "1"}


@dataclass(frozen=True)
class Job:
    """A command: ``python -m betty.MODULE ARGUMENTS`` in a folder, and what goes wrong below that folder."""

    module: str
    arguments: list[str]
    folder: str
    interference: Interference | None = None


class ForkServer:
    """Runs commands one at a time; to be used in a ``with``."""

    def __enter__(self) -> ForkServer:
        command = [sys.executable, "-m", "tests.hostile.fork_server"]
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=PROJECT, env=environment()
        )
        return self

    def __exit__(self, *_: object) -> None:
        self._process.stdin.close()
        self._process.wait(SECONDS)
        self._process.stdout.close()

    def run(
        self, folder: Path, module: str, arguments: Sequence[str], interference: Interference | None = None
    ) -> Ended:
        """Run a command in a folder to its end, or for :data:`SECONDS` at most."""
        job = Job(module, list(arguments), str(folder), interference)
        self._process.stdin.write(json.dumps(asdict(job)) + "\n")
        self._process.stdin.flush()
        return Ended(**json.loads(self._process.stdout.readline()))


def command_line(module: str) -> str:
    """The module that has a command's ``main``: not the one that ``python -m`` starts, where that only watches."""
    name = f"betty.{module}"
    for candidate in (f"{name}.command_line", f"{name}.__main__"):
        try:
            importlib.import_module(candidate)
        except ModuleNotFoundError as error:
            if error.name not in (name, candidate) and not str(error).endswith("is not a package"):
                raise
        else:
            return candidate
    return name


def next_job(requests: IO[str]) -> Job | None:
    """Serve: returns in children, each with its job, and in the server when there are no more."""
    for line in requests:
        fields = json.loads(line)
        if fields["interference"]:
            fields["interference"] = Interference(**fields["interference"])
        job = Job(**fields)
        pipes = [os.pipe() for _ in range(3)]
        child = os.fork()
        if child == 0:
            become_the_command(job, [write_end for _, write_end in pipes])
            return job
        print(json.dumps(asdict(wait_for(child, pipes))), flush=True)
    return None


def become_the_command(job: Job, ends: list[int]) -> None:
    os.setsid()
    output, errors, operations = ends
    for end, descriptor in ((os.open(os.devnull, os.O_RDONLY), 0), (output, 1), (errors, 2)):
        os.dup2(end, descriptor)
    os.chdir(job.folder)
    interfere(Path(job.folder), operations, job.interference)


def wait_for(child: int, pipes: list[tuple[int, int]]) -> Ended:
    for read_end, write_end in pipes:
        fcntl.fcntl(write_end, fcntl.F_SETPIPE_SZ, PIPE_BYTES)
        os.close(write_end)
        os.set_blocking(read_end, False)
    watched = os.pidfd_open(child)
    in_time = bool(select.select([watched], [], [], SECONDS)[0])
    if not in_time:
        os.killpg(child, signal.SIGKILL)
    _, status = os.waitpid(child, 0)
    os.close(watched)
    output, errors, operations = (all_of(read_end) for read_end, _ in pipes)
    return Ended(os.waitstatus_to_exitcode(status) if in_time else None, output, errors, operations.splitlines())


def all_of(read_end: int) -> str:
    """What a pipe holds, whether or not somebody still has the other end."""
    content = bytearray()
    while True:
        try:
            chunk = os.read(read_end, PIPE_BYTES)
        except BlockingIOError:
            chunk = b""
        if not chunk:
            os.close(read_end)
            return content.decode(errors="replace")
        content += chunk


def main() -> None:
    mains = {module: command_line(module) for module in MODULES}
    for module in SLOW_IMPORTS:
        importlib.import_module(module)
    Figure.savefig = write_a_stroke
    gc.collect()
    gc.freeze()
    job = next_job(sys.stdin)
    if job is not None:
        run_to_the_end(importlib.import_module(mains[job.module]).main, job.arguments)


def write_a_stroke(self: Figure, place: str | Path | IO[bytes], **_: object) -> None:
    """In the place of drawing, which takes two thirds of a tiny training; the file is written as ever."""
    if isinstance(place, str | Path):
        Path(place).write_bytes(b"stroke")
    else:
        place.write(b"stroke")


def run_to_the_end(command: Callable[[list[str]], None], arguments: list[str]) -> NoReturn:
    """Run a command and end as Python would, but for taking apart all modules, which takes 0.3 s."""
    exit_code = 0
    try:
        command(arguments)
    except SystemExit as request:
        exit_code = request.code or 0
    except BaseException:
        traceback.print_exc()
        exit_code = 1
    threading._shutdown()
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(exit_code)


if __name__ == "__main__":
    main()
