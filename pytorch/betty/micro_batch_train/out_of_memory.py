"""Getting over a micro-batch that does not fit: leaving nothing of the attempt behind."""

from __future__ import annotations

import traceback
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from torch import nn


def let_go(error: BaseException) -> None:
    """Drop all that the functions which an error has left still hold.

    A traceback keeps the local variables of every function that it passed, here the tensors of the micro-batch that
    did not fit, and an error of another thread is in a cycle with its own traceback, which only the garbage collector
    would end, some time later.
    """
    waiting, seen = [error], set()
    while waiting:
        error = waiting.pop()
        if error is None or id(error) in seen:
            continue
        seen.add(id(error))
        traceback.clear_frames(error.__traceback__)
        waiting += [error.__cause__, error.__context__]


@contextmanager
def all_gradients_or_none(parameters: Iterable[nn.Parameter]) -> Iterator[None]:
    """Add the gradients of a backward inside to those of before, or, where it ends in an error, none of them.

    A backward that fails midway has left the gradients of the layers that it reached. Here it finds no gradients and
    makes new ones, which are added when all are complete; after an error they are dropped, and those of before stand
    untouched, to the bit. A copy of those of before would do as well, but would take its memory during the forward
    too, and the time for copying. The new gradients come into being one after the other while the backward frees
    activations, so that at its start, where most memory is in use, there are none; the most that they take, at its
    end, is once the parameters. The additions are those that the backward would have made, and nothing is allocated
    for them.

    Args:
        parameters: each of them once.
    """
    before = [(parameter, parameter.grad) for parameter in parameters]
    for parameter, _ in before:
        parameter.grad = None
    try:
        yield
    except BaseException:
        for parameter, gradient in before:
            parameter.grad = gradient
        raise
    for parameter, gradient in before:
        if gradient is None:
            continue
        if parameter.grad is not None:
            gradient.add_(parameter.grad)
        parameter.grad = gradient
