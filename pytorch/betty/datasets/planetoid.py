"""The files of Planetoid, in which ``cora``, ``citeseer`` and ``pubmed`` are published (Yang et al., 2016).

There are eight, ``ind.citeseer.x`` and so on: features and one-hot labels of the nodes to train on (``x``, ``y``), of
these and all others but the nodes to test on (``allx``, ``ally``), and of the nodes to test on (``tx``, ``ty``), whose
ids are in ``test.index``; and in ``graph`` the neighbours of every node. All but ``test.index`` are Python pickles:
their authors published them so. They are unpickled with nothing allowed but arrays, SciPy's CSR matrices and
dictionaries of lists.
"""

from __future__ import annotations

import pickle
import zipfile
from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import IO, Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from scipy import sparse
from torch import Tensor

from betty.datasets.damage import blamed_on
from betty.datasets.splits import Split
from betty.errors import BettyError

PICKLES = ("x", "y", "tx", "ty", "allx", "ally", "graph")
TEST_INDEX = "test.index"
FILES = (*PICKLES, TEST_INDEX)

NUM_VAL = 500
"""Nodes to validate on: those after the ones to train on."""

OpenFile = Callable[[str], IO[bytes]]
"""Opens one of :data:`FILES`."""


@dataclass(frozen=True, eq=False)
class PublishedGraph:
    """What the raw files of a data set hold.

    Args:
        first_ends: int64 ``[num_edges]``; an edge may be there in both directions.
        second_ends: int64 ``[num_edges]``.
        features: float32 ``[num_nodes, num_features]``, those of Planetoid with rows that sum to 1, or are zero.
        labels: int64 ``[num_nodes]``; 0 of nodes that Planetoid's files say nothing of, which are in no split.
        split: the public one.
        num_classes: number of classes.
    """

    first_ends: NDArray[np.int64]
    second_ends: NDArray[np.int64]
    features: NDArray[np.float32]
    labels: Tensor
    split: Split
    num_classes: int


def folder_with_files(name: str, folders: Iterable[Path]) -> Path | None:
    """The first of some folders that has all of the files; none where no folder has any.

    Args:
        name: in the files' names, as ``citeseer`` in ``ind.citeseer.x``.
        folders: which may be missing.

    Raises:
        BettyError: a folder has some of the files, and none has all.
    """
    missing = {folder: [file for file in FILES if not (folder / f"ind.{name}.{file}").is_file()] for folder in folders}
    for folder, files in missing.items():
        if not files:
            return folder
    for folder, files in missing.items():
        if len(files) < len(FILES):
            lacking = ", ".join(f"ind.{name}.{file}" for file in files)
            raise BettyError(f"{folder} has some files of {name}, but lacks {lacking}; put all {len(FILES)} there")
    return None


def read_folder(name: str, folder: Path) -> PublishedGraph:
    """Read the files of a folder.

    Raises:
        BettyError: one is damaged, or holds something else.
    """
    advice = "put whole files there, as Planetoid's authors or PyTorch Geometric have them"
    return _read(lambda file: open(folder / f"ind.{name}.{file}", "rb"), f"{folder}/ind.{name}", advice)


def read_archive(name: str, archive: Path) -> PublishedGraph:
    """Read the files in a zip archive.

    Raises:
        BettyError: it is damaged, or holds something else.
    """
    advice = "delete it and try again"
    with blamed_on(archive, advice), zipfile.ZipFile(archive) as files:
        return _read(lambda file: files.open(f"ind.{name}.{file}"), f"{archive}: ind.{name}", advice)


def _read(open_file: OpenFile, what: str, advice: str) -> PublishedGraph:
    with blamed_on(f"{what}.*", advice):
        x, y, tx, ty, allx, ally, neighbours = (_unpickle(open_file, file) for file in PICKLES)
        with open_file(TEST_INDEX) as lines:
            test_ids = np.loadtxt(lines, dtype=np.int64, ndmin=1)
        num_train, num_known = len(y), len(ally)
        num_nodes = max(num_known, int(test_ids.max()) + 1)
        _require_following(test_ids, num_known)
        _require_shapes(x.shape[1], {"allx": allx, "tx": tx}, {"allx": num_known, "tx": test_ids.size})
        _require_shapes(y.shape[1], {"ally": ally, "ty": ty}, {"ally": num_known, "ty": test_ids.size})
        features = np.zeros((num_nodes, x.shape[1]), dtype=np.float32)
        features[:num_known] = _csr(allx).toarray()
        features[test_ids] = _csr(tx).toarray()
        sums = features.sum(1, keepdims=True)
        features /= np.where(sums == 0, 1, sums)
        one_hot = np.zeros((num_nodes, y.shape[1]), dtype=np.int64)
        one_hot[:num_known] = ally
        one_hot[test_ids] = ty
        first_ends, second_ends = _ends(neighbours, num_nodes)
        train_ids, val_ids = np.split(np.arange(min(num_train + NUM_VAL, num_nodes)), [num_train])
        return PublishedGraph(
            first_ends,
            second_ends,
            features,
            torch.from_numpy(one_hot.argmax(1)),
            Split(*(torch.from_numpy(ids) for ids in (train_ids, val_ids, np.sort(test_ids)))),
            num_classes=y.shape[1],
        )


def _require_following(test_ids: NDArray[np.int64], num_known: int) -> None:
    """Ids of the nodes to test on follow those of the others, with few gaps: CiteSeer has 15."""
    low, high = test_ids.min(), test_ids.max()
    if low < num_known or high >= num_known + 2 * test_ids.size:
        raise ValueError(f"{TEST_INDEX} has ids from {low} to {high}, which do not follow the {num_known} rows of ally")


def _require_shapes(num_columns: int, matrices: dict[str, Any], num_rows: dict[str, int]) -> None:
    for file, matrix in matrices.items():
        if matrix.shape != (num_rows[file], num_columns):
            raise ValueError(f"{file} is {list(matrix.shape)} and not {[num_rows[file], num_columns]}")


def _csr(matrix: sparse.csr_matrix) -> sparse.csr_matrix:
    """The matrix made anew of its arrays, with every index in range."""
    rows = sparse.csr_matrix((matrix.data, matrix.indices, matrix.indptr), shape=matrix.shape, dtype=np.float32)
    rows.check_format(full_check=True)
    return rows


def _ends(neighbours: dict[int, list[int]], num_nodes: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    nodes = np.fromiter(neighbours, dtype=np.int64, count=len(neighbours))
    degrees = np.fromiter(map(len, neighbours.values()), dtype=np.int64, count=len(neighbours))
    ends = np.repeat(nodes, degrees), np.fromiter(chain.from_iterable(neighbours.values()), dtype=np.int64)
    for ids in ends:
        if ids.size and not (ids.min() >= 0 and ids.max() < num_nodes):
            raise ValueError(f"graph has node ids from {ids.min()} to {ids.max()} for {num_nodes} nodes")
    return ends


def _unpickle(open_file: OpenFile, file: str) -> Any:
    with open_file(file) as content:
        return _Unpickler(content, encoding="latin1").load()


def _as_bytes(text: str, encoding: str) -> bytes:
    """How Python 3 writes bytes for Python 2, in place of ``codecs.encode`` with whatever codec a file names."""
    if encoding != "latin1":
        raise pickle.UnpicklingError(f"it asks for the codec {encoding}")
    return text.encode("latin1")


class _Unpickler(pickle.Unpickler):
    """Makes arrays, CSR matrices and dictionaries of lists, and refuses everything else."""

    MADE: ClassVar = {
        ("numpy", "ndarray"): np.ndarray,
        ("numpy", "dtype"): np.dtype,
        ("numpy.core.multiarray", "_reconstruct"): np.empty(0).__reduce__()[0],
        ("numpy._core.multiarray", "_reconstruct"): np.empty(0).__reduce__()[0],
        ("scipy.sparse.csr", "csr_matrix"): sparse.csr_matrix,
        ("scipy.sparse._csr", "csr_matrix"): sparse.csr_matrix,
        ("collections", "defaultdict"): defaultdict,
        ("__builtin__", "list"): list,
        ("_codecs", "encode"): _as_bytes,
    }

    def find_class(self, module: str, name: str) -> Any:
        try:
            return self.MADE[module, name]
        except KeyError:
            raise pickle.UnpicklingError(f"it asks for {module}.{name}, which no file of Planetoid does") from None
