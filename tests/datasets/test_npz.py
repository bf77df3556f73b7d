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
    adjacency = sparse.random_array((9, 9), density=0.2, format="csr", rng=random)
    attributes = sparse.random_array((9, 5), density=0.4, format="csr", rng=random)
    dataset = load(
        csr_arrays("adj", adjacency) | csr_arrays("attr", attributes) | {"labels": np.zeros(9, np.int8)},
    )
    np.testing.assert_array_equal(dataset.features.numpy(), attributes.toarray().astype(np.float32))
    dense = adjacency.toarray() != 0
    symmetric = (dense | dense.T) & ~np.eye(9, dtype=bool)
    assert neighbours(dataset) == [np.flatnonzero(row).tolist() for row in symmetric]


def test_edges_with_weight_zero_are_edges(load):
    adjacency = sparse.csr_array((np.array([0.0]), np.array([1]), np.array([0, 1, 1, 1, 1])), shape=(4, 4))
    arrays = {key: value for key, value in GRAPH.items() if key != "edges"}
    assert neighbours(load(csr_arrays("adj", adjacency) | arrays)) == [[1], [0], [], []]


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
        (GRAPH | {"node_features": np.zeros((3, 2))}, "4 nodes, but features has 3 rows"),
        (GRAPH | {"node_features": np.zeros((4, 0))}, r"features are float64 \[4, 0\]; they have to be numbers"),
        (GRAPH | {"node_features": np.full((4, 1), np.nan)}, "features hold NaN"),
        (GRAPH | {"node_features": np.full((4, 1), "a")}, r"features are <U1 \[4, 1\]"),
        (GRAPH | {"node_features": np.array([[None]] * 4)}, "not a whole .npz file of plain arrays"),
        (GRAPH | {"train_masks": MASK}, "a split without val_masks and test_masks"),
        (GRAPH | MASKS | {"val_masks": np.zeros(3, bool)}, r"val_masks is bool \[3\]"),
        (GRAPH | MASKS | {"val_masks": np.arange(4)}, r"val_masks is int64 \[4\]; it has to be bool"),
        (
            WITHOUT_FEATURES
            | csr_arrays("attr", sparse.csr_array(np.eye(4)))
            | {"attr_indices": np.array([0, 1, 2, 9])},
            "attr_indptr and attr_indices are not a CSR matrix",
        ),
    ],
)
def test_malformed_files_are_refused_in_one_line_that_names_them(load, arrays, message):
    with pytest.raises(BettyError, match=message) as error:
        load(arrays)
    assert "mine.npz" in str(error.value)
    assert "\n" not in str(error.value)


def test_adjacency_with_an_index_out_of_range_is_refused(load):
    arrays = {key: value for key, value in GRAPH.items() if key != "edges"}
    with pytest.raises(BettyError, match="adj_indptr and adj_indices are not a CSR matrix"):
        load(arrays | {"adj_indptr": np.array([0, 1, 1, 1, 1]), "adj_indices": np.array([4])})


@pytest.mark.parametrize("keep", [0, 1, 100, -30])
def test_cut_file_is_refused(tmp_path, keep):
    path = tmp_path / "mine.npz"
    np.savez_compressed(path, **GRAPH)
    path.write_bytes(path.read_bytes()[:keep])
    with pytest.raises(BettyError, match=r"mine\.npz is not a whole \.npz file"):
        load_dataset(path)


def test_lone_array_under_the_name_of_an_npz_is_refused(tmp_path):
    with open(tmp_path / "mine.npz", "wb") as file:
        np.save(file, EDGES)
    with pytest.raises(BettyError, match=r"mine\.npz is not a whole \.npz file"):
        load_dataset(tmp_path / "mine.npz")


def test_missing_file_is_refused(tmp_path):
    with pytest.raises(BettyError, match=r"none\.npz does not exist"):
        load_dataset(tmp_path / "none.npz")


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
