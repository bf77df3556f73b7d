"""Work in threads beside the main one."""

import mmap
from collections.abc import Callable
from concurrent.futures import Future
from threading import Thread
from typing import TypeVar

Result = TypeVar("Result")

ROOM_FOR_A_THREAD = 160 << 20
"""Bytes of address space: for its stack, the C library's memory for it, and what Python needs before it runs."""


def require_room_for_a_thread() -> None:
    """To be called before a thread is started: Python waits for ever for one that gets no memory at its start.

    Raises:
        RuntimeError: there is no room, in Python's own words for that.
    """
    try:
        mmap.mmap(-1, ROOM_FOR_A_THREAD, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, prot=0).close()
    except OSError as error:
        raise RuntimeError("can't start new thread") from error


def in_background(compute: Callable[[], Result]) -> Future[Result]:
    """Begin a computation whose result, or error, the future's ``result()`` waits for.

    A program that ends without asking for it does not wait for it.
    """
    future: Future[Result] = Future()

    def run() -> None:
        try:
            future.set_result(compute())
        # It is raised where the result is asked for.
        except BaseException as error:
            future.set_exception(error)

    require_room_for_a_thread()
    Thread(target=run, name="in-background", daemon=True).start()
    return future
