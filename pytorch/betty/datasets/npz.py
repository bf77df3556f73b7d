"""Your own graph: a NumPy ``.npz`` file.

``betty.load_dataset("path/to/my-graph.npz")`` or ``--dataset path/to/my-graph.npz`` takes any file that
``numpy.savez`` or ``numpy.savez_compressed`` wrote with these arrays, for N nodes numbered from 0:

==================  ===================================================================================================
edges, one of       ``edges``: integer ``[E, 2]``, source and destination of each edge

                    ``adj_indptr`` integer ``[N + 1]`` and ``adj_indices`` integer ``[E]``: an adjacency matrix in
                    SciPy's CSR form, rows sources, columns destinations; ``adj_shape`` and ``adj_data``, which holds
                    ones only, may be there
features, one of    ``node_features``: numbers ``[N, F]``

                    ``attr_data``, ``attr_indices``, ``attr_indptr``, ``attr_shape``: a sparse matrix ``[N, F]`` in
                    SciPy's CSR form; it is made dense
labels, one of      ``node_labels`` or ``labels``: integer ``[N]``, classes from 0, or -1 for a node without a label
split               ``train_mask``, ``val_mask``, ``test_mask``: bool, or 0 and 1, ``[N]``; ``[S, N]`` or ``[N, S]`` for
                    S splits to choose from

                    ``train_idx``, ``val_idx``, ``test_idx``: integer, the ids of the nodes
direction           ``directed``: a single bool
==================  ===================================================================================================

The forms may be mixed, but each thing is given once. Features are kept as float32.

**Direction.** Edges are undirected: one direction is enough, reverse edges are added, duplicates and self-loops
removed. Where ``directed`` is true, or ``load_dataset(…, directed=True)`` or ``--directed`` says so, every edge is kept
as given, self-loops and duplicates too, and leads from its source to its destination: a node takes in what the
sources of its in-edges hold, in training and in evaluation. What the call or the flag says goes before the file.

**Split.** The other names in use are known as well: ``val``, ``valid``, ``validation`` or ``dev``; ``mask`` or
``masks``; ``idx``, ``ids``, ``index``, ``nodes`` and the like; in either order (``idx_train``). Validation and test
part may be missing; they are empty then. Without a split, nodes with a label are divided at random, by seed, into 60 %
for training, 20 % for validation and 20 % for testing. No node may be in two parts.

**Classes.** There are as many as the largest label says: at most as many as nodes, or 1000.

**Other arrays.** Those that belong to edges (``edge_weights``, ``edge_attr``, …) are refused, since edges have neither
weights nor features nor types in Betty. Names and texts of nodes, classes and features are of no use, and left alone
(``*_names``, ``*_texts``, ``attr_*``, ``idx_to_*``, ``metadata``); any other array is named in a warning.

A file made by hand::

    import numpy as np

    np.savez("my-graph.npz", edges=edges, node_features=features, node_labels=labels)

Nothing is unpickled: arrays of Python objects are refused. Features are read by chunks: beside them no second copy is
ever in memory.
"""

import logging
from pathlib import Path

from torch import Tensor

from betty.datasets.dataset import NO_LABEL, Dataset, checked
from betty.datasets.graph import build_graph, directed_csc, undirected_csc
from betty.datasets.npz_edges import is_directed, num_nodes_of_edges, read_edges
from betty.datasets.npz_features import features_key, features_shape, read_features
from betty.datasets.npz_file import NpzFile, open_npz
from betty.datasets.npz_keys import check_keys
from betty.datasets.npz_labels import labels_key, read_labels, warn_of_unused_classes
from betty.datasets.npz_split import read_split
from betty.datasets.splits import random_split, random_split_origin

logger = logging.getLogger(__name__)


def load_npz(path: Path, seed: int, split: int, directed: bool | None = None) -> Dataset:
    """Load a graph from a file of the form that this module describes.

    Args:
        path: the file.
        seed: of the random split where the file has none.
        split: which one, where the file has several splits.
        directed: whether edges keep their directions; as the file says if not given.

    Raises:
        BettyError: the file is missing, damaged, not of that form, or holds what Betty has no use for.
    """
    file = open_npz(path)
    labels = read_labels(file)
    num_nodes = labels.numel()
    _require_same_nodes(file, num_nodes)
    check_keys(file)
    csc = _read_csc(file, num_nodes, is_directed(file) if directed is None else directed)
    parts = read_split(file, num_nodes, split)
    if parts is None:
        origin = random_split_origin(seed)
        logger.info("%s: the file has no split; nodes are divided %s", path, origin)
        parts = random_split(labels, seed), origin
    num_classes = max(int(labels.max()) + 1, 1)
    dataset = Dataset(
        name=path.stem,
        graph=build_graph(*csc),
        features=read_features(file),
        labels=labels,
        num_classes=num_classes,
        split_origin=parts[1],
        **parts[0]._asdict(),
    )
    dataset = checked(dataset, path)
    warn_of_unused_classes(file, labels, num_classes)
    return dataset


def _require_same_nodes(file: NpzFile, num_nodes: int) -> None:
    """Refuse features of more or fewer nodes than there are labels, and say which of the two is at fault."""
    num_rows, num_columns = features_shape(file, num_nodes)
    if num_rows == num_nodes:
        return
    found = f"{labels_key(file)} has {num_nodes} labels, but {features_key(file)} {num_rows} rows"
    if num_nodes < num_nodes_of_edges(file) <= num_rows:
        raise file.error(
            f"{found}, and edges name more nodes than there are labels; give every node a label, {NO_LABEL} where it "
            "has none"
        )
    raise file.error(f"{found}; {'save node_features.T' if num_columns == num_nodes else 'give every node both'}")


def _read_csc(file: NpzFile, num_nodes: int, directed: bool) -> tuple[Tensor, Tensor]:
    sources, destinations = read_edges(file, num_nodes)
    if directed:
        logger.info("%s: edges keep their directions, from source to destination", file.path)
        return directed_csc(sources, destinations, num_nodes)
    return undirected_csc(sources, destinations, num_nodes)
