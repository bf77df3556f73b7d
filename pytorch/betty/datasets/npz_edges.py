"""The edges in a user's ``.npz`` file, and whether they have a direction."""

import logging

import numpy as np
from numpy.typing import NDArray

from betty.datasets.npz_csr import read_csr, read_shape
from betty.datasets.npz_file import NpzFile
from betty.datasets.npz_keys import DIRECTED

logger = logging.getLogger(__name__)


def read_edges(file: NpzFile, num_nodes: int) -> tuple[NDArray[np.integer], NDArray[np.integer]]:
    """Sources and destinations ``[E]``, in the order of the file, every id in range.

    Raises:
        BettyError: there are none, they are not of one of the forms, name nodes that are not there, or have weights.
    """
    if "edges" in file:
        return _from_pairs(file, num_nodes)
    if "adj_indptr" in file and "adj_indices" in file:
        return _from_adjacency(file, num_nodes)
    raise file.lacks("edges", "edges, or adj_indptr and adj_indices")


def _from_pairs(file: NpzFile, num_nodes: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    dtype, shape = file.form("edges")
    if len(shape) != 2 or shape[1] != 2 or dtype.kind not in "iu":
        raise file.misshapen("edges", "integer [E, 2]", _remedy(dtype, shape))
    edges = file.integers("edges", "[E, 2]").astype(np.int64, copy=False)
    if edges.size and not (edges.min() >= 0 and edges.max() < num_nodes):
        raise file.error(
            f"edges holds node ids from {edges.min()} to {edges.max()}, but there are {num_nodes} nodes; "
            + _renumbering(edges.min(), edges.max(), num_nodes)
        )
    if shape == (2, 2) and (edges != edges.T).any():
        (a, b), (c, d) = edges.tolist()
        logger.warning(
            "%s: edges is [2, 2] and read as a row an edge: %d-%d and %d-%d; for a column an edge save edges.T",
            file.path,
            *(a, b, c, d),
        )
    return edges[:, 0], edges[:, 1]


def _remedy(dtype: np.dtype, shape: tuple[int, ...]) -> str:
    if len(shape) == 2 and shape[0] == 2 and shape[1] != 2 and dtype.kind in "iu":
        return "transpose it, edges.T"
    if len(shape) == 2 and shape[1] == 3:
        return "edges have neither weights nor types in Betty; save edges[:, :2]"
    if dtype.kind in "US":
        return _RENUMBER
    if dtype.kind == "f":
        return "save edges.astype(int)"
    return ""


_RENUMBER = (
    "nodes are the rows of the features, counted from 0: renumber names and ids with gaps, by "
    "numpy.searchsorted(ids, edges) with the ascending ids of all nodes"
)


def _renumbering(lowest: int, highest: int, num_nodes: int) -> str:
    return "save edges - 1, to count from 0" if lowest >= 1 and highest == num_nodes else _RENUMBER


def _from_adjacency(file: NpzFile, num_nodes: int) -> tuple[NDArray[np.integer], NDArray[np.integer]]:
    if "adj_shape" in file and read_shape(file, "adj_shape") != (num_nodes, num_nodes):
        raise file.error(f"adj_shape is {list(read_shape(file, 'adj_shape'))}, but there are {num_nodes} nodes")
    rows = read_csr(file, "adj", _ones(file), (num_nodes, num_nodes))
    return np.repeat(np.arange(num_nodes), np.diff(rows.indptr)), rows.indices


def _ones(file: NpzFile) -> NDArray | None:
    """``adj_data``, if it is there: nothing but ones."""
    if "adj_data" not in file:
        return None
    data = file.read("adj_data")
    if data.dtype.kind not in "biuf" or not (data == 1).all():
        raise file.error(
            "adj_data holds weights, which edges do not have in Betty; leave adj_data out, and all edges count the same"
        )
    return data


def is_directed(file: NpzFile) -> bool:
    """What the key ``directed`` says; no where there is none.

    Raises:
        BettyError: it is no truth value.
    """
    if DIRECTED not in file:
        return False
    value = file.read(DIRECTED)
    if value.size != 1 or value.dtype.kind not in "biu" or value.item() not in (0, 1):
        raise file.misshapen(DIRECTED, "a single bool", "save it as directed=True or directed=False")
    return bool(value.item())


def num_nodes_of_edges(file: NpzFile) -> int:
    """How many nodes the edges speak of, as far as that is clear: 0 where it is not."""
    if "edges" not in file:
        return file.form("adj_indptr")[1][0] - 1 if "adj_indptr" in file else 0
    dtype, shape = file.form("edges")
    return int(file.read("edges").max(initial=-1)) + 1 if dtype.kind in "iu" and len(shape) == 2 else 0
