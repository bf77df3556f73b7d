"""The raw files of the Open Graph Benchmark: ``.csv.gz`` in one form, ``.npz`` in the other."""

import zipfile
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from torch import Tensor

from betty.datasets.damage import blamed_on
from betty.datasets.dataset import NO_LABEL
from betty.datasets.splits import Split
from betty.progress import progress_bar

ROWS_PER_CHUNK = 1 << 17
ITEMS_PER_CHUNK = 1 << 24
MOST_NODES = np.iinfo(np.int32).max


def _blamed_on(path: Path) -> AbstractContextManager[None]:
    return blamed_on(path, "delete it and put a whole one there")


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
    count_path, edge_path, label_path = (raw / f"{name}.csv.gz" for name in ("num-node-list", "edge", "node-label"))
    with _blamed_on(count_path):
        num_nodes = _as_count(_csv_column(count_path, np.int64))
    with _blamed_on(edge_path):
        edges = pd.read_csv(edge_path, header=None, dtype=np.int32).to_numpy()
        if edges.shape[1] != 2:
            raise ValueError(f"{edges.shape[1]} columns, not 2")
        _require_ids(edges, num_nodes)
    with _blamed_on(label_path):
        labels = _as_labels(_csv_column(label_path, np.float64), num_nodes)
    return RawGraph(num_nodes, edges[:, 0], edges[:, 1], labels, _csv_chunks(raw / "node-feat.csv.gz", num_nodes))


def _csv_column(path: Path, dtype: type) -> NDArray:
    return pd.read_csv(path, header=None, dtype=dtype)[0].to_numpy()


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
    return Split(*(_read_ids(folder / f"{part}.csv.gz") for part in ("train", "valid", "test")))


def _read_ids(path: Path) -> Tensor:
    with _blamed_on(path):
        return torch.from_numpy(np.sort(_csv_column(path, np.int64)))


def _as_count(values: NDArray) -> int:
    """The number of nodes: the first of a list with one number for each graph."""
    (count,) = values.tolist()
    if not isinstance(count, int) or not 0 < count <= MOST_NODES:
        raise ValueError(f"{count} is no number of nodes from 1 to {MOST_NODES}")
    return count


def _as_labels(values: NDArray, num_nodes: int) -> Tensor:
    """Classes as int64 ``[num_nodes]``; NaN is no label."""
    if values.size != num_nodes:
        raise ValueError(f"{values.size} labels for {num_nodes} nodes")
    values = np.where(np.isnan(values), NO_LABEL, values).reshape(-1)
    if not (np.abs(values) < MOST_NODES).all() or (values != np.trunc(values)).any():
        raise ValueError("labels that are not whole numbers")
    return torch.from_numpy(values.astype(np.int64))


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
            num_nodes = _as_count(file["num_nodes_list"])
        edges = _read_edges(path, "edge_index", num_nodes)
    with _blamed_on(label_path), np.load(label_path, allow_pickle=False) as file:
        labels = _as_labels(file["node_label"], num_nodes)
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


def _read_edges(path: Path, key: str, num_nodes: int) -> NDArray[np.int32]:
    """Node ids ``[2, num_edges]`` of an ``.npz`` file, without ever holding them in their own, wider dtype."""
    with _open_member(path, key) as (shape, columns_first, dtype, stream):
        if len(shape) != 2 or shape[0] != 2 or dtype.kind not in "iu":
            raise ValueError(f"{key} is {dtype} {list(shape)} and not integer [2, E]")
        edges = np.empty(shape, np.int32, order="F" if columns_first else "C")
        items = edges.reshape(-1, order="A")
        for start in range(0, items.size, ITEMS_PER_CHUNK):
            chunk = items[start : start + ITEMS_PER_CHUNK]
            read = _read_items(stream, chunk.size, dtype)
            _require_ids(read, num_nodes)
            chunk[:] = read
    return edges


def _member_rows(path: Path, key: str) -> Iterator[NDArray[np.float32]]:
    """The rows of one matrix of an ``.npz`` file, a chunk at a time."""
    with _blamed_on(path), _open_member(path, key) as (shape, columns_first, dtype, stream):
        num_rows, num_columns = shape
        if columns_first and num_columns > 1:
            raise ValueError(f"{key} is stored by columns")
        if dtype.kind not in "fiu":
            raise ValueError(f"{key} is {dtype} and not numbers")
        with progress_bar(description="features", total=num_rows, unit="row") as progress:
            for start in range(0, num_rows, ROWS_PER_CHUNK):
                count = min(ROWS_PER_CHUNK, num_rows - start)
                rows = _read_items(stream, count * num_columns, dtype)
                yield rows.astype(np.float32, copy=False).reshape(count, num_columns)
                progress.update(count)
