"""Data sets kept in a folder, whole or not at all, in a form that loads by memory-mapping.

The folder holds one file, ``dataset.safetensors``, in Betty's envelope (:mod:`betty.envelope`): ``features`` (float32),
the graph in CSC form, labels and splits (int64). Labels and splits are checked when it is loaded, graph and features
in the background, until they are first read. Whatever turns out to be damaged is made again, with one notice.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from betty.background import in_background
from betty.datasets.damage import one_line
from betty.datasets.dataset import Dataset, Pending, checked_split
from betty.datasets.graph import build_graph, require_csc
from betty.datasets.splits import Split
from betty.dgl_compat import dgl
from betty.envelope import DamagedError, OtherOriginError, Rows, SealedTensors, write_sealed
from betty.errors import BettyError
from betty.files import locked

logger = logging.getLogger(__name__)

FORMAT_VERSION = 2
FILE = "dataset.safetensors"
DIMENSIONS = {"features": 2, "indptr": 1, "indices": 1, "labels": 1, **dict.fromkeys(Split._fields, 1)}

Part = TypeVar("Part")


def write_cache(
    folder: Path,
    made_from: Mapping[str, Any],
    csc: tuple[Tensor, Tensor],
    labels: Tensor,
    split: Split,
    num_classes: int,
    feature_chunks: Iterable[NDArray[np.float32]],
) -> None:
    """Write a data set.

    Args:
        folder: made if missing; an older data set in it is replaced.
        made_from: whatever decides what is in it, in JSON's types; :func:`load_or_make` compares it.
        csc: ``indptr`` int64 ``[num_nodes + 1]`` and ``indices`` int64 ``[num_edges]``.
        labels: int64 ``[num_nodes]``.
        split: node ids.
        num_classes: number of classes.
        feature_chunks: ``[any, num_features]`` each, ``num_nodes`` rows in all; one is in memory at a time.

    Raises:
        BettyError: there are fewer or more rows of features than nodes.
    """
    indptr, indices = csc
    tensors = {
        "indptr": indptr,
        "indices": indices,
        "labels": labels,
        **split._asdict(),
        "features": Rows(labels.numel(), feature_chunks),
    }
    write_sealed(folder / FILE, tensors, _origin(made_from), {"num_classes": num_classes})


def _origin(made_from: Mapping[str, Any]) -> dict[str, Any]:
    return {"format_version": FORMAT_VERSION, **made_from}


def load_or_make(
    folder: Path,
    made_from: Mapping[str, Any],
    make: Callable[[], None],
    name: str,
    evaluator_name: str | None = None,
) -> Dataset:
    """Read the data set of a folder; make it first where it is not there, of another version or damaged.

    A process that finds another one making it waits, and reads what that one made.

    Args:
        folder: of the data set.
        made_from: as given to :func:`write_cache`.
        make: calls :func:`write_cache`. No other process runs it at the same time for the same folder.
        name: of the data set.
        evaluator_name: of OGB's ``Evaluator``, where there is one.

    Raises:
        BettyError: it was written by a newer Betty, cannot be made, or the folder cannot be written to.
    """
    cache = _Cache(folder, _origin(made_from), make)
    # Without the lock at first, so that a data root that can only be read will do. Flaws are told of under the lock.
    opened = None
    with suppress(_FlawError):
        opened = cache.opened()
    opened = opened or cache.mended()
    return Dataset(
        name=name,
        graph=Pending(in_background(lambda: cache.intact(opened, _graph)), (opened.labels.numel(),) * 2),
        features=Pending(
            in_background(lambda: cache.intact(opened, _features)), opened.file.unchecked["features"].shape
        ),
        labels=opened.labels,
        num_classes=opened.num_classes,
        evaluator_name=evaluator_name,
        digests=opened.file.checksums,
        **opened.split._asdict(),
    )


class _FlawError(BettyError):
    """What a folder holds is not the data set that is asked for; making it again mends that."""


class _MissingError(_FlawError):
    """It holds none."""


@dataclass(frozen=True, eq=False)
class _Opened:
    """A data set's file, of which graph and features are still to be checked."""

    file: SealedTensors
    labels: Tensor
    split: Split
    num_classes: int


@dataclass(frozen=True, eq=False)
class _Cache:
    """The file of a data set, and how to make it."""

    folder: Path
    origin: Mapping[str, Any]
    make: Callable[[], None]

    def opened(self) -> _Opened:
        """The file as it is.

        Raises:
            _FlawError: it is to be made (again).
            BettyError: it was written by a newer Betty.
        """
        path = self.folder / FILE
        try:
            if not path.exists():
                raise _MissingError(f"{path} does not exist")
            return _open(path, self.origin)
        except OtherOriginError as error:
            version = error.found.get("format_version")
            if isinstance(version, int) and version > FORMAT_VERSION:
                raise BettyError(
                    f"{path} has format {version}, newer than this Betty's {FORMAT_VERSION}; update Betty, or delete "
                    "the file to make it again"
                ) from None
            raise _FlawError(f"{path} is of another version") from None
        except OSError as error:
            raise _FlawError(f"{path} cannot be read ({one_line(error)})") from error
        except DamagedError as error:
            raise _FlawError(str(error)) from error

    def mended(self) -> _Opened:
        """The file as it should be: made again, and that said, where it is not.

        Raises:
            BettyError: it cannot be made.
        """
        try:
            with locked(self.folder):
                try:
                    opened = self.opened()
                    _graph(opened.file)
                    _features(opened.file)
                except _MissingError:
                    self.make()
                except (_FlawError, DamagedError) as flaw:
                    logger.warning("%s; it is made again", flaw)
                    self.make()
                else:
                    return opened
                return self.opened()
        except OSError as error:
            raise BettyError(
                f"cannot write to {self.folder} ({one_line(error)}); choose another data root, or make room"
            ) from error

    def intact(self, opened: _Opened, part: Callable[[SealedTensors], Part]) -> Part:
        """A part of the data set, from the opened file or, where that is damaged, from a mended one."""
        try:
            return part(opened.file)
        except DamagedError:
            mended = self.mended()
        if mended.file.checksums != opened.file.checksums:
            raise BettyError(f"{mended.file.path} was made again, and is another data set than before; start again")
        return part(mended.file)


def _open(path: Path, origin: Mapping[str, Any]) -> _Opened:
    file = SealedTensors(path, origin)
    dimensions = {name: tensor.dim() for name, tensor in file.unchecked.items()}
    dtypes = {name: torch.float32 if name == "features" else torch.int64 for name in DIMENSIONS}
    if dimensions != DIMENSIONS or dtypes != {name: tensor.dtype for name, tensor in file.unchecked.items()}:
        raise DamagedError(f"{path} holds other tensors than a data set")
    num_classes = file.facts(dict[str, int]).get("num_classes", 0)
    labels, split = file["labels"], Split(*(file[name] for name in Split._fields))
    rows = {file.unchecked["indptr"].numel() - 1, file.unchecked["features"].shape[0], labels.numel()}
    try:
        if len(rows) > 1:
            raise BettyError("graph, features and labels are of different numbers of nodes")
        return _Opened(file, labels, checked_split(split, labels, num_classes, path), num_classes)
    except BettyError as error:
        raise DamagedError(f"{path} makes no data set ({error})") from error


def _graph(file: SealedTensors) -> dgl.DGLGraph:
    indptr, indices = file["indptr"], file["indices"]
    try:
        require_csc(indptr, indices)
    except ValueError as error:
        raise DamagedError(f"{file.path} makes no data set ({error})") from error
    return build_graph(indptr, indices)


def _features(file: SealedTensors) -> Tensor:
    return file["features"]
