"""The raw files of the Open Graph Benchmark: ``.csv.gz`` in one form, ``.npz`` in the other."""

from collections.abc import Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from torch import Tensor

from betty.datasets.damage import blamed_on
from betty.datasets.dataset import NO_LABEL
from betty.datasets.npz_archive import open_array
from betty.datasets.splits import Split
from betty.progress import progress_bar

ROWS_PER_CHUNK = 1 << 17
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


def _read_edges(path: Path, key: str, num_nodes: int) -> NDArray[np.int32]:
    """Node ids ``[2, num_edges]`` of an ``.npz`` file, without ever holding them in their own, wider dtype."""
    with open_array(path, key) as array:
        if len(array.shape) != 2 or array.shape[0] != 2 or array.dtype.kind not in "iu":
            raise ValueError(f"{key} is {array.dtype} {list(array.shape)} and not integer [2, E]")
        edges = np.empty(array.shape, np.int32, order="F" if array.columns_first else "C")
        items = edges.reshape(-1, order="A")
        start = 0
        for chunk in array.chunks():
            _require_ids(chunk, num_nodes)
            items[start : start + chunk.size] = chunk
            start += chunk.size
    return edges


def _member_rows(path: Path, key: str) -> Iterator[NDArray[np.float32]]:
    """The rows of one matrix of an ``.npz`` file, a chunk at a time."""
    with _blamed_on(path), open_array(path, key) as array:
        num_rows, num_columns = array.shape
        if array.columns_first and num_columns > 1:
            raise ValueError(f"{key} is stored by columns")
        if array.dtype.kind not in "fiu":
            raise ValueError(f"{key} is {array.dtype} and not numbers")
        with progress_bar(description="features", total=num_rows, unit="row") as progress:
            for chunk in array.chunks(ROWS_PER_CHUNK * num_columns):
                rows = chunk.astype(np.float32, copy=False).reshape(-1, num_columns)
                yield rows
                progress.update(len(rows))
