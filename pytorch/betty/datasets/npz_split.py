"""The split that a user's ``.npz`` file brings along: masks or node ids, under any of the names in use."""

import logging

import numpy as np
import torch
from numpy.typing import NDArray

from betty.datasets.key_words import words_of
from betty.datasets.npz_file import NpzFile, named
from betty.datasets.splits import Split

logger = logging.getLogger(__name__)

PARTS = {"train": "train", "training": "train", "test": "test", "testing": "test"} | dict.fromkeys(
    ("val", "valid", "validation", "dev"), "val"
)
MASKS = {"mask", "masks"}
IDS = {"id", "ids", "idx", "idxs", "index", "indexes", "indices", "nid", "nids", "nodes"}
SPLITS = {"split", "splits"}
OTHERS = {"node"}

NAMES = "train_mask, val_mask and test_mask (bool [N]), or train_idx, val_idx and test_idx (node ids)"


def is_of_a_split(key: str) -> bool:
    """Whether a key names a split or a part of one, as ``train_mask``, ``idx_val`` and ``split`` do."""
    return not {*PARTS, *SPLITS}.isdisjoint(words_of(key))


def read_split(file: NpzFile, num_nodes: int, row: int) -> tuple[Split, str] | None:
    """The split of the file, and a line that tells where in the file it was.

    Args:
        file: any.
        num_nodes: of the graph.
        row: which one, where the file has several splits.

    Returns:
        None where the file has no split. Ids may be of nodes without a label. A part that the file lacks, training
        aside, is empty, which is warned of.

    Raises:
        BettyError: it is not clear what the split is, or there is no such row.
    """
    keys = _keys_of_parts(file)
    if not keys:
        if row != 0:
            raise file.error(f"there is no split {row}: the file has no masks, and gets one random split")
        return None
    if "train" not in keys:
        raise file.error(f"{named([*keys.values()])}: a split without nodes to train on; add them as train_mask")
    missing = [part for part in ("val", "test") if part not in keys]
    if missing:
        logger.warning("%s: the split has no %s part; no node is in it", file.path, " and no ".join(missing))
    splits = {part: _read_part(file, key, num_nodes) for part, key in keys.items()}
    count = _num_splits(file, keys, splits)
    if not 0 <= row < count:
        raise file.error(f"there is no split {row}: {keys['train']} has {count}, counted from 0")
    parts = {part: rows[row if len(rows) > 1 else 0] for part, rows in splits.items()}
    origin = f"{named([*keys.values()])} of the file" + (f", split {row} of {count}" if count > 1 else "")
    nobody = np.empty(0, dtype=np.int64)
    return Split(*(torch.from_numpy(parts.get(part, nobody)) for part in ("train", "val", "test"))), origin


def _keys_of_parts(file: NpzFile) -> dict[str, str]:
    """The key of every part that the file has: ``train``, ``val``, ``test``, in this order."""
    keys: dict[str, str] = {}
    for key in filter(is_of_a_split, file.keys):
        words = words_of(key)
        parts = [PARTS[word] for word in words if word in PARTS]
        if len(parts) != 1 or not {*words} <= {*PARTS, *MASKS, *IDS, *SPLITS, *OTHERS}:
            raise file.error(f"{named([key])}: it is not clear which part of a split that is; name the parts {NAMES}")
        if parts[0] in keys:
            raise file.error(f"{named([keys[parts[0]], key])} are both the {parts[0]} split; leave out one of them")
        keys[parts[0]] = key
    return {part: keys[part] for part in ("train", "val", "test") if part in keys}


def _num_splits(file: NpzFile, keys: dict[str, str], splits: dict[str, list[NDArray]]) -> int:
    """How many splits there are; a part that is given once is that of all."""
    counts = {keys[part]: len(rows) for part, rows in splits.items() if len(rows) > 1}
    if len({*counts.values()}) > 1:
        found = " and ".join(f"{count} of {key}" for key, count in counts.items())
        raise file.error(f"there are {found}; give each split all of its parts")
    return max(counts.values(), default=1)


def _read_part(file: NpzFile, key: str, num_nodes: int) -> list[NDArray[np.int64]]:
    """The nodes of a part, ascending, in each split."""
    array = file.read(key)
    words = {*words_of(key)}
    if array.size == 0 and array.ndim == 1 and words.isdisjoint(MASKS):
        return [np.empty(0, dtype=np.int64)]
    if array.dtype.kind not in "biu":
        raise file.misshapen(key, "bool or integer", f"name the parts {NAMES}")
    zeros_and_ones = array.dtype == bool or bool(((array == 0) | (array == 1)).all())
    if array.dtype == bool or not words.isdisjoint(MASKS):
        if not zeros_and_ones:
            worst = array[(array != 0) & (array != 1)][0]
            raise file.error(f"{key} holds {worst}, and a mask 0 and 1 only; node ids are called {_as_ids(key)}")
        return [np.flatnonzero(mask) for mask in _masks(file, key, array, num_nodes)]
    if words.isdisjoint(IDS) and zeros_and_ones and array.shape == (num_nodes,):
        raise file.error(f"{key} can be a mask or node ids; make it bool, or name the parts {NAMES}")
    return [_ids(file, key, array, num_nodes)]


def _as_ids(key: str) -> str:
    return f"{next(word for word in words_of(key) if word in PARTS)}_idx"


def _masks(file: NpzFile, key: str, array: NDArray, num_nodes: int) -> NDArray:
    """The masks as rows, which may be columns in the file."""
    wanted = f"bool or 0 and 1, [N], [S, N] or [N, S], with N = {num_nodes} nodes"
    if array.ndim not in (1, 2) or num_nodes not in array.shape:
        raise file.misshapen(key, wanted)
    if array.shape == (num_nodes, num_nodes) and num_nodes > 1:
        raise file.misshapen(key, wanted, "with as many splits as nodes, rows and columns cannot be told apart")
    return np.atleast_2d(array if array.shape[-1] == num_nodes else array.T)


def _ids(file: NpzFile, key: str, array: NDArray, num_nodes: int) -> NDArray[np.int64]:
    if array.ndim != 1:
        raise file.misshapen(key, "node ids in one dimension", "several splits are given as masks [S, N]")
    if not (array.min() >= 0 and array.max() < num_nodes):
        raise file.error(
            f"{key} has node ids from {array.min()} to {array.max()}, but the graph has {num_nodes} nodes, counted "
            "from 0"
        )
    ids, counts = np.unique(array.astype(np.int64), return_counts=True)
    if ids.size < array.size:
        raise file.error(
            f"{key} names node {ids[counts > 1][0]} more than once; give ids once each, or a mask as "
            f"{_as_ids(key).removesuffix('_idx')}_mask"
        )
    return ids
