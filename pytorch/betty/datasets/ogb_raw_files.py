"""The raw files of the Open Graph Benchmark: ``.csv.gz`` in one form, ``.npz`` in the other."""

import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from torch import Tensor

from betty.datasets.dataset import NO_LABEL
from betty.datasets.splits import Split
from betty.errors import BettyError
from betty.progress import progress_bar

ROWS_PER_CHUNK = 1 << 17
ITEMS_PER_CHUNK = 1 << 24


@contextmanager
def _blamed_on(path: Path) -> Iterator[None]:
    """Turn what a cut or wrong file ends in into one line about the file."""
    try:
        yield
    except BettyError:
        raise
    # What pandas cannot parse is a ValueError.
    except (OSError, EOFError, ValueError, KeyError, zlib.error, zipfile.BadZipFile) as error:
        raise BettyError(
            f"{path} does not load ({type(error).__name__}: {error}); delete it and put a whole one there"
        ) from error


@dataclass(frozen=True, eq=False)
class RawGraph:
    """What the raw files hold.

    Args:
        num_nodes: number of nodes.
        first_ends: int32 ``[num_edges]``; edges are there in one direction.
        second_ends: int32 ``[num_edges]``.
        labels: int64 ``[num_nodes]``, -1 for a node without a label.
        feature_chunks: float32 ``[any, num_features]`` each, read one after the other.
    """

    num_nodes: int
    first_ends: NDArray[np.int32]
    second_ends: NDArray[np.int32]
    labels: Tensor
    feature_chunks: Iterator[NDArray[np.float32]]


def read_csv(raw: Path) -> RawGraph:
    """Read the folder ``raw`` of a data set in text form.

    Raises:
        BettyError: a file is missing or damaged; for the features, only once they are read.
    """
    num_nodes = int(_csv_column(raw / "num-node-list.csv.gz")[0])
    edge_path = raw / "edge.csv.gz"
    with _blamed_on(edge_path):
        edges = pd.read_csv(edge_path, header=None, dtype=np.int32).to_numpy()
        _require_ids(edges, num_nodes)
    return RawGraph(
        num_nodes,
        edges[:, 0],
        edges[:, 1],
        _as_labels(_csv_column(raw / "node-label.csv.gz")),
        _csv_chunks(raw / "node-feat.csv.gz", num_nodes),
    )


def _csv_column(path: Path) -> NDArray:
    with _blamed_on(path):
        return pd.read_csv(path, header=None)[0].to_numpy()


def _csv_chunks(path: Path, num_rows: int) -> Iterator[NDArray[np.float32]]:
    with (
        _blamed_on(path),
        pd.read_csv(path, header=None, dtype=np.float32, chunksize=ROWS_PER_CHUNK) as chunks,
        progress_bar(description="features", total=num_rows, unit="row") as progress,
    ):
        for chunk in chunks:
            yield chunk.to_numpy()
            progress.update(len(chunk))


def read_split(folder: Path) -> Split:
    """Read the three files of a split.

    Raises:
        BettyError: a file is missing or damaged.
    """
    return Split(
        *(
            torch.from_numpy(np.sort(_csv_column(folder / f"{part}.csv.gz").astype(np.int64)))
            for part in ("train", "valid", "test")
        )
    )


def _as_labels(values: NDArray) -> Tensor:
    """Classes as int64; NaN is no label."""
    return torch.from_numpy(np.nan_to_num(values.reshape(-1), nan=NO_LABEL).astype(np.int64))


def _require_ids(edges: NDArray, num_nodes: int) -> None:
    if edges.size and not (edges.min() >= 0 and edges.max() < num_nodes):
        raise ValueError(f"node ids from {edges.min()} to {edges.max()} for {num_nodes} nodes")


def read_binary(raw: Path) -> RawGraph:
    """Read the folder ``raw`` of a data set in NumPy's form. Nothing is unpickled.

    Raises:
        BettyError: a file is missing or damaged; for the features, only once they are read.
    """
    path, label_path = raw / "data.npz", raw / "node-label.npz"
    with _blamed_on(path):
        with np.load(path, allow_pickle=False) as file:
            num_nodes = int(file["num_nodes_list"][0])
        edges = _read_member(path, "edge_index", np.int32)
        _require_ids(edges, num_nodes)
    with _blamed_on(label_path), np.load(label_path, allow_pickle=False) as file:
        labels = _as_labels(file["node_label"])
    return RawGraph(num_nodes, edges[0], edges[1], labels, _member_rows(path, "node_feat"))


@contextmanager
def _open_member(path: Path, key: str) -> Iterator[tuple[tuple[int, ...], bool, np.dtype, IO[bytes]]]:
    """Shape, whether columns come first, dtype, and the bytes of one array of an ``.npz`` file, as a stream."""
    with zipfile.ZipFile(path) as archive, archive.open(f"{key}.npy") as stream:
        version = np.lib.format.read_magic(stream)
        read_header = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
        shape, columns_first, dtype = read_header(stream)
        if dtype.hasobject:
            raise ValueError(f"{key} holds Python objects")
        yield shape, columns_first, dtype, stream


def _read_items(stream: IO[bytes], count: int, dtype: np.dtype) -> NDArray:
    return np.frombuffer(stream.read(count * dtype.itemsize), dtype, count)


def _read_member(path: Path, key: str, target_dtype: type) -> NDArray:
    """One array of an ``.npz`` file in another dtype, without ever holding it in its own."""
    with _open_member(path, key) as (shape, columns_first, dtype, stream):
        target = np.empty(shape, target_dtype, order="F" if columns_first else "C")
        items = target.reshape(-1, order="A")
        for start in range(0, items.size, ITEMS_PER_CHUNK):
            chunk = items[start : start + ITEMS_PER_CHUNK]
            chunk[:] = _read_items(stream, chunk.size, dtype)
    return target


def _member_rows(path: Path, key: str) -> Iterator[NDArray[np.float32]]:
    """The rows of one matrix of an ``.npz`` file, a chunk at a time."""
    with _blamed_on(path), _open_member(path, key) as (shape, columns_first, dtype, stream):
        num_rows, num_columns = shape
        if columns_first and num_columns > 1:
            raise ValueError(f"{key} is stored by columns")
        with progress_bar(description="features", total=num_rows, unit="row") as progress:
            for start in range(0, num_rows, ROWS_PER_CHUNK):
                count = min(ROWS_PER_CHUNK, num_rows - start)
                rows = _read_items(stream, count * num_columns, dtype)
                yield rows.astype(np.float32, copy=False).reshape(count, num_columns)
                progress.update(count)
