"""A command in a process of its own, and a parent that does nothing but tell in one line how it ended.

Python raises an interrupt wherever it happens to be: in the middle of an import, in a destructor, while it shuts down.
And a library that gets no memory may end the process. The parent, which has loaded nothing, tells of both.
"""

from __future__ import annotations

import mmap
import os
import signal
import sys
from importlib import import_module

from betty.explanation import explain

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import NoReturn

INTERRUPTED = 130
REFUSED = 2

LOADING_CPU_S = 30
"""A multiple of the seconds of computation in which everything is loaded, on slow machines too."""

CRASHES = (signal.SIGABRT, signal.SIGBUS, signal.SIGFPE, signal.SIGILL, signal.SIGINT, signal.SIGPROF, signal.SIGSEGV)
"""What libraries end a process with: OpenBLAS with SIGINT where it cannot start its threads, with SIGPROF see below."""

ADVICE = (
    "most likely for want of memory; free some, or make smaller batches or a smaller model (what is written is whole, "
    "and a training goes on with --resume)"
)


def watched(module: str) -> None:
    """Run a command; returns in its process only, at its end.

    An interrupt ends it at once. That it may be killed anywhere is taken care of where files are written. From the
    first line of the package on interrupts wait, see ``__init__.py``.

    Args:
        module: of ``python -m``; its ``command_line.main()`` is the command.
    """
    prog = f"python -m {module}"
    awaited = {signal.SIGCHLD}
    # Left as it is where a shell has started the command in the background, out of reach of interrupts.
    if signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:
        awaited.add(signal.SIGINT)
    signal.pthread_sigmask(signal.SIG_BLOCK, awaited)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    ended_by_python = mmap.mmap(-1, 1)
    parent = os.getpid()
    child = os.fork()
    if child:
        _watch(prog, child, awaited, ended_by_python)
    die_with(parent)
    try:
        _run(prog, f"{module}.command_line", awaited)
    except SystemExit as end:
        ended_by_python[0] = True
        if end.code != REFUSED:
            raise
        # Told already. A library that got no memory may crash on its way out, and a thread beside take minutes.
        if sys.stdout:
            sys.stdout.flush()
        os._exit(REFUSED)
    finally:
        ended_by_python[0] = True


def _watch(prog: str, child: int, awaited: set[signal.Signals], ended_by_python: mmap.mmap) -> NoReturn:
    while signal.sigwait(awaited) != signal.SIGINT:
        ended, status = os.waitpid(child, os.WNOHANG)
        if ended:
            code = os.waitstatus_to_exitcode(status)
            if code < 0:
                _refuse(prog, end_by_signal(-code))
            if code and not ended_by_python[0]:
                _refuse(prog, f"a library ended it with code {code}, {ADVICE}")
            os._exit(code)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    _say(f"{prog}: interrupted")
    os._exit(INTERRUPTED)


def _run(prog: str, path: str, awaited: set[signal.Signals]) -> None:
    # While libraries are loaded the system ends the process: one that cannot start its threads interrupts itself, and
    # would wait for them for ever if that were ignored. Another asks for memory again and again.
    if signal.SIGINT in awaited:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, awaited)
    signal.setitimer(signal.ITIMER_PROF, LOADING_CPU_S)
    try:
        command = import_module(path)
    except Exception as error:
        message = explain(error)
        if message is None:
            raise
        _say(f"{prog}: error: {message}")
        sys.exit(REFUSED)
    signal.setitimer(signal.ITIMER_PROF, 0)
    if signal.SIGINT in awaited:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
    command.main()


def _refuse(prog: str, message: str) -> NoReturn:
    _say(f"{prog}: error: {message}")
    os._exit(REFUSED)


def _say(line: str) -> None:
    if sys.stderr:
        # A terminal's line may hold a bar of progress that nobody has cleared.
        print(f"\n{line}" if sys.stderr.isatty() else line, file=sys.stderr, flush=True)


def end_by_signal(number: int) -> str:
    """What to tell of a process that a signal has ended."""
    try:
        name = signal.Signals(number).name
    except ValueError:
        name = f"signal {number}"
    return f"{'a library crashed' if number in CRASHES else 'the system or somebody ended it'} ({name}), {ADVICE}"


def die_with(parent: int) -> None:
    """Have the system kill this process when its parent ends, in whatever way, where it can: on Linux.

    Args:
        parent: its number; it may have ended by now.
    """
    if sys.platform != "linux":
        return
    import ctypes

    set_parent_death_signal = 1
    ctypes.CDLL(None).prctl(set_parent_death_signal, signal.SIGKILL)
    if os.getppid() != parent:
        os.kill(os.getpid(), signal.SIGKILL)
