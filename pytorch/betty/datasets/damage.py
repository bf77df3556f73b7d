"""What a damaged file ends in, told in one line."""

from collections.abc import Iterator
from contextlib import contextmanager

from betty.errors import BettyError


@contextmanager
def blamed_on(what: object, advice: str) -> Iterator[None]:
    """Turn whatever reading a file ends in into one line about the file.

    Args:
        what: the file, and the part of it that is read.
        advice: what to do about it.

    Raises:
        BettyError: the body raised anything; one of its own goes through as it is.
    """
    try:
        yield
    except BettyError:
        raise
    except MemoryError as error:
        raise BettyError(f"{what} does not fit in memory ({one_line(error)})") from error
    # Decompressors, zipfile, NumPy's and pandas' parsers and the unpickler each have exceptions of their own, and a
    # damaged file reaches any of them.
    except Exception as error:
        raise BettyError(f"{what} does not load ({type(error).__name__}: {one_line(error)}); {advice}") from error


def one_line(error: Exception) -> str:
    """The message of an exception, without line breaks."""
    return " ".join(str(error).split())
