"""The figures' scripts as tests start them: what they would run, and all of it in this process."""

import gc
import importlib
import io
import os
import subprocess
import sys
from contextlib import redirect_stderr
from pathlib import Path
from types import ModuleType

PROJECT = Path(__file__).parents[2]
SCRIPTS = PROJECT / "scripts"
FIGURES = (
    "figure02",
    "figure04",
    "figure05",
    "figure09",
    "figure10",
    "figure11",
    "figure12",
    "figure13",
    "breakdown",
)


def script_module(name: str) -> ModuleType:
    """A module of ``scripts/figures``."""
    folder = str(SCRIPTS / "figures")
    if folder not in sys.path:
        sys.path.append(folder)
    return importlib.import_module(name)


def environment(results: Path, **variables: str) -> dict[str, str]:
    """At ``SCALE=test``, on the CPU, with all folders beside the results."""
    beside = results.parent
    folders = {"DATA_ROOT": beside / "data", "FULL_BATCH_ROOT": beside / "full-batches", "GRAPHS": beside / "graphs"}
    settings = {"SCALE": "test", "DEVICE": "cpu", "RESULTS": results, **folders, **variables}
    return {"PATH": os.environ["PATH"], **{name: str(value) for name, value in settings.items()}}


def commands(figure: str, results: Path, **variables: str) -> list[str]:
    """What ``--dry-run`` prints."""
    script = [str(SCRIPTS / f"{figure}.sh"), "--dry-run"]
    done = subprocess.run(script, env=environment(results, **variables), capture_output=True, text=True, check=True)
    return done.stdout.splitlines()


def call_main(command) -> tuple[int, str]:
    """Run a command in this process: much faster than one of its own, with the same words."""
    first, *rest = command.words
    errors, code = io.StringIO(), 0
    with redirect_stderr(errors):
        try:
            if first == "-m":
                importlib.import_module(f"{rest[0]}.command_line").main(list(rest[1:]))
            else:
                script_module(Path(first).stem).main(list(rest))
        except SystemExit as end:
            code = end.code or 0
    if code:
        gc.collect()  # an error may hold the lock of the folder that it ended in
    lines = [line.strip() for line in errors.getvalue().splitlines() if line.strip()]
    return code, lines[-1] if lines else ""


def draw(figure: str, results: Path, **variables: str) -> list[str]:
    """Run a figure's commands.

    Returns:
        The names of those that were not left out.
    """
    executed = []

    def execute(command) -> tuple[int, str]:
        executed.append(command.name)
        return call_main(command)

    script_module("run").run_all(figure, commands(figure, results, **variables), execute)
    return executed
