import pickle
import zipfile
from collections import defaultdict

import numpy as np
import pytest
import requests
from scipy import sparse

from betty.datasets import csc, load_dataset
from betty.errors import BettyError

NUM_NODES, NUM_FEATURES, NUM_CLASSES = 560, 6, 3
NUM_TRAIN, NUM_TEST = 12, 20


def published_pickle(content):
    """As the authors' files are: of Python 2, and naming modules that have moved since."""
    return pickle.dumps(content, protocol=2).replace(b"scipy.sparse._csr\n", b"scipy.sparse.csr\n")


class CitationFiles:
    """A small graph, and the files it would be published in."""

    def __init__(self, seed):
        random = np.random.default_rng(seed)
        self.features = (random.random((NUM_NODES, NUM_FEATURES)) < 0.5).astype(np.float32)
        self.features[:, 0] = 1
        self.labels = random.integers(NUM_CLASSES, size=NUM_NODES)
        self.neighbours = {node: random.integers(NUM_NODES, size=3).tolist() for node in range(NUM_NODES)}
        self.neighbours[5].append(5)
        self.test_ids = random.permutation(np.arange(NUM_NODES - NUM_TEST, NUM_NODES))

    def without_test_node(self, node):
        """As in CiteSeer: a node of the graph that has neither features nor a label nor a line in the test files."""
        self.features[node] = 0
        self.labels[node] = 0
        self.test_ids = self.test_ids[self.test_ids != node]

    def write(self, archive, name):
        one_hot = np.eye(NUM_CLASSES, dtype=np.int32)[self.labels]
        rows = sparse.csr_matrix(self.features)
        num_known = NUM_NODES - NUM_TEST
        objects = {
            "x": rows[:NUM_TRAIN],
            "y": one_hot[:NUM_TRAIN],
            "allx": rows[:num_known],
            "ally": one_hot[:num_known],
            "tx": rows[self.test_ids],
            "ty": one_hot[self.test_ids],
            "graph": defaultdict(list, self.neighbours),
        }
        with zipfile.ZipFile(archive, "w") as file:
            for key, content in objects.items():
                file.writestr(f"ind.{name}.{key}", published_pickle(content))
            file.writestr(f"ind.{name}.test.index", "\n".join(map(str, self.test_ids)))


@pytest.fixture(autouse=True)
def no_network(monkeypatch):
    def refuse(*_, **__):
        raise requests.exceptions.ConnectionError("no network")

    monkeypatch.setattr(requests, "get", refuse)


def adjacency(dataset):
    indptr, indices = csc(dataset.graph)
    num_nodes = dataset.num_nodes
    return sparse.csr_array((np.ones(len(indices)), indices, indptr), shape=(num_nodes, num_nodes)).toarray()


def undirected(pairs, num_nodes):
    dense = np.zeros((num_nodes, num_nodes))
    for a, b in pairs:
        dense[a, b] = dense[b, a] = a != b
    return dense


@pytest.mark.parametrize(("name", "archive"), [("cora", "cora_v2"), ("citeseer", "citeseer"), ("pubmed", "pubmed")])
def test_citation_graph_from_its_archive(tmp_path, capfd, name, archive):
    files = CitationFiles(seed=0)
    if name == "citeseer":
        files.without_test_node(NUM_NODES - 7)
    files.write(tmp_path / f"{archive}.zip", archive)
    dataset = load_dataset(name, tmp_path)
    assert (dataset.name, dataset.num_classes) == (name, NUM_CLASSES)
    pairs = [(a, b) for a, row in files.neighbours.items() for b in row]
    np.testing.assert_array_equal(adjacency(dataset), undirected(pairs, NUM_NODES))
    row_normalised = files.features / files.features.sum(1, keepdims=True).clip(min=1)
    np.testing.assert_allclose(dataset.features.numpy(), row_normalised, rtol=1e-6)
    np.testing.assert_array_equal(dataset.labels.numpy(), files.labels)
    assert dataset.train_ids.tolist() == list(range(NUM_TRAIN))
    assert dataset.val_ids.tolist() == list(range(NUM_TRAIN, NUM_TRAIN + 500))
    assert dataset.test_ids.tolist() == sorted(files.test_ids)
    assert capfd.readouterr().out == ""


def test_second_load_needs_neither_raw_files_nor_pickle(tmp_path, monkeypatch):
    CitationFiles(seed=0).write(tmp_path / "cora_v2.zip", "cora_v2")
    first = load_dataset("cora", tmp_path)
    monkeypatch.setattr(pickle, "load", lambda *_, **__: pytest.fail("unpickled"))
    for path in sorted(tmp_path.glob("cora_v2*/*")):
        path.unlink()
    second = load_dataset("cora", tmp_path)
    np.testing.assert_array_equal(adjacency(first), adjacency(second))
    np.testing.assert_array_equal(first.features.numpy(), second.features.numpy())


def test_dgl_leaves_no_processed_files(tmp_path):
    CitationFiles(seed=0).write(tmp_path / "cora_v2.zip", "cora_v2")
    load_dataset("cora", tmp_path)
    assert not [path for path in tmp_path.rglob("*") if path.suffix in {".bin", ".pkl"}]


def test_processed_files_of_others_are_not_read(tmp_path):
    CitationFiles(seed=0).write(tmp_path / "cora_v2.zip", "cora_v2")
    load_dataset("cora", tmp_path)
    (raw,) = tmp_path.glob("cora_v2_*")
    for suffix in ("bin", "pkl"):
        (raw / f"cora_v2_dgl_graph.{suffix}").write_bytes(b"not to be opened")
    for path in (tmp_path / "cora").iterdir():
        path.unlink()
    assert load_dataset("cora", tmp_path).num_nodes == NUM_NODES


def write_reddit(archive, features, labels, kinds, pairs):
    num_nodes = len(labels)
    rows, columns = np.array([*pairs, *(pair[::-1] for pair in pairs)]).T
    graph = sparse.coo_matrix((np.ones(len(rows)), (rows, columns)), shape=(num_nodes, num_nodes))
    folder = archive.parent / "to_be_zipped"
    folder.mkdir()
    sparse.save_npz(folder / "reddit_graph.npz", graph)
    np.savez(folder / "reddit_data.npz", feature=features, label=labels, node_types=kinds)
    with zipfile.ZipFile(archive, "w") as file:
        for path in folder.iterdir():
            file.write(path, path.name)


def test_reddit_from_its_archive(tmp_path):
    random = np.random.default_rng(0)
    num_nodes = 30
    identity = np.arange(num_nodes, dtype=np.float64)
    labels, kinds = random.integers(41, size=num_nodes), np.repeat([1, 2, 3], 10)
    pairs = [(a, (a + step) % num_nodes) for a in range(num_nodes) for step in (1, 4)]
    write_reddit(tmp_path / "reddit.zip", np.stack([identity, -identity], 1), labels, kinds, pairs)

    dataset = load_dataset("reddit", tmp_path)
    # DGL renumbers the nodes; the first feature tells who is who.
    old_ids = dataset.features[:, 0].long().numpy()
    assert sorted(old_ids) == list(range(num_nodes))
    np.testing.assert_array_equal(adjacency(dataset), undirected(pairs, num_nodes)[old_ids][:, old_ids])
    np.testing.assert_array_equal(dataset.labels.numpy(), labels[old_ids])
    assert dataset.num_classes == 41
    for ids, kind in ((dataset.train_ids, 1), (dataset.val_ids, 2), (dataset.test_ids, 3)):
        assert sorted(old_ids[ids.numpy()]) == np.flatnonzero(kinds == kind).tolist()


@pytest.mark.parametrize(("name", "archive"), [("cora", "cora_v2"), ("pubmed", "pubmed"), ("reddit", "reddit")])
def test_without_network_one_line_says_what_to_put_where(tmp_path, capfd, name, archive):
    with pytest.raises(BettyError, match=rf"cannot download {archive}\.zip .*put the file into {tmp_path}") as error:
        load_dataset(name, tmp_path)
    assert "\n" not in str(error.value)
    assert capfd.readouterr().out == ""
    assert [path.relative_to(tmp_path).as_posix() for path in tmp_path.rglob("*")] == [name, f"{name}/.lock"]


@pytest.mark.parametrize("name", ["citeseer", "reddit"])
def test_cut_archive_is_refused_in_one_line(tmp_path, name):
    (tmp_path / f"{name}.zip").write_bytes(b"PK\x03\x04 and nothing more")
    with pytest.raises(BettyError, match=rf"{name}\.zip, .* does not load .*; delete what begins with {name}"):
        load_dataset(name, tmp_path)
