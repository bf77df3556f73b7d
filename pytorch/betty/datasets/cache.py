"""Data sets kept in a folder, whole or not at all, in a form that loads by memory-mapping.

A folder holds ``features.npy`` (float32), ``graph.safetensors`` (CSC, labels and splits, int64) and
``dataset.json``, which is written last: a folder without it is not there yet.
"""

import logging
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors.torch import load_file, save_file
from torch import Tensor

from betty.datasets.damage import one_line
from betty.datasets.dataset import Dataset, checked
from betty.datasets.graph import build_graph, require_csc
from betty.datasets.splits import Split
from betty.errors import BettyError
from betty.files import locked, read_json, whole_file, write_json

logger = logging.getLogger(__name__)

FORMAT_VERSION = 1
MANIFEST, FEATURES, GRAPH = "dataset.json", "features.npy", "graph.safetensors"
TENSORS = {"indptr", "indices", "labels", *Split._fields}


class _FlawError(BettyError):
    """What a folder holds is not the data set that is asked for; making it again mends that."""


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
    # Without the lock at first, so that a data root that can only be read will do. Flaws are told of under the lock.
    with suppress(_FlawError):
        return _read(folder, made_from, name, evaluator_name)
    try:
        with locked(folder):
            dataset = read_cache(folder, made_from, name, evaluator_name)
            if dataset is None:
                make()
                dataset = _read(folder, made_from, name, evaluator_name)
            return dataset
    except OSError as error:
        raise BettyError(
            f"cannot write to {folder} ({one_line(error)}); choose another data root, or make room"
        ) from error


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
        folder: made if missing; what it holds of an older data set is replaced.
        made_from: whatever decides what is in it, in JSON's types; :func:`read_cache` compares it.
        csc: ``indptr`` int64 ``[num_nodes + 1]`` and ``indices`` int64 ``[num_edges]``.
        labels: int64 ``[num_nodes]``.
        split: node ids.
        num_classes: number of classes.
        feature_chunks: ``[any, num_features]`` each, ``num_nodes`` rows in all; one is in memory at a time.

    Raises:
        BettyError: there are fewer or more rows of features than nodes.
    """
    # Without it, a kill half-way would leave an old manifest beside new files.
    (folder / MANIFEST).unlink(missing_ok=True)
    with whole_file(folder / FEATURES) as partial:
        _write_features(partial, labels.numel(), feature_chunks)
    indptr, indices = csc
    with whole_file(folder / GRAPH) as partial:
        save_file({"indptr": indptr, "indices": indices, "labels": labels, **split._asdict()}, partial)
        # safetensors lets only the owner read it, but data roots are shared.
        partial.chmod(0o644)
    manifest = {
        "format_version": FORMAT_VERSION,
        "made_from": dict(made_from),
        "num_classes": num_classes,
        "bytes": {name: (folder / name).stat().st_size for name in (FEATURES, GRAPH)},
    }
    write_json(folder / MANIFEST, manifest)


def _write_features(path: Path, num_rows: int, chunks: Iterable[NDArray[np.float32]]) -> None:
    chunks = iter(chunks)
    first = next(chunks)
    header = {"descr": "<f4", "fortran_order": False, "shape": (num_rows, first.shape[1])}
    written = 0
    with open(path, "wb") as file:
        np.lib.format.write_array_header_1_0(file, header)
        for chunk in chain([first], chunks):
            file.write(np.ascontiguousarray(chunk, dtype="<f4"))
            written += len(chunk)
    if written != num_rows:
        raise BettyError(f"{path.parent}: there are {written} rows of node features for {num_rows} nodes")


def read_cache(
    folder: Path, made_from: Mapping[str, Any], name: str, evaluator_name: str | None = None
) -> Dataset | None:
    """Read a data set by memory-mapping its files.

    Returns:
        None where there is none, or one of an older version, of other flags or damaged, which is said in the log;
        it has to be made (again) then.

    Raises:
        BettyError: it was written by a newer Betty.
    """
    if not (folder / MANIFEST).exists():
        return None
    try:
        return _read(folder, made_from, name, evaluator_name)
    except _FlawError as flaw:
        logger.info("%s; it is made again", flaw)
        return None


def _read(folder: Path, made_from: Mapping[str, Any], name: str, evaluator_name: str | None) -> Dataset:
    num_classes = _read_manifest(folder, made_from)
    try:
        return checked(_map_dataset(folder, num_classes, name, evaluator_name), name)
    except MemoryError:
        raise
    # Damaged files end in exceptions of safetensors, NumPy, PyTorch and of the checks.
    except Exception as error:
        raise _FlawError(f"{folder} does not load ({one_line(error)})") from error


def _read_manifest(folder: Path, made_from: Mapping[str, Any]) -> int:
    """The number of classes, once the manifest fits what is asked for and the files beside it."""
    try:
        manifest = read_json(folder / MANIFEST)
    except (ValueError, RecursionError) as error:
        raise _FlawError(f"{folder / MANIFEST} cannot be read as JSON") from error
    version = manifest.get("format_version") if isinstance(manifest, dict) else None
    if not isinstance(version, int):
        raise _FlawError(f"{folder / MANIFEST} does not tell its format")
    if version > FORMAT_VERSION:
        raise BettyError(
            f"{folder / MANIFEST} has format {version}, newer than this Betty's {FORMAT_VERSION}; "
            "update Betty, or delete the folder to make it again"
        )
    if version < FORMAT_VERSION or manifest.get("made_from") != dict(made_from):
        raise _FlawError(f"{folder} is of another version")
    num_classes, sizes = manifest.get("num_classes"), manifest.get("bytes")
    if not isinstance(num_classes, int) or not isinstance(sizes, dict):
        raise _FlawError(f"{folder / MANIFEST} does not tell the number of classes and the sizes of the files")
    for name in (FEATURES, GRAPH):
        path = folder / name
        if not path.exists() or path.stat().st_size != sizes.get(name):
            raise _FlawError(f"{folder} lacks {name} or has it cut")
    return num_classes


def _map_dataset(folder: Path, num_classes: int, name: str, evaluator_name: str | None) -> Dataset:
    tensors = load_file(folder / GRAPH)
    if set(tensors) != TENSORS:
        raise ValueError(f"{GRAPH} holds {', '.join(sorted(tensors))}, not {', '.join(sorted(TENSORS))}")
    for key in TENSORS:
        if tensors[key].dtype != torch.int64 or tensors[key].dim() != 1:
            raise ValueError(f"{key} in {GRAPH} is not int64 in one dimension")
    require_csc(tensors["indptr"], tensors["indices"])
    # Copy on write: PyTorch has no read-only tensors, and nobody's mistake may reach the file.
    features = np.load(folder / FEATURES, mmap_mode="c", allow_pickle=False)
    if features.dtype != np.float32 or features.ndim != 2:
        raise ValueError(f"{FEATURES} is {features.dtype} {list(features.shape)}, not float32 [N, F]")
    return Dataset(
        name=name,
        graph=build_graph(tensors.pop("indptr"), tensors.pop("indices")),
        features=torch.from_numpy(features),
        num_classes=num_classes,
        evaluator_name=evaluator_name,
        **tensors,
    )
