import io
import struct
import tracemalloc
import zipfile

import numpy as np
import pytest
import torch
from scipy import sparse

from betty.datasets import csc, load_dataset
from betty.errors import BettyError

EDGES = np.array([[0, 1], [1, 0], [1, 2], [2, 2], [0, 1]])
GRAPH = {
    "edges": EDGES,
    "node_features": np.arange(8, dtype=np.float64).reshape(4, 2),
    "node_labels": np.array([0, 2, -1, 2]),
}
MASK = np.array([True, False, False, False])
MASKS = {"train_masks": MASK, "val_masks": ~MASK, "test_masks": np.zeros(4, bool)}
ALL = np.ones(4, bool)


@pytest.fixture
def load(tmp_path):
    def save_and_load(arrays, **flags):
        path = tmp_path / "mine.npz"
        np.savez(path, **arrays)
        return load_dataset(str(path), **flags)

    return save_and_load


def neighbours(dataset):
    indptr, indices = csc(dataset.graph)
    return [row.tolist() for row in indices.split(indptr.diff().tolist())]


def test_edge_list_form(load):
    dataset = load(GRAPH)
    assert dataset.name == "mine"
    assert neighbours(dataset) == [[1], [0, 2], [1], []]
    assert dataset.features.dtype == torch.float32
    assert dataset.features.tolist() == [[0, 1], [2, 3], [4, 5], [6, 7]]
    assert dataset.labels.tolist() == [0, 2, -1, 2]
    assert dataset.num_classes == 3
    assert 2 not in torch.cat([dataset.train_ids, dataset.val_ids, dataset.test_ids])


def csr_arrays(name, matrix):
    return {
        f"{name}_data": matrix.data,
        f"{name}_indices": matrix.indices,
        f"{name}_indptr": matrix.indptr,
        f"{name}_shape": np.array(matrix.shape),
    }


def test_csr_form(load):
    random = np.random.default_rng(0)
    adjacency = sparse.random_array(
        (9, 9), density=0.2, format="csr", rng=random, data_sampler=lambda size: np.ones(size)
    )
    attributes = sparse.random_array((9, 5), density=0.4, format="csr", rng=random)
    dataset = load(
        csr_arrays("adj", adjacency) | csr_arrays("attr", attributes) | {"labels": np.zeros(9, np.int8)},
    )
    np.testing.assert_array_equal(dataset.features.numpy(), attributes.toarray().astype(np.float32))
    dense = adjacency.toarray() != 0
    symmetric = (dense | dense.T) & ~np.eye(9, dtype=bool)
    assert neighbours(dataset) == [np.flatnonzero(row).tolist() for row in symmetric]


@pytest.mark.parametrize("weight", [0.0, 2.0, np.nan])
def test_edges_with_a_weight_other_than_one_are_refused(load, weight):
    adjacency = sparse.csr_array((np.array([weight]), np.array([1]), np.array([0, 1, 1, 1, 1])), shape=(4, 4))
    with pytest.raises(BettyError, match=r"mine\.npz: adj_data holds weights.*leave adj_data out"):
        load(csr_arrays("adj", adjacency) | WITHOUT_EDGES)


def test_masks_of_one_split(load):
    dataset = load(GRAPH | MASKS)
    assert dataset.train_ids.tolist() == [0]
    assert dataset.val_ids.tolist() == [1, 3]
    assert dataset.test_ids.tolist() == []


def test_masks_of_several_splits_are_chosen_by_row(load):
    rows = {key: np.stack([mask, np.roll(mask, 1)]) for key, mask in MASKS.items()}
    assert load(GRAPH | rows).train_ids.tolist() == [0]
    assert load(GRAPH | rows, split=1).train_ids.tolist() == [1]
    with pytest.raises(BettyError, match=r"there is no split 2: train_masks has 2"):
        load(GRAPH | rows, split=2)


def test_split_follows_the_seed_where_the_file_has_none(load):
    arrays = {
        "edges": EDGES,
        "node_features": np.zeros((100, 1)),
        "node_labels": np.zeros(100, np.int64),
    }
    first, again, other = (load(arrays, seed=seed) for seed in (0, 0, 1))
    assert [ids.numel() for ids in (first.train_ids, first.val_ids, first.test_ids)] == [60, 20, 20]
    assert torch.equal(first.test_ids, again.test_ids)
    assert not torch.equal(first.test_ids, other.test_ids)


def test_graph_without_edges_and_with_one_class(load):
    dataset = load(GRAPH | {"edges": np.empty((0, 2), np.int64), "node_labels": np.zeros(4, np.int64)})
    assert dataset.graph.num_edges() == 0
    assert dataset.graph.num_nodes() == 4
    assert dataset.num_classes == 1


WITHOUT_FEATURES = {key: value for key, value in GRAPH.items() if key != "node_features"}
WITHOUT_EDGES = {key: value for key, value in GRAPH.items() if key != "edges"}
ATTRIBUTES = WITHOUT_FEATURES | csr_arrays("attr", sparse.csr_array(np.eye(4)))
ADJACENCY = WITHOUT_EDGES | {"adj_indptr": np.array([0, 1, 2, 2, 2]), "adj_indices": np.array([1, 0])}
HUGE = 2**64 - 1


def test_the_graphs_that_the_malformed_ones_come_from_load(load):
    assert load(ATTRIBUTES).features.tolist() == np.eye(4).tolist()
    assert neighbours(load(ADJACENCY)) == [[1], [0], [], []]


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        (WITHOUT_FEATURES, r"has no node features: it needs node_features, or attr_data"),
        ({key: GRAPH[key] for key in ("node_features", "node_labels")}, "has no edges: it needs edges, or adj_indptr"),
        ({key: GRAPH[key] for key in ("node_features", "edges")}, "has no labels: it needs node_labels or labels"),
        (GRAPH | {"edges": np.array([[0, 4]])}, "node ids from 0 to 4, but there are 4 nodes"),
        (GRAPH | {"edges": np.array([[-1, 0]])}, "node ids from -1 to 0"),
        (GRAPH | {"edges": EDGES.T}, r"edges is int64 \[2, 5\]; it has to be integer \[E, 2\]"),
        (GRAPH | {"edges": EDGES.astype(float)}, r"edges is float64"),
        (GRAPH | {"node_labels": np.array([0, -2, 0, 0])}, "labels range from -2 to 0"),
        (GRAPH | {"node_labels": np.array([0.0, 1, 1, 0])}, r"node_labels is float64 \[4\]; it has to be integer"),
        (GRAPH | {"node_labels": np.empty(0, np.int64)}, "the graph has no nodes"),
        (GRAPH | {"node_labels": np.full(4, -1)}, "no node to train on"),
        (GRAPH | {"node_features": np.zeros((3, 2))}, "node_labels has 4 labels, but node_features 3 rows"),
        (GRAPH | {"node_features": np.zeros((4, 0))}, "there are 4 rows of node features, but no columns"),
        (GRAPH | {"node_features": np.full((4, 1), np.nan)}, "features hold NaN"),
        (
            GRAPH | {"node_features": np.full((4, 1), "a")},
            r"node_features is <U1 \[4, 1\]; it has to be numbers \[N, F\]",
        ),
        (
            GRAPH | {"node_features": np.array([[None]] * 4)},
            "node_features does not load .ValueError: it holds Python objects.* give it a dtype of numbers",
        ),
        (GRAPH | {"val_masks": MASK}, "val_masks: a split without nodes to train on"),
        (GRAPH | MASKS | {"val_masks": np.zeros(3, bool)}, r"val_masks is bool \[3\]"),
        (GRAPH | MASKS | {"val_masks": np.arange(4)}, r"val_masks holds 2, and a mask 0 and 1 only"),
        (GRAPH | MASKS | {"val_masks": MASK}, "1 nodes are in both the train and the val split"),
        (
            GRAPH | dict.fromkeys(MASKS, ALL),
            "3 nodes are in both the train and the val split, 3 .* the train and the test .*, 3 .* val and the test",
        ),
        (GRAPH | {"node_labels": np.array([0, 1000, 1, 1])}, r"make 1001 classes .* but 4 nodes can have at most 1000"),
        (GRAPH | {"node_labels": np.array([0, 10**12, 1, 1])}, r"make 1000000000001 classes"),
        (GRAPH | {"node_labels": np.array([0, 2**63 - 1, 1, 1])}, r"make 9223372036854775808 classes"),
        (GRAPH | {"node_labels": np.array([0, HUGE, 1, 1], np.uint64)}, f"node_labels holds {HUGE}, which is too"),
        (GRAPH | {"edges": np.array([[0, HUGE]], np.uint64)}, f"edges holds {HUGE}"),
        (ATTRIBUTES | {"attr_indices": np.array([0, 1, 2, 9])}, "attr_indptr and attr_indices are not a CSR matrix"),
        (ATTRIBUTES | {"attr_shape": np.array([4, 10**13])}, r"shape \[4, 10+\] take 1.49e\+05 GiB when made dense"),
        (ATTRIBUTES | {"attr_shape": np.array([4, HUGE], np.uint64)}, f"attr_shape holds {HUGE}"),
        (
            ATTRIBUTES | {"attr_shape": np.array([10**13, 4])},
            "node_labels has 4 labels, but attr_shape 10000000000000 rows",
        ),
        (ATTRIBUTES | {"attr_shape": np.array([-4, 4])}, "node_labels has 4 labels, but attr_shape -4 rows"),
        (ATTRIBUTES | {"attr_shape": np.array([4, -4])}, "attr_indptr and attr_indices are not a CSR matrix"),
        (ATTRIBUTES | {"attr_shape": np.array([4, 4, 4])}, r"attr_shape is \[4, 4, 4\]; it has to be two numbers"),
        (ATTRIBUTES | {"attr_shape": np.array([4.0, 4.0])}, r"attr_shape is float64 \[2\]; it has to be integer"),
        (ATTRIBUTES | {"attr_data": np.array(["1"] * 4)}, r"attr_data is <U1 \[4\]; it has to be numbers"),
        (ATTRIBUTES | {"attr_data": np.ones((4, 1))}, r"attr_data is float64 \[4, 1\]"),
        (ADJACENCY | {"adj_indices": np.array([4, 0])}, "adj_indptr and adj_indices are not a CSR matrix"),
        (ADJACENCY | {"adj_indices": np.array(1)}, r"adj_indices is int64 \[\]; it has to be integer \[nonzeros\]"),
        (ADJACENCY | {"adj_indices": np.array([1.9, 0.2])}, "adj_indices is float64"),
        (ADJACENCY | {"adj_indices": np.array(["1", "0"])}, "adj_indices is <U1"),
        (ADJACENCY | {"adj_indptr": np.array([0, 1, 2, 2, 2.5])}, "adj_indptr is float64"),
        (ADJACENCY | {"adj_indptr": np.array([0, 2**63 - 1, -2, 2, 2])}, r"pointers from -2 to 9223372036854775807"),
        (ADJACENCY | {"adj_indptr": np.array([0, 2, 1, 2, 2])}, "adj_indptr and adj_indices are not a CSR matrix"),
    ],
)
def test_malformed_files_are_refused_in_one_line_that_names_them(load, arrays, message):
    with pytest.raises(BettyError, match=message) as error:
        load(arrays)
    assert "mine.npz" in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("value", [1e300, -1e300, np.inf])
@pytest.mark.parametrize("form", ["dense", "sparse"])
def test_features_beyond_float32_are_refused_without_a_warning(load, value, form):
    features = {"node_features": np.full((4, 1), value)}
    if form == "sparse":
        features = csr_arrays("attr", sparse.csr_array(features["node_features"]))
    with pytest.raises(BettyError, match=r"mine\.npz: node features hold NaN or infinity"):
        load(WITHOUT_FEATURES | features)


@pytest.mark.parametrize("split", [1, 3, 10**30])
def test_a_split_that_is_not_there_is_refused(load, split):
    with pytest.raises(BettyError, match=rf"mine\.npz: there is no split {split}: the file has no masks"):
        load(GRAPH, split=split)
    with pytest.raises(BettyError, match=rf"mine\.npz: there is no split {split}: train_masks has 1, counted from 0"):
        load(GRAPH | MASKS, split=split)


def test_as_many_classes_as_nodes_are_fine(load):
    arrays = {"edges": EDGES, "node_features": np.zeros((1500, 1)), "node_labels": np.arange(1500)}
    assert load(arrays).num_classes == 1500
    with pytest.raises(BettyError, match="make 1501 classes"):
        load(arrays | {"node_labels": np.arange(1500) + 1})


@pytest.mark.parametrize("order", ["C", "F"])
def test_loading_takes_the_memory_of_the_features_once(tmp_path, order):
    num_nodes, num_features = 40_000, 512
    features = np.zeros((num_nodes, num_features), dtype=np.float16, order=order)
    edges, labels = np.zeros((num_nodes, 2), dtype=np.int64), np.zeros(num_nodes, dtype=np.int64)
    np.savez(tmp_path / "mine.npz", edges=edges, node_features=features, node_labels=labels)
    tracemalloc.start()
    try:
        dataset = load_dataset(tmp_path / "mine.npz")
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert dataset.features.nbytes < peak < 1.2 * dataset.features.nbytes


def npy(array):
    content = io.BytesIO()
    np.save(content, array)
    return content.getvalue()


def npy_that_claims(shape):
    header = repr({"descr": "<f8", "fortran_order": False, "shape": shape}).encode()
    header += b" " * (117 - len(header)) + b"\n"
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header + bytes(64)


@pytest.mark.parametrize(
    "member",
    [
        pytest.param(b"", id="empty"),
        pytest.param(b"no array", id="no array"),
        pytest.param(npy(EDGES)[:6], id="magic alone"),
        pytest.param(npy(EDGES)[:30], id="header cut in the dictionary"),
        pytest.param(npy(EDGES).replace(b"}", b"("), id="header with an open bracket"),
        pytest.param(npy(EDGES)[:-8], id="data cut"),
        pytest.param(npy_that_claims((10**13, 5)), id="too large for memory"),
        pytest.param(npy_that_claims((10**30, 5)), id="too large for an integer"),
        pytest.param(npy_that_claims((-1, 5)), id="negative shape"),
    ],
)
@pytest.mark.parametrize("key", GRAPH)
def test_member_that_is_no_whole_array_is_refused_by_name(tmp_path, key, member):
    path = tmp_path / "mine.npz"
    with zipfile.ZipFile(path, "w") as file:
        for other, array in GRAPH.items():
            file.writestr(f"{other}.npy", member if other == key else npy(array))
    assert_refused_in_one_line(path, rf"mine\.npz: .*{key}")


def assert_refused_in_one_line(path, message):
    with pytest.raises(BettyError, match=message) as error:
        load_dataset(path)
    assert "\n" not in str(error.value)


def with_patched_entries(content, field_offsets, value):
    """The bytes of a zip file with a field of every local and central header changed."""
    content = bytearray(content)
    for signature, offset in zip((b"PK\x03\x04", b"PK\x01\x02"), field_offsets, strict=True):
        start = content.find(signature)
        while start >= 0:
            content[start + offset : start + offset + 2] = struct.pack("<H", value)
            start = content.find(signature, start + 4)
    return bytes(content)


@pytest.mark.parametrize(
    ("what", "field_offsets", "value"), [("encrypted", (6, 8), 1), ("of an unknown compression", (8, 10), 77)]
)
def test_zip_file_that_python_cannot_unpack_is_refused(tmp_path, what, field_offsets, value):
    path = tmp_path / "mine.npz"
    np.savez(path, **GRAPH)
    path.write_bytes(with_patched_entries(path.read_bytes(), field_offsets, value))
    assert_refused_in_one_line(path, r"mine\.npz: node_labels does not load")


@pytest.mark.parametrize("compression", [zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
def test_damaged_compression_is_refused(tmp_path, compression):
    path = tmp_path / "mine.npz"
    random = np.random.default_rng(0).integers(4, size=(5000, 2))
    with zipfile.ZipFile(path, "w", compression) as file:
        for key, array in (GRAPH | {"edges": random}).items():
            file.writestr(f"{key}.npy", npy(array))
    assert load_dataset(path).num_nodes == 4
    content = bytearray(path.read_bytes())
    content[200:400] = b"\xff" * 200
    path.write_bytes(content)
    assert_refused_in_one_line(path, r"mine\.npz: edges does not load")


@pytest.mark.parametrize("keep", [0, 1, 100, -30])
def test_cut_file_is_refused(tmp_path, keep):
    path = tmp_path / "mine.npz"
    np.savez_compressed(path, **GRAPH)
    path.write_bytes(path.read_bytes()[:keep])
    with pytest.raises(BettyError, match=r"mine\.npz does not load"):
        load_dataset(path)


def test_lone_array_under_the_name_of_an_npz_is_refused(tmp_path):
    with open(tmp_path / "mine.npz", "wb") as file:
        np.save(file, EDGES)
    with pytest.raises(BettyError, match=r"mine\.npz does not load: it is a single array and no \.npz file"):
        load_dataset(tmp_path / "mine.npz")


def test_missing_file_is_refused(tmp_path):
    with pytest.raises(BettyError, match=r"none\.npz does not exist"):
        load_dataset(tmp_path / "none.npz")


@pytest.mark.parametrize("name", ["n" * 5000 + ".npz", "folder.npz"])
def test_what_cannot_be_a_file_is_refused(tmp_path, name):
    (tmp_path / "folder.npz").mkdir()
    with pytest.raises(BettyError, match=r"\.npz does not exist, or is not a file"):
        load_dataset(tmp_path / name)


@pytest.mark.parametrize(
    ("name", "num_nodes", "num_edges", "num_features", "num_classes"),
    [("cora", 2708, 5278, 1433, 7), ("citeseer", 3312, 4536, 3703, 6), ("tolokers", 11758, 519000, 10, 2)],
)
def test_real_graphs(real_graphs, name, num_nodes, num_edges, num_features, num_classes):
    dataset = load_dataset(real_graphs / f"{name}.npz")
    assert dataset.graph.num_edges() == 2 * num_edges
    assert dataset.features.shape == (num_nodes, num_features)
    assert dataset.num_classes == num_classes
    indptr, indices = csc(dataset.graph)
    adjacency = sparse.csr_array((np.ones(len(indices)), indices, indptr), shape=(num_nodes, num_nodes))
    assert (adjacency != adjacency.T).nnz == 0
    assert adjacency.diagonal().sum() == 0


def test_real_graph_with_ten_splits(real_graphs):
    with np.load(real_graphs / "tolokers.npz") as file:
        expected = np.flatnonzero(file["test_masks"][7])
    assert load_dataset(real_graphs / "tolokers.npz", split=7).test_ids.tolist() == expected.tolist()
