"""A user's ``.npz`` file: which arrays it holds, and what is wrong with one, told in one line."""

import os
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from betty.datasets.damage import blamed_on, one_line
from betty.datasets.npz_archive import ArrayStream, array_names, open_array
from betty.errors import BettyError

SEE_FORM = "see betty.datasets.npz for the form"

USUAL_NAMES = {
    "edge_index": "edges=edge_index.T",
    **dict.fromkeys(("x", "feat", "feats", "features", "node_feat"), "node_features={}"),
    **dict.fromkeys(("y", "label", "target", "targets", "node_label"), "node_labels={}"),
}
"""What others call edges, features and labels, and how to save them."""


@dataclass(frozen=True)
class NpzFile:
    """Where the file is, and the keys of its arrays. Nothing else is in memory."""

    path: Path
    keys: tuple[str, ...]

    def __contains__(self, key: str) -> bool:
        return key in self.keys

    def error(self, message: str) -> BettyError:
        """To be raised: the message after the name of the file."""
        return BettyError(f"{self.path}: {message}")

    def lacks(self, what: str, keys: str) -> BettyError:
        """To be raised: the file has none of the keys that it needs for something."""
        renamed = [USUAL_NAMES[key].format(key) for key in self.keys if key in USUAL_NAMES]
        remedy = f"save it with {', '.join(renamed)}" if renamed else SEE_FORM
        return BettyError(f"{self.path} has no {what}: it needs {keys}, and holds {named(self.keys)}; {remedy}")

    @contextmanager
    def opened(self, key: str) -> Iterator[ArrayStream]:
        """One array as a stream."""
        with blamed_on(f"{self.path}: {key}", SEE_FORM), open_array(self.path, key) as array:
            yield array

    def read(self, key: str) -> NDArray:
        """One array, of any dtype that has no Python objects."""
        with self.opened(key) as array:
            return array.read()

    def form(self, key: str) -> tuple[np.dtype, tuple[int, ...]]:
        """Dtype and shape of an array, which is not read."""
        with self.opened(key) as array:
            return array.dtype, array.shape

    def misshapen(self, key: str, wanted: str, remedy: str = "") -> BettyError:
        """To be raised: an array is not of the wanted form; the remedy is what to do about it."""
        dtype, shape = self.form(key)
        advice = f": {remedy}" if remedy else ""
        return self.error(f"{key} is {dtype} {list(shape)}; it has to be {wanted}{advice}")

    def integers(self, key: str, form: str) -> NDArray[np.integer]:
        """An array of integers that int64 can hold, with as many dimensions as ``form``, like ``[E, 2]``, has."""
        dtype, shape = self.form(key)
        if len(shape) != form.count(",") + 1 or dtype.kind not in "iu":
            raise self.misshapen(key, f"integer {form}")
        array = self.read(key)
        if array.size and array.max() > np.iinfo(np.int64).max:
            raise self.error(f"{key} holds {array.max()}, which is too large")
        return array


def named(keys: tuple[str, ...] | list[str], most: int = 10) -> str:
    """Keys in one short line, whatever is in them."""
    listed = ", ".join(" ".join(key.split()) for key in keys[:most])
    return f"{listed} and {len(keys) - most} more" if len(keys) > most else listed or "nothing"


def open_npz(path: Path) -> NpzFile:
    """Look at the keys of a file.

    Raises:
        BettyError: it is missing or no ``.npz`` file.
    """
    # Path.is_file raises where a name is too long.
    if not os.path.isfile(path):
        raise BettyError(f"{path} does not exist, or is not a file")
    with blamed_on(path, SEE_FORM):
        try:
            keys = array_names(path)
        except zipfile.BadZipFile as error:
            raise BettyError(f"{path} does not load: {_what_else(path)} ({one_line(error)}); {SEE_FORM}") from error
    twice = sorted({key for key in keys if keys.count(key) > 1})
    if twice:
        raise BettyError(f"{path} holds {named(twice)} more than once; save each array once")
    return NpzFile(path, tuple(keys))


def _what_else(path: Path) -> str:
    with open(path, "rb") as file:
        start = file.read(1 << 12)
    if not start:
        return "it is empty"
    if start.startswith(b"\x93NUMPY"):
        return "it is a single array and no .npz file; save all arrays into one with numpy.savez"
    if start.startswith(b"PK"):
        return "it is cut or damaged; copy it again"
    if start.startswith(b"\x89HDF") or start.startswith(b"MATLAB"):
        return "it is an HDF5 or MATLAB file and no .npz file; save its arrays with numpy.savez"
    if not set(start) & set(b"\x00\x01\x02\x03\x04"):
        return "it is a text file and no .npz file; read it with numpy.loadtxt, say, and save arrays with numpy.savez"
    return "it is no .npz file; save arrays with numpy.savez"
