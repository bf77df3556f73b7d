"""Files as people have them: used as they mean them, or refused in one line that names the remedy; none in silence."""

import io
import logging
import pickle
import re
import zipfile

import numpy as np
import pytest
from scipy import sparse

from betty.datasets import csc, load_dataset
from betty.errors import BettyError

NUM_NODES = 10
RANDOM = np.random.default_rng(0)
EDGES = np.array([[0, 1], [1, 2], [2, 0], [3, 3], [4, 5], [4, 5], [9, 0]])
FEATURES = RANDOM.integers(-8, 8, size=(NUM_NODES, 3))
LABELS = np.array([0, 1, 2, 0, 1, 2, 0, 1, -1, 2])
GRAPH = {"edges": EDGES, "node_features": FEATURES, "node_labels": LABELS}
TRAIN, VAL, TEST = [0, 2], [5, 7], [3, 4, 9]


def without(*keys):
    return {key: array for key, array in GRAPH.items() if key not in keys}


def mask(nodes, dtype=bool):
    return np.isin(np.arange(NUM_NODES), nodes).astype(dtype)


def adjacency(weight=1.0):
    matrix = sparse.csr_array((np.full(len(EDGES), weight), EDGES.T), shape=(NUM_NODES, NUM_NODES))
    matrix.data[:] = weight
    return {"adj_indices": matrix.indices, "adj_indptr": matrix.indptr, "adj_data": matrix.data}


def attributes(matrix):
    rows = sparse.csr_array(matrix)
    return {f"attr_{key}": getattr(rows, key) for key in ("data", "indices", "indptr")} | {"attr_shape": rows.shape}


@pytest.fixture
def load(tmp_path):
    def save_and_load(arrays, save=np.savez, **flags):
        save(tmp_path / "mine.npz", **arrays)
        return load_dataset(tmp_path / "mine.npz", **flags)

    return save_and_load


def warnings_of(caplog):
    return [record.message for record in caplog.records if record.levelno >= logging.WARNING]


def neighbours(dataset):
    indptr, indices = csc(dataset.graph)
    return [row.tolist() for row in indices.split(indptr.diff().tolist())]


def undirected(edges):
    """The neighbours of every node, edge by edge."""
    rows = [set() for _ in range(NUM_NODES)]
    for a, b in edges:
        if a != b:
            rows[a].add(b)
            rows[b].add(a)
    return [sorted(row) for row in rows]


def directed(edges):
    """The sources of every node's in-edges, edge by edge."""
    rows = [[] for _ in range(NUM_NODES)]
    for source, destination in edges:
        rows[destination].append(source)
    return [sorted(row) for row in rows]


USED_GRAPHS = {
    "as documented": GRAPH,
    "unsigned 16 bits for edges": GRAPH | {"edges": EDGES.astype(np.uint16)},
    "other byte order": {key: array.astype(array.dtype.newbyteorder(">")) for key, array in GRAPH.items()},
    "columns first": {key: np.asfortranarray(array) for key, array in GRAPH.items()},
    "half precision": GRAPH | {"node_features": FEATURES.astype(np.float16)},
    "double precision": GRAPH | {"node_features": FEATURES.astype(np.float64)},
    "labels of 8 bits": GRAPH | {"node_labels": LABELS.astype(np.int8)},
    "labels under their other name": without("node_labels") | {"labels": LABELS},
    "sparse features": without("node_features") | attributes(FEATURES),
    "sparse adjacency": without("edges") | adjacency(),
    "sparse adjacency with its shape": without("edges") | adjacency() | {"adj_shape": (NUM_NODES, NUM_NODES)},
    "sparse adjacency of bool": without("edges") | adjacency() | {"adj_data": np.ones(len(EDGES) - 1, dtype=bool)},
    "names and texts": GRAPH
    | {
        "node_names": np.array(["a"] * NUM_NODES),
        "class_names": np.array([None, "b"], dtype=object),
        "attr_names": np.array(["x"]),
        "idx_to_attr": np.array({1: 2}, dtype=object),
        "raw_texts": np.array(["t"] * NUM_NODES),
        "metadata": np.array("made by hand"),
    },
    "both directions": GRAPH | {"edges": np.concatenate([EDGES, EDGES[:, ::-1]])},
    "undirected in so many words": GRAPH | {"directed": np.array(False)},
}


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
@pytest.mark.parametrize("arrays", USED_GRAPHS.values(), ids=USED_GRAPHS.keys())
def test_graph_is_that_of_the_file_without_a_warning(load, caplog, arrays, save):
    dataset = load(arrays, save)
    assert neighbours(dataset) == undirected(EDGES.tolist())
    np.testing.assert_array_equal(dataset.features.numpy(), FEATURES.astype(np.float32), strict=True)
    assert dataset.labels.tolist() == LABELS.tolist()
    assert dataset.num_classes == 3
    assert not warnings_of(caplog)


@pytest.mark.parametrize(
    ("arrays", "flags"),
    [
        (GRAPH | {"directed": True}, {}),
        (GRAPH | {"directed": np.array([1], dtype=np.uint8)}, {}),
        (GRAPH, {"directed": True}),
        (GRAPH | {"directed": False}, {"directed": True}),
    ],
)
def test_directed_edges_are_kept_as_given(load, arrays, flags):
    assert neighbours(load(arrays, **flags)) == directed(EDGES.tolist())


def test_directed_rows_of_an_adjacency_matrix_are_sources(load):
    arrays = without("edges") | adjacency() | {"directed": True}
    assert neighbours(load(arrays)) == directed(np.unique(EDGES, axis=0).tolist())


def test_call_goes_before_the_files_direction(load):
    assert neighbours(load(GRAPH | {"directed": True}, directed=False)) == undirected(EDGES.tolist())


MASKS = {"train_mask": mask(TRAIN), "val_mask": mask(VAL), "test_mask": mask(TEST)}
USED_SPLITS = {
    "masks of PyG": MASKS,
    "masks of Platonov et al.": {f"{key}s": array[None] for key, array in MASKS.items()},
    "masks of a column": {key: array[:, None] for key, array in MASKS.items()},
    "masks of 0 and 1": {key: array.astype(np.int64) for key, array in MASKS.items()},
    "masks of 0 and 1 in 8 bits": {key: array.astype(np.uint8) for key, array in MASKS.items()},
    "valid": {"train_mask": mask(TRAIN), "valid_mask": mask(VAL), "test_mask": mask(TEST)},
    "validation, word first": {"mask_train": mask(TRAIN), "mask_validation": mask(VAL), "mask_test": mask(TEST)},
    "camel case": {"trainMask": mask(TRAIN), "valMask": mask(VAL), "testMask": mask(TEST)},
    "ids of OGB": {"train_idx": TRAIN, "valid_idx": VAL, "test_idx": TEST},
    "ids of Kipf and Welling": {"idx_train": TRAIN, "idx_val": VAL, "idx_test": TEST},
    "ids in any order": {"train_ids": TRAIN[::-1], "val_ids": VAL[::-1], "test_ids": TEST[::-1]},
    "ids of nodes": {"train_nodes": TRAIN, "val_nodes": VAL, "test_nodes": np.array(TEST, dtype=np.uint8)},
    "ids of DGL": {"train_nid": TRAIN, "val_nid": VAL, "test_nid": TEST},
    "ids without a word for it": {"train": TRAIN, "val": VAL, "test": TEST},
    "masks without a word for it": {"train": mask(TRAIN), "val": mask(VAL), "test": mask(TEST)},
    "masks beside ids": {"train_mask": mask(TRAIN), "val_idx": VAL, "test_idx": TEST},
}


@pytest.mark.parametrize("split", USED_SPLITS.values(), ids=USED_SPLITS.keys())
def test_split_is_that_of_the_file(load, caplog, split):
    dataset = load(GRAPH | split)
    assert [dataset.train_ids.tolist(), dataset.val_ids.tolist(), dataset.test_ids.tolist()] == [TRAIN, VAL, TEST]
    assert dataset.split_origin == f"{', '.join(split)} of the file"
    assert not warnings_of(caplog)


def test_the_one_node_of_a_training_mask_is_the_one_to_train_on(load, caplog):
    dataset = load(GRAPH | {"train_mask": mask([0])})
    assert [dataset.train_ids.tolist(), dataset.val_ids.tolist(), dataset.test_ids.tolist()] == [[0], [], []]
    assert "the split has no val and no test part; no node is in it" in caplog.text


def test_an_empty_part_is_empty(load):
    assert load(GRAPH | {"train_idx": TRAIN, "val_idx": np.array([]), "test_idx": TEST}).val_ids.numel() == 0


@pytest.mark.parametrize("columns", [False, True])
def test_one_of_several_splits_is_that_of_its_row_or_column(load, columns):
    rows = {key: np.stack([np.roll(array, shift) for shift in range(3)]) for key, array in MASKS.items()}
    rows["test_mask"] = mask([8, 9])
    rows["val_mask"][:, [8, 9]] = False
    arrays = {key: array.T if columns else array for key, array in rows.items()}
    dataset = load(GRAPH | arrays, split=1)
    assert dataset.train_ids.tolist() == [1, 3]
    assert dataset.val_ids.tolist() == [6]
    assert dataset.test_ids.tolist() == [9]
    assert dataset.split_origin == "train_mask, val_mask, test_mask of the file, split 1 of 3"


def test_a_random_split_is_told_of(load, caplog):
    caplog.set_level(logging.INFO)
    dataset = load(GRAPH, seed=3)
    assert dataset.split_origin == "at random by seed 3: 60 % for training, 20 % for validation, 20 % for testing"
    assert f"the file has no split; nodes are divided {dataset.split_origin}" in caplog.text


@pytest.mark.parametrize(
    ("arrays", "warning"),
    [
        (GRAPH | {"colour": LABELS, "size": LABELS}, "colour, size: not used; betty.datasets.npz tells"),
        (GRAPH | {"x\ny": LABELS}, "x y: not used"),
        (GRAPH | {"class_weights": np.ones(3)}, "class_weights: not used"),
        (
            GRAPH | {"edges": np.array([[0, 1], [2, 3]])},
            r"\[2, 2\] and read as a row an edge: 0-1 and 2-3; .* save edges.T",
        ),
        (GRAPH | {"node_labels": LABELS + (LABELS >= 0)}, "no node is of class 0; there are 4 classes"),
        (GRAPH | {"node_features": np.full((NUM_NODES, 2), 3e38)}, r"node features go up to 3e\+38.*scale them"),
    ],
)
def test_what_may_be_meant_otherwise_is_used_with_a_warning(load, caplog, arrays, warning):
    dataset = load(arrays)
    (message,) = warnings_of(caplog)
    assert pytest.approx(dataset.features.numpy()) == arrays["node_features"].astype(np.float32)
    assert dataset.labels.tolist() == arrays["node_labels"].tolist()
    assert neighbours(dataset) == undirected(arrays["edges"].tolist())
    assert "\n" not in message
    assert re.search(warning, message)


def test_two_edges_that_are_the_same_either_way_need_no_warning(load, caplog):
    load(GRAPH | {"edges": np.array([[0, 1], [1, 0]])})
    assert not warnings_of(caplog)


OBJECTS = np.array([[None] * 3] * NUM_NODES)
NAMES = np.array(list("abcdefghij"))
GAPS = GRAPH | {"edges": EDGES * 1000}

REFUSED = {
    "edge weights": (GRAPH | {"edge_weights": np.ones(7)}, "edge_weights: edges have neither .* without it"),
    "edge weight": (GRAPH | {"edge_weight": np.ones(7)}, "edge_weight: edges have neither weights"),
    "edge attributes": (GRAPH | {"edge_attr": np.ones((7, 2))}, "edge_attr: edges have neither weights nor features"),
    "edge types and times": (
        GRAPH | {"edge_type": np.ones(7), "edgeTimes": np.ones(7)},
        "edge_type, edgeTimes: .* without them",
    ),
    "relations": (GRAPH | {"relations": np.ones(7)}, "relations: edges have neither"),
    "weights of an adjacency matrix": (
        without("edges") | adjacency(0.5),
        "adj_data holds weights.*leave adj_data out, and all edges count the same",
    ),
    "weights beside the ends": (GRAPH | {"edges": np.ones((7, 3), int)}, r"\[7, 3\].*save edges\[:, :2\]"),
    "edges in two forms": (GRAPH | adjacency(), "edges in both edges and adj_data; leave out one"),
    "edges of PyG beside others": (GRAPH | {"edge_index": EDGES.T}, "edges in both edges and edge_index"),
    "features in two forms": (GRAPH | attributes(FEATURES), "features in both node_features and attr_data"),
    "labels in two forms": (GRAPH | {"labels": LABELS}, "labels in both node_labels and labels; leave out one"),
    "names of PyG": (
        {"x": FEATURES, "edge_index": EDGES.T, "y": LABELS},
        "has no labels.* save it with node_features=x, edges=edge_index.T, node_labels=y",
    ),
    "edges of PyG alone": (without("edges") | {"edge_index": EDGES.T}, "has no edges.*save it with edges=edge_index.T"),
    "edges in columns": (GRAPH | {"edges": EDGES.T}, r"edges is int64 \[2, 7\].*transpose it, edges.T"),
    "edges of floats": (GRAPH | {"edges": EDGES.astype(float)}, r"edges is float64.*save edges.astype\(int\)"),
    "edges of names": (GRAPH | {"edges": NAMES[EDGES]}, r"edges is <U1.*renumber names.*numpy.searchsorted"),
    "ids with gaps": (GAPS, "node ids from 0 to 9000, but there are 10 nodes.*renumber .*ids with gaps"),
    "ids from 1": (GRAPH | {"edges": EDGES + 1}, "node ids from 1 to 10, but there are 10 nodes; save edges - 1"),
    "one label too few": (
        GRAPH | {"node_labels": LABELS[:-1]},
        "node_labels has 9 labels, but node_features 10 rows, and edges name more .* than there are labels; give every",
    ),
    "one label too few beside a matrix": (
        without("edges", "node_labels") | adjacency() | {"labels": LABELS[:-1]},
        "labels has 9 labels, .*edges name more nodes than there are labels",
    ),
    "one label too many": (
        GRAPH | {"node_labels": np.append(LABELS, 0)},
        "node_labels has 11 labels, but node_features 10 rows; give every node both",
    ),
    "labels from -2": (
        GRAPH | {"node_labels": LABELS * 2},
        "labels range from -2 to 4; classes are numbered from 0, and the only negative label is -1",
    ),
    "labels with NaN": (GRAPH | {"node_labels": np.where(LABELS < 0, np.nan, LABELS)}, "put -1 in place of NaN"),
    "labels of floats": (GRAPH | {"node_labels": LABELS * 1.0}, r"if they are classes, save node_labels.astype\(int\)"),
    "labels of names": (GRAPH | {"node_labels": NAMES}, r"numpy.unique\(node_labels, return_inverse=True\)\[1\]"),
    "labels in a column": (GRAPH | {"node_labels": LABELS[:, None]}, r"save node_labels.reshape\(-1\)"),
    "labels one-hot": (GRAPH | {"node_labels": np.eye(NUM_NODES, dtype=int)}, r"one-hot rows node_labels.argmax\(1\)"),
    "numbers to predict": (
        GRAPH | {"node_labels": LABELS * 508_957 + 508_957},
        "make 1526872 classes.*numpy.unique.*numbers to predict, as in regression, are no classes",
    ),
    "features of objects": (
        GRAPH | {"node_features": OBJECTS},
        "node_features does not load.*Python objects",
    ),
    "features of names": (GRAPH | {"node_features": NAMES[:, None]}, r"node_features is <U1 \[10, 1\]"),
    "features of a single column": (GRAPH | {"node_features": FEATURES[:, 0]}, r"save node_features\[:, None\]"),
    "features transposed": (
        GRAPH | {"node_features": FEATURES.T},
        "node_labels has 10 labels, but node_features 3 rows; save node_features.T",
    ),
    "features with NaN": (
        GRAPH | {"node_features": np.full((NUM_NODES, 3), np.nan)},
        "hold NaN or infinity; replace them",
    ),
    "a matrix that ends early": (
        without("edges") | adjacency() | {"adj_indptr": np.array([0, 1, 2, 3, 3, 3, 3, 3, 3, 3, 3])},
        r"not a CSR matrix .*pointers from 0 to 3, the last 3, for 6 indices",
    ),
    "a matrix of another shape": (
        without("edges") | adjacency() | {"adj_shape": (11, 11)},
        r"adj_shape is \[11, 11\], but there are 10 nodes",
    ),
    "direction of each edge": (
        GRAPH | {"directed": np.ones(7, dtype=bool)},
        "directed is bool.*save it as directed",
    ),
    "direction in words": (GRAPH | {"directed": "yes"}, "directed is <U3.*save it as directed=True"),
    "a mask and ids of a part": (
        GRAPH | MASKS | {"train_idx": TRAIN},
        "train_mask, train_idx are both the train split; leave out one",
    ),
    "no nodes to train on": (GRAPH | {"test_mask": mask(TEST)}, "test_mask: a split without nodes to train on"),
    "ids called a mask": (
        GRAPH | {"train_mask": np.arange(NUM_NODES)},
        "holds 2, and a mask 0.*called train_idx",
    ),
    "a mask called ids": (GRAPH | {"train_idx": mask(TRAIN, int)}, "names node 0 more than once.*as train_mask"),
    "a mask or ids": (GRAPH | {"train": mask(TRAIN, int)}, "train can be a mask or node ids; make it bool"),
    "a mask of floats": (GRAPH | {"train_mask": mask(TRAIN, float)}, "train_mask is float64.*bool or integer"),
    "a mask of other nodes": (GRAPH | {"train_mask": np.ones(9, bool)}, r"train_mask is bool \[9\].* N = 10 nodes"),
    "ids of other nodes": (GRAPH | {"train_idx": [0, 10]}, "train_idx has node ids from 0 to 10, but the graph has 10"),
    "ids of several splits": (GRAPH | {"train_idx": [[0, 1], [2, 3]]}, r"several splits are given as masks \[S, N\]"),
    "a part for each node": (GRAPH | {"split": LABELS}, "split: it is not clear which part of a split.*train_mask"),
    "parts of several files": (GRAPH | {"train_mask_0": mask(TRAIN)}, "train_mask_0: it is not clear which part"),
    "unlike numbers of splits": (
        GRAPH | {"train_masks": np.stack([mask(TRAIN)] * 2), "test_masks": np.stack([mask(TEST)] * 3)},
        "there are 2 of train_masks and 3 of test_masks",
    ),
    "parts that overlap": (
        GRAPH | {"train_idx": TRAIN, "test_idx": TRAIN},
        "2 nodes are in both the train",
    ),
}


@pytest.mark.parametrize(("arrays", "message"), REFUSED.values(), ids=REFUSED.keys())
def test_what_is_not_clear_or_would_be_lost_is_refused_with_a_remedy(load, arrays, message):
    with pytest.raises(BettyError, match=message) as error:
        load(arrays)
    assert "mine.npz" in str(error.value)
    assert "\n" not in str(error.value)


def test_the_graph_of_public_files_loads_without_a_warning(real_graphs, caplog):
    for name in ("cora", "citeseer", "tolokers"):
        load_dataset(real_graphs / f"{name}.npz")
    assert not warnings_of(caplog)


def lone_array():
    content = io.BytesIO()
    np.save(content, EDGES)
    return content.getvalue()


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"0 1\n1 2\n", r"it is a text file and no \.npz file; read it with numpy.loadtxt"),
        ("Gr\u00fc\u00dfe, 1\n".encode("latin1"), r"it is a text file and no \.npz file"),
        (b"", "it is empty"),
        (lone_array(), "it is a single array .* numpy.savez"),
        (pickle.dumps(GRAPH), r"it is no \.npz file; save arrays with numpy.savez"),
        (b"\x89HDF\r\n\x1a\n" + bytes(50), "it is an HDF5 or MATLAB file"),
        (b"PK\x03\x04" + bytes(50), "it is cut or damaged"),
    ],
)
def test_what_is_no_npz_file_is_told_by_its_kind(tmp_path, content, message):
    (tmp_path / "mine.npz").write_bytes(content)
    with pytest.raises(BettyError, match=message) as error:
        load_dataset(tmp_path / "mine.npz")
    assert "\n" not in str(error.value)


def member(array):
    content = io.BytesIO()
    np.save(content, array)
    return content.getvalue()


def write_members(path, members):
    with zipfile.ZipFile(path, "w") as file:
        for name, content in members:
            file.writestr(name, content)


def test_members_without_a_suffix_are_arrays_too(tmp_path):
    write_members(tmp_path / "mine.npz", [(key, member(array)) for key, array in GRAPH.items()])
    assert neighbours(load_dataset(tmp_path / "mine.npz")) == undirected(EDGES.tolist())


def test_an_array_that_is_there_twice_is_refused(tmp_path):
    members = [(f"{key}.npy", member(array)) for key, array in GRAPH.items()]
    write_members(tmp_path / "mine.npz", [*members, ("edges", member(EDGES[:1]))])
    with pytest.raises(BettyError, match="holds edges more than once; save each array once"):
        load_dataset(tmp_path / "mine.npz")


def test_bytes_behind_an_array_are_refused(tmp_path):
    members = [(f"{key}.npy", member(array) + (b"more" if key == "edges" else b"")) for key, array in GRAPH.items()]
    write_members(tmp_path / "mine.npz", members)
    with pytest.raises(BettyError, match=r"edges does not load.*more bytes than an array of shape"):
        load_dataset(tmp_path / "mine.npz")


@pytest.mark.parametrize("key", GRAPH)
def test_one_changed_bit_of_an_array_is_told(tmp_path, key):
    path = tmp_path / "mine.npz"
    np.savez(path, **GRAPH)
    content = bytearray(path.read_bytes())
    content[content.index(GRAPH[key].tobytes())] ^= 1
    path.write_bytes(content)
    with pytest.raises(BettyError, match=rf"{key} does not load \(BadZipFile: Bad CRC-32"):
        load_dataset(path)
