"""Files that appear whole or not at all, and checksums to tell that they stayed so."""

import fcntl
import hashlib
import json
import logging
import os
import weakref
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO, TypeVar

import msgspec

from betty.errors import BettyError

PARTIAL_SUFFIX = ".partial"
LOCK = ".lock"

MOST_JSON_BYTES = 1 << 28
"""Far more than any JSON file that Betty writes has, and little enough for any memory."""

Form = TypeVar("Form")

_held: weakref.WeakSet[BinaryIO] = weakref.WeakSet()
"""The locks that :func:`hold_lock` gave out."""

logger = logging.getLogger(__name__)


class NotOfFormError(BettyError):
    """What is in a file is not what was to be written there."""


@contextmanager
def whole_file(path: Path) -> Iterator[BinaryIO]:
    """Write a file so that nobody ever sees half of it.

    Yields a file in the same folder (made if missing) to write to. At the end of the ``with`` its bytes are flushed to
    the disk and it is renamed to ``path``; after an exception it is removed. A kill leaves at most a file that ends in
    ``.partial``, which the next writer of the same path replaces, as it does a link that lies there: nothing outside
    of the folder is written. Writers of one path have to exclude each other, see :func:`locked`.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(path.name + PARTIAL_SUFFIX)
    partial.unlink(missing_ok=True)
    try:
        with open(partial, "xb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(partial, path)
        flush_folder(path.parent)
    finally:
        partial.unlink(missing_ok=True)


def remove_files(folder: Path, names: Iterable[str]) -> None:
    """Remove files of a folder, so that all are gone for good before anything else is written there."""
    for name in names:
        (folder / name).unlink(missing_ok=True)
    flush_folder(folder)


def flush_folder(path: Path) -> None:
    """Bring to the disk which files a folder holds."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def append(path: Path, content: bytes) -> None:
    """Add bytes at the end of a file, made if missing, and bring them to the disk.

    Raises:
        OSError: it cannot be written, or is a link.
    """
    with open(path, "ab", opener=not_through_a_link) as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def not_through_a_link(path: str, flags: int) -> int:
    """For the ``opener`` of :func:`open`: refuse a link in the place of the file, and do not wait at a pipe."""
    return os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK, 0o666)


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Keep other processes that ask for the same lock out of a folder; wait where one has it.

    The lock is the file ``.lock`` in the folder, which stays. A killed process gives its lock back.
    """
    with _open_lock(folder) as file:
        if not _try_lock(file):
            if any(os.path.sameopenfile(file.fileno(), other.fileno()) for other in _held if not other.closed):
                raise BettyError(f"this command writes to {folder} for two purposes; choose another --output")
            logger.info("waiting for another process that writes to %s", folder)
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


def hold_lock(folder: Path) -> BinaryIO:
    """Take the lock of a folder, for as long as what is returned is alive and open.

    Raises:
        BettyError: another process, or another holder in this one, has it.
    """
    file = _open_lock(folder)
    if not _try_lock(file):
        file.close()
        raise BettyError(f"another process is writing to {folder}; wait for its end or choose another folder")
    _held.add(file)
    return file


def _open_lock(folder: Path) -> BinaryIO:
    folder.mkdir(parents=True, exist_ok=True)
    return open(folder / LOCK, "ab", opener=not_through_a_link)


def _try_lock(file: BinaryIO) -> bool:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def write_json(path: Path, content: Any) -> None:
    """Write ``content`` as indented JSON, whole or not at all."""
    with whole_file(path) as file:
        file.write((json.dumps(content, indent=2, allow_nan=False) + "\n").encode())


def read_json(path: Path, form: type[Form] = Any) -> Form:
    """Read a JSON file.

    Args:
        path: of a regular file.
        form: what it has to be: a type like ``list[int]``, or a dataclass whose fields' types are checked, too.

    Raises:
        BettyError: the file is missing, cannot be read, or is not JSON of that form.
    """
    try:
        return parse_json(read_json_bytes(path), path, form)
    except NotOfFormError as error:
        raise NotOfFormError(f"{error}; delete it and make it again") from None


def read_json_bytes(path: Path) -> bytes:
    """The bytes of a file that is to be JSON, for :func:`parse_json`.

    Raises:
        BettyError: the file is missing, cannot be read, or is too large to be JSON of Betty's.
    """
    try:
        if not path.is_file() and path.exists():
            raise BettyError(f"{path} is not a regular file; remove it")
        if path.stat().st_size > MOST_JSON_BYTES:
            raise BettyError(f"{path} is larger than {MOST_JSON_BYTES} bytes; delete it and make it again")
        return path.read_bytes()
    except FileNotFoundError:
        raise BettyError(f"{path} does not exist") from None
    except OSError as error:
        raise BettyError(f"{path} cannot be read: {error.strerror}") from error


def parse_json(content: bytes | str, origin: object, form: type[Form] = Any) -> Form:
    """JSON as data of a form: where all JSON comes in, whatever its depth and the length of its numbers.

    Args:
        content: JSON.
        origin: what to blame in an error.
        form: a type.

    Raises:
        NotOfFormError: it is no JSON, or another.
    """
    try:
        return msgspec.json.decode(content, type=form)
    except msgspec.ValidationError as error:
        raise NotOfFormError(f"{origin} is not as Betty writes it ({error})") from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise NotOfFormError(f"{origin} is not JSON ({error})") from None


def sha256(path: Path) -> str:
    """The SHA-256 checksum of a file's bytes, in hexadecimal."""
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        while chunk := file.read(1 << 22):
            digest.update(chunk)
    return digest.hexdigest()
