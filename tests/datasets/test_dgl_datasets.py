import pickle
import zipfile
from collections import defaultdict
from pathlib import Path

import numpy as np
import pytest
import requests
import torch
from scipy import sparse

from betty.datasets import csc, load_dataset
from betty.dgl_compat import dgl
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

    def contents(self, name):
        """The bytes of every file."""
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
        pickles = {f"ind.{name}.{key}": published_pickle(content) for key, content in objects.items()}
        return pickles | {f"ind.{name}.test.index": "\n".join(map(str, self.test_ids)).encode()}

    def write(self, archive, name):
        with zipfile.ZipFile(archive, "w") as file:
            for file_name, content in self.contents(name).items():
                file.writestr(file_name, content)

    def write_folder(self, folder, name):
        folder.mkdir(parents=True, exist_ok=True)
        for file_name, content in self.contents(name).items():
            (folder / file_name).write_bytes(content)


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


def assert_is_the_graph(dataset, files):
    pairs = [(a, b) for a, row in files.neighbours.items() for b in row]
    np.testing.assert_array_equal(adjacency(dataset), undirected(pairs, NUM_NODES))
    row_normalised = files.features / files.features.sum(1, keepdims=True).clip(min=1)
    np.testing.assert_allclose(dataset.features.numpy(), row_normalised, rtol=1e-6)
    np.testing.assert_array_equal(dataset.labels.numpy(), files.labels)
    assert dataset.num_classes == NUM_CLASSES
    assert dataset.train_ids.tolist() == list(range(NUM_TRAIN))
    assert dataset.val_ids.tolist() == list(range(NUM_TRAIN, NUM_TRAIN + 500))
    assert dataset.test_ids.tolist() == sorted(files.test_ids)


@pytest.mark.parametrize(("name", "archive"), [("cora", "cora_v2"), ("citeseer", "citeseer"), ("pubmed", "pubmed")])
def test_citation_graph_from_its_archive(tmp_path, capfd, name, archive):
    files = CitationFiles(seed=0)
    if name == "citeseer":
        files.without_test_node(NUM_NODES - 7)
    files.write(tmp_path / f"{archive}.zip", archive)
    dataset = load_dataset(name, tmp_path)
    assert dataset.name == name
    assert_is_the_graph(dataset, files)
    assert capfd.readouterr().out == ""


@pytest.mark.parametrize(
    ("name", "folder", "file_name"),
    [
        ("citeseer", ".", "citeseer"),
        ("citeseer", "citeseer", "citeseer"),
        ("citeseer", "citeseer/raw", "citeseer"),
        ("citeseer", "CiteSeer/raw", "citeseer"),
        ("cora", "Cora/raw", "cora"),
        ("cora", "cora_v2_d697a464", "cora_v2"),
        ("pubmed", "PubMed", "pubmed"),
    ],
)
def test_citation_graph_from_a_folder_of_its_files(tmp_path, name, folder, file_name):
    files = CitationFiles(seed=1)
    files.without_test_node(NUM_NODES - 7)
    files.write_folder(tmp_path / folder, file_name)
    assert_is_the_graph(load_dataset(name, tmp_path), files)
    assert_is_the_graph(load_dataset(name, tmp_path), files)
    present = {path.name for path in (tmp_path / folder).iterdir()}
    assert present >= files.contents(file_name).keys()


def test_graph_of_a_folder_is_what_dgls_own_loader_reads(tmp_path, monkeypatch):
    files = CitationFiles(seed=2)
    files.without_test_node(NUM_NODES - 7)
    loader = dgl.data.CitationGraphDataset
    monkeypatch.setattr(loader, "download", lambda self: files.write_folder(Path(self.raw_path), "citeseer"))
    monkeypatch.setattr(loader, "save", lambda self: None)
    theirs = loader("citeseer", raw_dir=str(tmp_path), verbose=False)[0]
    files.write_folder(tmp_path / "mine", "citeseer")
    mine = load_dataset("citeseer", tmp_path / "mine")
    torch.testing.assert_close(mine.features, theirs.ndata["feat"])
    assert torch.equal(mine.labels, theirs.ndata["label"])
    for part in ("train", "val", "test"):
        assert torch.equal(getattr(mine, f"{part}_ids"), theirs.ndata[f"{part}_mask"].nonzero().view(-1))
    np.testing.assert_array_equal(adjacency(mine), undirected(zip(*map(list, theirs.edges()), strict=True), NUM_NODES))


def test_folder_that_lacks_a_file_is_refused_by_its_name(tmp_path):
    CitationFiles(seed=0).write_folder(tmp_path, "citeseer")
    (tmp_path / "ind.citeseer.ally").unlink()
    with pytest.raises(BettyError, match=r"lacks ind\.citeseer\.ally; put all 8 there"):
        load_dataset("citeseer", tmp_path)


class RunsCode:
    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return open, (str(self.path), "w")


@pytest.mark.parametrize("file", ["x", "graph"])
def test_pickle_that_asks_for_more_than_arrays_is_refused_and_runs_nothing(tmp_path, file):
    CitationFiles(seed=0).write_folder(tmp_path, "cora")
    (tmp_path / f"ind.cora.{file}").write_bytes(pickle.dumps(RunsCode(tmp_path / "harm"), protocol=2))
    with pytest.raises(BettyError, match=r"ind\.cora.* does not load .*asks for (__builtin__|io)\.open") as error:
        load_dataset("cora", tmp_path)
    assert "\n" not in str(error.value)
    assert not (tmp_path / "harm").exists()


@pytest.mark.parametrize(
    ("file", "content"),
    [
        ("x", b""),
        ("allx", b"\x80\x02K\x05."),
        ("test.index", b"5\nsix\n"),
        ("test.index", b"3\n"),
        ("graph", pickle.dumps({0: [10**6]}, protocol=2)),
        ("ally", published_pickle(np.ones((3, NUM_CLASSES)))),
        ("ty", published_pickle(np.ones((1, NUM_CLASSES)))),
        ("tx", published_pickle(sparse.csr_matrix(np.ones((NUM_TEST, 1))))),
    ],
)
def test_damaged_file_is_refused_in_one_line(tmp_path, file, content):
    CitationFiles(seed=0).write_folder(tmp_path, "cora")
    (tmp_path / f"ind.cora.{file}").write_bytes(content)
    with pytest.raises(BettyError, match=r"ind\.cora.* does not load .*put whole files there") as error:
        load_dataset("cora", tmp_path)
    assert "\n" not in str(error.value)


def test_second_load_needs_no_raw_files(tmp_path):
    CitationFiles(seed=0).write(tmp_path / "cora_v2.zip", "cora_v2")
    first = load_dataset("cora", tmp_path)
    (tmp_path / "cora_v2.zip").unlink()
    second = load_dataset("cora", tmp_path)
    np.testing.assert_array_equal(adjacency(first), adjacency(second))
    np.testing.assert_array_equal(first.features.numpy(), second.features.numpy())


def test_dgl_leaves_no_processed_files(tmp_path):
    CitationFiles(seed=0).write(tmp_path / "cora_v2.zip", "cora_v2")
    load_dataset("cora", tmp_path)
    assert not [path for path in tmp_path.rglob("*") if path.suffix in {".bin", ".pkl"}]


def test_processed_files_of_others_are_not_read(tmp_path):
    files = CitationFiles(seed=0)
    files.write_folder(tmp_path / "cora_v2_d697a464", "cora_v2")
    for suffix in ("bin", "pkl"):
        (tmp_path / "cora_v2_d697a464" / f"cora_v2_dgl_graph.{suffix}").write_bytes(b"not to be opened")
    assert_is_the_graph(load_dataset("cora", tmp_path), files)


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


def test_without_network_the_files_of_planetoid_are_named(tmp_path):
    with pytest.raises(BettyError, match=rf"or into {tmp_path}/citeseer Planetoid's files ind\.citeseer\.\{{x,y,"):
        load_dataset("citeseer", tmp_path)


@pytest.mark.parametrize(("name", "advice"), [("citeseer", "delete it"), ("reddit", "delete what begins with reddit")])
def test_cut_archive_is_refused_in_one_line(tmp_path, name, advice):
    (tmp_path / f"{name}.zip").write_bytes(b"PK\x03\x04 and nothing more")
    with pytest.raises(BettyError, match=rf"{name}\.zip.* does not load .*; {advice}"):
        load_dataset(name, tmp_path)
