"""Your own graph: a NumPy ``.npz`` file.

``betty.load_dataset("path/to/my-graph.npz")`` or ``--dataset path/to/my-graph.npz`` takes any file that
``numpy.savez`` or ``numpy.savez_compressed`` wrote with these arrays, for N nodes numbered from 0:

==================  ===================================================================================================
edges, one of       ``edges``: integer ``[E, 2]``, the two ends of each edge

                    ``adj_indptr`` integer ``[N + 1]`` and ``adj_indices`` integer ``[E]``: an adjacency matrix in
                    SciPy's CSR form (``adj_data`` and ``adj_shape`` may be there; weights are not used)
features, one of    ``node_features``: numbers ``[N, F]``

                    ``attr_data``, ``attr_indices``, ``attr_indptr``, ``attr_shape``: a sparse matrix ``[N, F]`` in
                    SciPy's CSR form; it is made dense
labels, one of      ``node_labels`` or ``labels``: integer ``[N]``, classes from 0, or -1 for a node without a label
split, all or none  ``train_masks``, ``val_masks``, ``test_masks``: bool ``[N]``, or ``[S, N]`` for S splits to choose
                    from
==================  ===================================================================================================

Other arrays are ignored. The forms may be mixed. Edges are undirected: one direction is enough, reverse edges are
added, duplicates and self-loops removed. Without a split, nodes with a label are divided at random, by seed, into
60 % for training, 20 % for validation and 20 % for testing. There are as many classes as the largest label says: at
most as many as nodes, or 1000. No node may be in two parts of a split.

A file made by hand::

    import numpy as np

    np.savez("my-graph.npz", edges=edges, node_features=features, node_labels=labels)

Nothing is unpickled: arrays of Python objects are refused.
"""

import os
from pathlib import Path

import numpy as np
import torch
from numpy.lib.npyio import NpzFile
from numpy.typing import NDArray
from scipy import sparse
from torch import Tensor

from betty.datasets.damage import blamed_on, one_line
from betty.datasets.dataset import Dataset, checked, require_finite
from betty.datasets.graph import build_graph, undirected_csc
from betty.datasets.splits import Split, random_split, split_from_masks
from betty.errors import BettyError

CSR_KEYS = ("data", "indices", "indptr", "shape")
MASKS = ("train_masks", "val_masks", "test_masks")
WANTED = {
    *("edges", "adj_indptr", "adj_indices"),
    *("node_features", *(f"attr_{key}" for key in CSR_KEYS)),
    *("node_labels", "labels"),
    *MASKS,
}

SEE_FORM = "see betty.datasets.npz for the form"

Arrays = dict[str, NDArray]


def load_npz(path: Path, seed: int, split: int) -> Dataset:
    """Load a graph from a file of the form that this module describes.

    Args:
        path: the file.
        seed: of the random split where the file has none.
        split: the row of the masks, where the file has several splits.

    Raises:
        BettyError: the file is missing, damaged, or not of that form.
    """
    arrays = _read(path)
    labels = _labels(arrays, path)
    num_nodes = labels.numel()
    features = _features(arrays, path)
    require_finite(features, path)
    first_ends, second_ends = _edges(arrays, num_nodes, path)
    parts = _split(arrays, num_nodes, split, path) or random_split(labels, seed)
    dataset = Dataset(
        name=path.stem,
        graph=build_graph(*undirected_csc(first_ends, second_ends, num_nodes)),
        features=features,
        labels=labels,
        num_classes=max(int(labels.max()) + 1, 1),
        **parts._asdict(),
    )
    return checked(dataset, path)


def _read(path: Path) -> Arrays:
    # Path.is_file raises where a name is too long.
    if not os.path.isfile(path):
        raise BettyError(f"{path} does not exist, or is not a file")
    with blamed_on(path, SEE_FORM):
        file = np.load(path, allow_pickle=False)
    if not isinstance(file, NpzFile):
        raise BettyError(f"{path} is a single array and no .npz file; {SEE_FORM}")
    with file:
        return {key: _read_member(file, key, path) for key in file.files if key in WANTED}


def _read_member(file: NpzFile, key: str, path: Path) -> NDArray:
    with blamed_on(f"{path}: {key}", SEE_FORM):
        array = file[key]
    # NumPy gives the bytes of what is not an array.
    if not isinstance(array, np.ndarray):
        raise BettyError(f"{path}: {key} is not an array in NumPy's .npy form; {SEE_FORM}")
    return array


def _missing(path: Path, what: str, keys: str) -> BettyError:
    return BettyError(f"{path} has no {what}: it needs {keys}; {SEE_FORM}")


def _labels(arrays: Arrays, path: Path) -> Tensor:
    key = "node_labels" if "node_labels" in arrays else "labels"
    if key not in arrays:
        raise _missing(path, "labels", "node_labels or labels")
    labels = _integers(arrays, key, "[N]", path)
    if len(labels) == 0:
        raise BettyError(f"{path}: {key} is empty; the graph has no nodes")
    return torch.from_numpy(labels.astype(np.int64))


def _form(array: NDArray) -> str:
    return f"{array.dtype} {list(array.shape)}"


def _integers(arrays: Arrays, key: str, form: str, path: Path) -> NDArray[np.integer]:
    """An array of integers that int64 can hold, with as many dimensions as ``form``, like ``[E, 2]``, has."""
    array = arrays[key]
    if array.ndim != form.count(",") + 1 or array.dtype.kind not in "iu":
        raise BettyError(f"{path}: {key} is {_form(array)}; it has to be integer {form}")
    if array.size and array.max() > np.iinfo(np.int64).max:
        raise BettyError(f"{path}: {key} holds {array.max()}, which is too large")
    return array


def _features(arrays: Arrays, path: Path) -> Tensor:
    if "node_features" in arrays:
        features = _numbers(arrays, "node_features", "[N, F]", path)
    elif all(f"attr_{key}" in arrays for key in CSR_KEYS):
        features = _dense_attributes(arrays, path)
    else:
        raise _missing(path, "node features", "node_features, or attr_data, attr_indices, attr_indptr and attr_shape")
    if features.shape[1] == 0:
        raise BettyError(f"{path}: there are {len(features)} rows of node features, but no columns")
    return torch.from_numpy(features)


def _numbers(arrays: Arrays, key: str, form: str, path: Path) -> NDArray[np.float32]:
    array = arrays[key]
    if array.ndim != form.count(",") + 1 or array.dtype.kind not in "fiub":
        raise BettyError(f"{path}: {key} is {_form(array)}; it has to be numbers {form}")
    # What float32 cannot hold becomes infinity, and is refused as such.
    with np.errstate(over="ignore"):
        return np.ascontiguousarray(array, dtype=np.float32)


def _dense_attributes(arrays: Arrays, path: Path) -> NDArray[np.float32]:
    shape = _integers(arrays, "attr_shape", "[2]", path).tolist()
    if len(shape) != 2:
        raise BettyError(f"{path}: attr_shape is {shape}; it has to be two numbers")
    rows = _csr(arrays, "attr", _numbers(arrays, "attr_data", "[nonzeros]", path), tuple(shape), path)
    num_bytes = shape[0] * shape[1] * rows.dtype.itemsize
    if num_bytes > _memory_of_this_machine():
        raise BettyError(
            f"{path}: the attributes of shape {shape} take {num_bytes / 2**30:.4g} GiB when made dense, which is more "
            "than the memory of this machine"
        )
    with blamed_on(f"{path}: attr_data", SEE_FORM):
        return rows.toarray()


def _memory_of_this_machine() -> int:
    """In bytes."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def _csr(arrays: Arrays, matrix: str, data: NDArray, shape: tuple[int, int], path: Path) -> sparse.csr_matrix:
    indices = _integers(arrays, f"{matrix}_indices", "[nonzeros]", path)
    indptr = _integers(arrays, f"{matrix}_indptr", "[N + 1]", path)
    try:
        # SciPy looks at differences, which can overflow, and at the ends alone.
        if indptr.size and not (indptr.min() >= 0 and indptr.max() <= len(indices)):
            raise ValueError(f"pointers from {indptr.min()} to {indptr.max()} for {len(indices)} indices")
        rows = sparse.csr_matrix((data, indices, indptr), shape=shape)
        rows.check_format(full_check=True)
    except (ValueError, TypeError, OverflowError) as error:
        raise BettyError(
            f"{path}: {matrix}_indptr and {matrix}_indices are not a CSR matrix ({one_line(error)})"
        ) from error
    return rows


def _edges(arrays: Arrays, num_nodes: int, path: Path) -> tuple[NDArray, NDArray]:
    if "edges" in arrays:
        edges = _integers(arrays, "edges", "[E, 2]", path)
        if edges.shape[1] != 2:
            raise BettyError(f"{path}: edges is {_form(edges)}; it has to be integer [E, 2]")
        if edges.size and not (edges.min() >= 0 and edges.max() < num_nodes):
            raise BettyError(
                f"{path}: edges holds node ids from {edges.min()} to {edges.max()}, but there are {num_nodes} nodes"
            )
        edges = edges.astype(np.int64, copy=False)
        return edges[:, 0], edges[:, 1]
    if "adj_indptr" not in arrays or "adj_indices" not in arrays:
        raise _missing(path, "edges", "edges, or adj_indptr and adj_indices")
    unweighted = np.ones(arrays["adj_indices"].size, dtype=np.int8)
    return _csr(arrays, "adj", unweighted, (num_nodes, num_nodes), path).nonzero()


def _split(arrays: Arrays, num_nodes: int, row: int, path: Path) -> Split | None:
    """None where the file has no split."""
    missing = [key for key in MASKS if key not in arrays]
    if len(missing) == len(MASKS):
        if row != 0:
            raise BettyError(f"{path}: there is no split {row}: the file has no masks, and gets one random split")
        return None
    if missing:
        raise BettyError(f"{path} has a split without {' and '.join(missing)}; add it or leave out all masks")
    return split_from_masks(*(_mask(arrays[key], key, num_nodes, row, path) for key in MASKS))


def _mask(masks: NDArray, key: str, num_nodes: int, row: int, path: Path) -> NDArray[np.bool_]:
    if masks.dtype != bool or masks.ndim not in (1, 2) or masks.shape[-1] != num_nodes:
        raise BettyError(
            f"{path}: {key} is {_form(masks)}; it has to be bool [N] or [S, N], with N = {num_nodes} nodes"
        )
    rows = np.atleast_2d(masks)
    if not 0 <= row < len(rows):
        raise BettyError(f"{path}: there is no split {row}: {key} has {len(rows)}, counted from 0")
    return rows[row]
