"""The features in a user's ``.npz`` file, as float32: read, converted and checked a chunk at a time."""

import logging
import os
from collections.abc import Iterator

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from betty.datasets.damage import blamed_on
from betty.datasets.npz_archive import ITEMS_PER_CHUNK, ArrayStream
from betty.datasets.npz_csr import read_csr, read_shape
from betty.datasets.npz_file import SEE_FORM, NpzFile
from betty.datasets.npz_keys import ATTRIBUTES

logger = logging.getLogger(__name__)

LARGEST_SQUARED = 1e18
"""Where the squares of features come near the end of float32, losses stop being finite."""


def features_key(file: NpzFile) -> str:
    """The key that tells how many rows of features there are.

    Raises:
        BettyError: there are no features.
    """
    if "node_features" in file:
        return "node_features"
    if all(key in file for key in ATTRIBUTES):
        return "attr_shape"
    raise file.lacks("node features", "node_features, or attr_data, attr_indices, attr_indptr and attr_shape")


def features_shape(file: NpzFile, num_nodes: int) -> tuple[int, int]:
    """Rows and columns, without reading the features.

    Args:
        file: any.
        num_nodes: as the labels have it, to tell what a matrix of another shape may be.

    Raises:
        BettyError: there are no features, they are no numbers, or not two-dimensional.
    """
    if features_key(file) == "attr_shape":
        shape = read_shape(file, "attr_shape")
    else:
        dtype, shape = file.form("node_features")
        if len(shape) != 2 or dtype.kind not in "fiub":
            remedy = "for a single feature save node_features[:, None]" if shape == (num_nodes,) else ""
            raise file.misshapen("node_features", "numbers [N, F]", remedy)
    rows, columns = shape
    if columns == 0:
        raise file.error(f"there are {rows} rows of node features, but no columns")
    return rows, columns


def read_features(file: NpzFile) -> Tensor:
    """Features as float32 ``[N, F]``. Beside them no more than a chunk is in memory, or the sparse form.

    Raises:
        BettyError: a feature is not finite as float32, or they do not fit in memory.
    """
    if features_key(file) == "attr_shape":
        features = _made_dense(file)
    else:
        with file.opened("node_features") as array:
            features = _read_dense(array)
    largest = max((_largest(file, rows) for rows in _row_chunks(features)), default=0)
    if largest > LARGEST_SQUARED:
        logger.warning(
            "%s: node features go up to %.3g, so that training may leave what float32 can hold, and the loss not be "
            "finite; scale them",
            file.path,
            largest,
        )
    return torch.from_numpy(features)


def _read_dense(array: ArrayStream) -> NDArray[np.float32]:
    num_rows = array.shape[0]
    features = np.empty(array.shape, dtype=np.float32)
    # What float32 cannot hold becomes infinity, and is refused as such.
    with np.errstate(over="ignore", invalid="ignore"):
        if array.columns_first:
            # A few columns at a time, each a strided write.
            columns_per_chunk = max(ITEMS_PER_CHUNK // max(num_rows, 1), 1)
            start = 0
            for chunk in array.chunks(columns_per_chunk * num_rows):
                columns = chunk.reshape(-1, num_rows)
                features[:, start : start + len(columns)] = columns.T
                start += len(columns)
        else:
            items, start = features.reshape(-1), 0
            for chunk in array.chunks():
                items[start : start + chunk.size] = chunk
                start += chunk.size
    return features


def _row_chunks(features: NDArray[np.float32]) -> Iterator[NDArray[np.float32]]:
    rows_per_chunk = max(ITEMS_PER_CHUNK // features.shape[1], 1)
    return (features[start : start + rows_per_chunk] for start in range(0, len(features), rows_per_chunk))


def _largest(file: NpzFile, rows: NDArray[np.float32]) -> float:
    """The largest magnitude, found without a temporary array."""
    low, high = float(rows.min()), float(rows.max())
    if not (np.isfinite(low) and np.isfinite(high)):
        raise file.error("node features hold NaN or infinity; replace them")
    return max(-low, high)


def _made_dense(file: NpzFile) -> NDArray[np.float32]:
    dtype, shape_of_data = file.form("attr_data")
    if len(shape_of_data) != 1 or dtype.kind not in "fiub":
        raise file.misshapen("attr_data", "numbers [nonzeros]")
    shape = read_shape(file, "attr_shape")
    with np.errstate(over="ignore", invalid="ignore"):
        rows = read_csr(file, "attr", file.read("attr_data").astype(np.float32), shape)
    num_bytes = shape[0] * shape[1] * rows.dtype.itemsize
    if num_bytes > _memory_of_this_machine():
        raise file.error(
            f"the attributes of shape {list(shape)} take {num_bytes / 2**30:.4g} GiB when made dense, which is more "
            "than the memory of this machine"
        )
    with blamed_on(f"{file.path}: attr_data", SEE_FORM):
        return rows.toarray()


def _memory_of_this_machine() -> int:
    """In bytes."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
