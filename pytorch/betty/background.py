"""A computation in a thread of its own, whose outcome is waited for where it is first needed."""

from collections.abc import Callable
from concurrent.futures import Future
from threading import Thread
from typing import TypeVar

Result = TypeVar("Result")


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

    Thread(target=run, name="in-background", daemon=True).start()
    return future
