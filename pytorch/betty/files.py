"""Files that appear whole or not at all, and checksums to tell that they stayed so."""

import fcntl
import hashlib
import json
import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from betty.errors import BettyError

PARTIAL_SUFFIX = ".partial"
LOCK = ".lock"

logger = logging.getLogger(__name__)


@contextmanager
def whole_file(path: Path) -> Iterator[Path]:
    """Write a file so that nobody ever sees half of it.

    Yields a temporary path in the same folder (made if missing) to write to. At the end of the ``with`` its bytes are
    flushed to the disk and it is renamed to ``path``; after an exception it is removed. A kill leaves at most a file
    that ends in ``.partial``, which the next writer of the same path replaces. Writers of one path have to
    exclude each other, see :func:`locked`.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(path.name + PARTIAL_SUFFIX)
    try:
        yield partial
        _flush_to_disk(partial)
        os.replace(partial, path)
        _flush_to_disk(path.parent)
    finally:
        partial.unlink(missing_ok=True)


def _flush_to_disk(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Keep other processes that ask for the same lock out of a folder; wait where one has it.

    The lock is the file ``.lock`` in the folder, which stays. A killed process gives its lock back.
    """
    with _open_lock(folder) as file:
        if not _try_lock(file):
            logger.info("waiting for another process that writes to %s", folder)
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


def hold_lock(folder: Path) -> IO[str]:
    """Take the lock of a folder, for as long as what is returned is alive and open.

    Raises:
        BettyError: another process, or another holder in this one, has it.
    """
    file = _open_lock(folder)
    if not _try_lock(file):
        file.close()
        raise BettyError(f"another process is writing to {folder}; wait for its end or choose another folder")
    return file


def _open_lock(folder: Path) -> IO[str]:
    folder.mkdir(parents=True, exist_ok=True)
    return open(folder / LOCK, "a", encoding="utf-8")


def _try_lock(file: IO[str]) -> bool:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def write_json(path: Path, content: Any) -> None:
    """Write ``content`` as indented JSON, whole or not at all."""
    with whole_file(path) as partial:
        partial.write_text(json.dumps(content, indent=2, allow_nan=False) + "\n", encoding="utf-8")


def read_json(path: Path) -> Any:
    """Read a JSON file.

    Raises:
        BettyError: the file is missing, cannot be read, or is not JSON.
    """
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise BettyError(f"{path} does not exist") from None
    except OSError as error:
        raise BettyError(f"{path} cannot be read: {error.strerror}") from error
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise BettyError(f"{path} is not a JSON file ({error}); delete it and make it again") from None


def sha256(path: Path) -> str:
    """The SHA-256 checksum of a file's bytes, in hexadecimal."""
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        while chunk := file.read(1 << 22):
            digest.update(chunk)
    return digest.hexdigest()
