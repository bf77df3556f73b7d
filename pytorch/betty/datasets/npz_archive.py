"""The arrays of an ``.npz`` file as streams: a chunk is in memory at a time, and nothing is unpickled."""

import math
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import numpy as np
from numpy.typing import NDArray

ITEMS_PER_CHUNK = 1 << 21
SUFFIX = ".npy"


@dataclass(frozen=True, eq=False)
class ArrayStream:
    """One array of an ``.npz`` file, whose items are read one after the other.

    Args:
        shape: of the array.
        dtype: without Python objects.
        columns_first: whether the items stand in Fortran's order.
        stream: its bytes, from the first item on.
    """

    shape: tuple[int, ...]
    dtype: np.dtype
    columns_first: bool
    stream: IO[bytes]

    def chunks(self, items_per_chunk: int | None = None) -> Iterator[NDArray]:
        """All items in the order of the file, in flat arrays that cannot be written to.

        Raises:
            ValueError: there are fewer or more than the shape says.
            zipfile.BadZipFile: the checksum tells of damage.
        """
        num_items, step = math.prod(self.shape), items_per_chunk or ITEMS_PER_CHUNK
        for start in range(0, num_items, step):
            count = min(step, num_items - start)
            yield np.frombuffer(self.stream.read(count * self.dtype.itemsize), self.dtype, count)
        # Only the attempt to read on has zipfile compare the checksum.
        if self.stream.read(1):
            raise ValueError(f"there are more bytes than an array of shape {list(self.shape)} has")

    def read(self) -> NDArray:
        """The whole array, in its own order."""
        array = np.empty(self.shape, self.dtype, order="F" if self.columns_first else "C")
        items = array.reshape(-1, order="A")
        start = 0
        for chunk in self.chunks():
            items[start : start + chunk.size] = chunk
            start += chunk.size
        return array


def array_names(path: Path) -> list[str]:
    """The names of the arrays, in the order of the file.

    Raises:
        zipfile.BadZipFile: the file is no zip archive.
    """
    with zipfile.ZipFile(path) as archive:
        return [member.removesuffix(SUFFIX) for member in archive.namelist()]


@contextmanager
def open_array(path: Path, name: str) -> Iterator[ArrayStream]:
    """One array of an ``.npz`` file, with nothing but its header read.

    Raises:
        KeyError: there is none of that name.
        ValueError: it is no array in NumPy's form, or holds Python objects.
        zipfile.BadZipFile: the file is no zip archive, or a damaged one.
    """
    with zipfile.ZipFile(path) as archive:
        member = name + SUFFIX if name + SUFFIX in archive.NameToInfo else name
        with archive.open(member) as stream:
            version = np.lib.format.read_magic(stream)
            read_header = (
                np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
            )
            shape, columns_first, dtype = read_header(stream)
            if dtype.hasobject:
                raise ValueError("it holds Python objects, which are not unpickled; give it a dtype of numbers")
            yield ArrayStream(shape, dtype, columns_first, stream)
