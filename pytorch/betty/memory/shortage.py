"""Telling that memory ran out, in all the words in which Python, PyTorch, its libraries and the system say it.

Imports nothing heavy: it has to tell of a library, PyTorch's own among them, that cannot be loaded for want of memory.
"""

from __future__ import annotations

from betty.errors import BettyError

OF_HOST = (
    "can't allocate memory",
    "Can't allocate memory",
    "Cannot allocate memory",
    "not enough memory",
    "std::bad_alloc",
    "unable to mmap",
    "could not create a primitive",
    "could not execute a primitive",
    "could not create a memory",
    "could not create a stream",
    "could not create an engine",
    "error return without exception set",
    "returned NULL without setting an exception",
)
"""PyTorch's CPU allocator's, the C library's and C++'s words; oneDNN's, which tell no cause and go on like "… a
primitive descriptor for the LSTM …"; Python's where there was no memory for an exception.
"""

OF_DEVICE = ("out of memory", "ALLOC_FAILED", "ALLOCATION_FAILED", "cudaErrorMemoryAllocation")
"""PyTorch's device allocators' and CUDA's, and those of cuBLAS and cuDNN, which allocate past PyTorch's."""

OF_THREADS = ("can't start new thread", "Resource temporarily unavailable")
"""Python's and C++'s, where the stack of a thread does not fit or the system allows no more threads."""

OF_LIBRARIES = ("failed to map segment", "cannot map zero-fill pages", "cannot create shared object descriptor")
"""The dynamic linker's."""


def is_mended_by_smaller_batches(error: BaseException) -> bool:
    """Whether an error says that there was too little memory, of the device or of the host, for what is computed."""
    return isinstance(error, MemoryError) or (
        isinstance(error, RuntimeError) and _line_with(error, *OF_HOST, *OF_DEVICE) is not None
    )


def explain_shortage(error: BaseException) -> str | None:
    """What to tell the user of an error that says that memory ran out; ``None`` of any other.

    One that speaks to users is of that kind where its cause is, whatever it takes it for: damage of a file, say.
    """
    if isinstance(error, BettyError):
        cause = explain_shortage(error.__cause__) if error.__cause__ else None
        return cause and f"{cause} ({error})"
    if line := _line_with(error, *OF_LIBRARIES):
        return f"a library cannot be loaded, most likely for want of memory; free some, or raise ulimit -v: {line}"
    if _line_with(error, *OF_THREADS):
        return "this machine has no memory for one more thread, or allows none; free some, or raise ulimit -v or -u"
    if isinstance(error, MemoryError) or _line_with(error, *OF_HOST):
        return "this machine is out of memory; make smaller batches or a smaller model"
    if line := _line_with(error, *OF_DEVICE):
        return f"the device is out of memory; make smaller batches, or more of them of a full batch: {line}"
    return None


def _line_with(error: BaseException, *words: str) -> str | None:
    """The first line of what an error says that holds one of the words."""
    # Of an error of the system not all that it says: it names files.
    text = (isinstance(error, OSError) and error.strerror) or str(error)
    return next((line for line in text.splitlines() if any(word in line for word in words)), None)
