import builtins
import gzip
import io
import shutil
import urllib.error
import zipfile
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch

from betty.datasets import csc, load_dataset, npz_archive, ogb_datasets, ogb_raw_files
from betty.errors import BettyError
from betty.files import hold_lock
from betty.ogb_compat import import_ogb

NUM_NODES = 40
EDGES = np.random.default_rng(0).integers(NUM_NODES, size=(90, 2))
FEATURES = np.random.default_rng(1).standard_normal((NUM_NODES, 5)).astype(np.float32)
LABELS = np.random.default_rng(2).integers(40, size=NUM_NODES)
SPLIT = {"train": [7, 3, 5], "valid": [0, 1], "test": [39, 38, 10]}

CSV_SETS = [("ogbn-arxiv", "arxiv", "time"), ("ogbn-products", "products", "sales_ranking")]


def write_csv(path: Path, rows) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with gzip.open(path, "wt") as file:
        file.writelines(",".join(str(value) for value in np.atleast_1d(row)) + "\n" for row in rows)


def write_split(folder: Path) -> None:
    for part, ids in SPLIT.items():
        write_csv(folder / f"{part}.csv.gz", ids)


def write_csv_set(folder: Path, split_name: str, labels=LABELS) -> None:
    raw = folder / "raw"
    write_csv(raw / "edge.csv.gz", EDGES)
    write_csv(raw / "node-feat.csv.gz", FEATURES)
    write_csv(raw / "node-label.csv.gz", labels)
    write_csv(raw / "num-node-list.csv.gz", [NUM_NODES])
    write_csv(raw / "num-edge-list.csv.gz", [len(EDGES)])
    write_split(folder / "split" / split_name)
    (folder / "RELEASE_v1.txt").touch()


def write_binary_set(folder: Path, save=np.savez, feature_dtype=np.float32, edge_order="C") -> None:
    raw = folder / "raw"
    raw.mkdir(parents=True)
    labels = LABELS[:, None].astype(np.float32)
    labels[::2] = np.nan
    save(
        raw / "data.npz",
        edge_index=np.array(EDGES.T, order=edge_order),
        node_feat=FEATURES.astype(feature_dtype),
        node_year=np.zeros((NUM_NODES, 1)),
        num_nodes_list=np.array([NUM_NODES]),
        num_edges_list=np.array([len(EDGES)]),
    )
    save(raw / "node-label.npz", node_label=labels)
    write_split(folder / "split" / "time")


def zipped(write, folder_in_archive: str, tmp_path: Path, **flags) -> bytes:
    write(tmp_path / "zipped" / folder_in_archive, **flags)
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w") as file:
        for path in sorted((tmp_path / "zipped").rglob("*")):
            file.write(path, path.relative_to(tmp_path / "zipped"))
    shutil.rmtree(tmp_path / "zipped")
    return content.getvalue()


@pytest.fixture
def root(tmp_path):
    return tmp_path / "data"


@pytest.fixture(autouse=True)
def nobody_to_ask_and_no_network(monkeypatch):
    def no_network(*_):
        raise urllib.error.URLError("no network")

    monkeypatch.setattr(builtins, "input", lambda *_: pytest.fail("asked on the terminal"))
    monkeypatch.setattr(import_ogb("ogb.utils.url").ur, "urlopen", no_network)


def files_under(root):
    return sorted(path.relative_to(root).as_posix() for path in root.rglob("*") if path.is_file())


def assert_is_the_graph(dataset):
    dense = np.zeros((NUM_NODES, NUM_NODES))
    for a, b in EDGES:
        dense[a, b] = dense[b, a] = a != b
    indptr, indices = csc(dataset.graph)
    rows = [row.tolist() for row in indices.split(indptr.diff().tolist())]
    assert rows == [np.flatnonzero(row).tolist() for row in dense]


@pytest.mark.parametrize(("name", "archive", "split_name"), CSV_SETS)
def test_text_form(root, capfd, name, archive, split_name):
    write_csv_set(root / name.replace("-", "_"), split_name)
    dataset = load_dataset(name, root)
    assert_is_the_graph(dataset)
    np.testing.assert_array_equal(dataset.features.numpy(), FEATURES)
    np.testing.assert_array_equal(dataset.labels.numpy(), LABELS)
    assert dataset.train_ids.tolist() == [3, 5, 7]
    assert dataset.val_ids.tolist() == [0, 1]
    assert dataset.test_ids.tolist() == [10, 38, 39]
    assert dataset.num_classes == {"ogbn-arxiv": 40, "ogbn-products": 47}[name]
    assert dataset.name == dataset.evaluator_name == name
    assert capfd.readouterr().out == ""


def test_text_form_holds_what_ogb_reads(root, capfd):
    write_csv_set(root / "ogbn_arxiv", "time")
    (theirs,) = import_ogb("ogb.io.read_graph_raw").read_csv_graph_raw(str(root / "ogbn_arxiv" / "raw"))
    ours = load_dataset("ogbn-arxiv", root)
    np.testing.assert_array_equal(ours.features.numpy(), theirs["node_feat"])
    sources, destinations = (ends.numpy() for ends in ours.graph.edges())
    our_edges = set(zip(sources, destinations, strict=True))
    assert {(a, b) for a, b in theirs["edge_index"].T if a != b} <= our_edges


@pytest.mark.parametrize(("name", "source"), ogb_datasets.SOURCES.items())
def test_sources_are_those_of_ogb(name, source):
    nodeproppred = Path(import_ogb("ogb.nodeproppred").__file__).parent
    theirs = pd.read_csv(nodeproppred / "master.csv", index_col=0, keep_default_na=False)[name]
    assert source.archive_name == theirs["download_name"]
    assert f"{ogb_datasets.ARCHIVE_FOLDER_URL}/{source.archive_name}.zip" == theirs["url"]
    assert source.num_classes == int(theirs["num classes"])
    assert source.split_name == theirs["split"]
    assert str(source.is_binary) == theirs["binary"]


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
@pytest.mark.parametrize("feature_dtype", [np.float32, np.float16])
@pytest.mark.parametrize("edge_order", ["C", "F"])
def test_binary_form(root, monkeypatch, save, feature_dtype, edge_order):
    monkeypatch.setattr(ogb_raw_files, "ROWS_PER_CHUNK", 7)
    monkeypatch.setattr(npz_archive, "ITEMS_PER_CHUNK", 11)
    write_binary_set(root / "ogbn_papers100M", save, feature_dtype, edge_order)
    dataset = load_dataset("ogbn-papers100M", root)
    assert_is_the_graph(dataset)
    assert dataset.features.dtype == torch.float32
    np.testing.assert_array_equal(dataset.features.numpy(), FEATURES.astype(feature_dtype).astype(np.float32))
    expected = np.where(np.arange(NUM_NODES) % 2 == 0, -1, LABELS)
    np.testing.assert_array_equal(dataset.labels.numpy(), expected)
    assert (dataset.train_ids.tolist(), dataset.val_ids.tolist()) == ([3, 5, 7], [1])
    assert dataset.test_ids.tolist() == [39]
    assert dataset.num_classes == 172


@pytest.mark.parametrize("name", ["ogbn-arxiv", "ogbn-papers100M"])
def test_second_load_needs_no_raw_files(root, name):
    folder = root / name.replace("-", "_")
    write_csv_set(folder, "time") if name == "ogbn-arxiv" else write_binary_set(folder)
    first = load_dataset(name, root)
    shutil.rmtree(folder)
    second = load_dataset(name, root)
    assert_is_the_graph(second)
    assert torch.equal(first.features, second.features)
    assert torch.equal(first.labels, second.labels)
    assert second.evaluator_name == name


def test_processed_files_of_ogb_are_not_opened(root, monkeypatch):
    write_csv_set(root / "ogbn_arxiv", "time")
    for path in ("processed/data_processed", "processed/dgl_data_processed", "split/time/split_dict.pt"):
        (root / "ogbn_arxiv" / path).parent.mkdir(exist_ok=True)
        (root / "ogbn_arxiv" / path).write_bytes(b"a pickle that could do anything")
    monkeypatch.setattr(torch, "load", lambda *_, **__: pytest.fail("torch.load"))
    assert_is_the_graph(load_dataset("ogbn-arxiv", root))


def test_labels_that_are_missing_in_text_are_minus_one(root):
    labels = LABELS.astype(float)
    labels[[0, 7]] = np.nan
    write_csv_set(root / "ogbn_arxiv", "time", labels=labels)
    dataset = load_dataset("ogbn-arxiv", root)
    np.testing.assert_array_equal(dataset.labels.numpy(), np.where(np.isnan(labels), -1, LABELS))
    assert (dataset.train_ids.tolist(), dataset.val_ids.tolist()) == ([3, 5], [1])


def test_archive_put_there_by_hand_is_unpacked_and_kept(root, tmp_path):
    root.mkdir()
    (root / "arxiv.zip").write_bytes(zipped(write_csv_set, "arxiv", tmp_path, split_name="time"))
    assert_is_the_graph(load_dataset("ogbn-arxiv", root))
    assert {path.name for path in root.iterdir()} == {"arxiv.zip", "ogbn_arxiv", "ogbn-arxiv"}


class Answer(io.BytesIO):
    def info(self):
        return {"Content-Length": len(self.getvalue())}


def test_download_goes_through_ogb_and_leaves_no_archive(root, tmp_path, monkeypatch):
    archive = zipped(write_binary_set, "papers100M-bin", tmp_path)
    asked = []
    monkeypatch.setattr(import_ogb("ogb.utils.url").ur, "urlopen", lambda url: asked.append(url) or Answer(archive))
    assert_is_the_graph(load_dataset("ogbn-papers100M", root))
    assert asked == ["http://snap.stanford.edu/ogb/data/nodeproppred/papers100M-bin.zip"]
    assert {path.name for path in root.iterdir()} == {"ogbn_papers100M", "ogbn-papers100M"}


@pytest.mark.parametrize(("name", "archive", "_"), [*CSV_SETS, ("ogbn-papers100M", "papers100M-bin", "")])
def test_without_network_one_line_says_what_to_put_where(root, capfd, name, archive, _):
    with pytest.raises(BettyError, match=rf"cannot download {archive}\.zip .*put it into {root}") as error:
        load_dataset(name, root)
    assert "\n" not in str(error.value)
    assert capfd.readouterr().out == ""
    assert files_under(root) == [f"{name}/.lock"]


def test_download_that_breaks_off_leaves_nothing(root, tmp_path, monkeypatch):
    archive = zipped(write_csv_set, "arxiv", tmp_path, split_name="time")

    class BreaksOff(Answer):
        def read(self, *_):
            raise ConnectionResetError

    monkeypatch.setattr(import_ogb("ogb.utils.url").ur, "urlopen", lambda _: BreaksOff(archive))
    with pytest.raises(BettyError, match=r"cannot download arxiv\.zip"):
        load_dataset("ogbn-arxiv", root)
    assert files_under(root) == ["ogbn-arxiv/.lock"]


def test_what_a_killed_download_left_is_cleared(root, tmp_path):
    (root / "ogbn_arxiv.partial" / "arxiv" / "raw").mkdir(parents=True)
    (root / "ogbn_arxiv.partial" / "arxiv.zip").write_bytes(b"half of it")
    (root / "arxiv.zip").write_bytes(zipped(write_csv_set, "arxiv", tmp_path, split_name="time"))
    assert_is_the_graph(load_dataset("ogbn-arxiv", root))
    assert not (root / "ogbn_arxiv.partial").exists()


@pytest.mark.parametrize(("folder", "keep"), [("arxiv", 500), ("something-else", None)])
def test_cut_or_wrong_archive_is_refused_by_name(root, tmp_path, folder, keep):
    root.mkdir()
    (root / "arxiv.zip").write_bytes(zipped(write_csv_set, folder, tmp_path, split_name="time")[:keep])
    with pytest.raises(BettyError, match=r"arxiv\.zip is not the whole archive of OGB's arxiv"):
        load_dataset("ogbn-arxiv", root)
    assert files_under(root) == ["arxiv.zip", "ogbn-arxiv/.lock"]


def test_encrypted_archive_is_refused_by_name(root, tmp_path):
    root.mkdir()
    content = zipped(write_csv_set, "arxiv", tmp_path, split_name="time")
    is_encrypted = b"\x01"
    for signature, offset in ((b"PK\x03\x04", 6), (b"PK\x01\x02", 8)):
        start = content.rfind(signature) + offset
        content = content[:start] + is_encrypted + content[start + 1 :]
    (root / "arxiv.zip").write_bytes(content)
    with pytest.raises(BettyError, match=r"arxiv\.zip is not the whole archive .*RuntimeError: .* is encrypted"):
        load_dataset("ogbn-arxiv", root)


def test_download_and_unpacking_happen_under_the_lock_of_the_data_set(root, tmp_path, monkeypatch):
    archive = zipped(write_csv_set, "arxiv", tmp_path, split_name="time")

    def answer(_):
        with pytest.raises(BettyError, match="another process is writing"):
            hold_lock(root / "ogbn-arxiv")
        return Answer(archive)

    monkeypatch.setattr(import_ogb("ogb.utils.url").ur, "urlopen", answer)
    assert_is_the_graph(load_dataset("ogbn-arxiv", root))
    hold_lock(root / "ogbn-arxiv").close()


RAW_FILES = ["raw/node-feat", "raw/node-label", "raw/num-node-list", "split/time/train"]


@pytest.mark.parametrize("name", ["raw/edge", *RAW_FILES])
def test_cut_text_file_is_refused_by_name(root, name):
    write_csv_set(root / "ogbn_arxiv", "time")
    path = root / "ogbn_arxiv" / f"{name}.csv.gz"
    path.write_bytes(path.read_bytes()[:-9])
    with pytest.raises(BettyError, match=rf"{name}\.csv\.gz does not load"):
        load_dataset("ogbn-arxiv", root)
    assert not (root / "ogbn-arxiv" / "dataset.safetensors").exists()


@pytest.mark.parametrize("name", RAW_FILES)
def test_missing_text_file_is_refused_by_name(root, name):
    write_csv_set(root / "ogbn_arxiv", "time")
    (root / "ogbn_arxiv" / f"{name}.csv.gz").unlink()
    with pytest.raises(BettyError, match=rf"{name}\.csv\.gz does not load"):
        load_dataset("ogbn-arxiv", root)


def test_folder_without_edges_is_refused(root):
    (root / "ogbn_arxiv" / "raw").mkdir(parents=True)
    with pytest.raises(BettyError, match=r"ogbn_arxiv is there, but raw/edge\.csv\.gz is not in it"):
        load_dataset("ogbn-arxiv", root)


def test_cut_binary_file_is_refused_by_name(root):
    write_binary_set(root / "ogbn_papers100M")
    path = root / "ogbn_papers100M" / "raw" / "data.npz"
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(BettyError, match=r"data\.npz does not load"):
        load_dataset("ogbn-papers100M", root)


@pytest.mark.parametrize(
    ("name", "rows", "message"),
    [
        ("raw/num-node-list", ["many"], "ValueError"),
        ("raw/num-node-list", ["nan"], "ValueError"),
        ("raw/num-node-list", [-1], "-1 is no number of nodes"),
        ("raw/num-node-list", [10**18], "10+ is no number of nodes"),
        ("raw/num-node-list", [10**30], "Error"),
        ("raw/num-node-list", [NUM_NODES + 1], None),
        ("raw/edge", [[0], [1]], "1 columns, not 2"),
        ("raw/edge", [[0, 0.5]], "ValueError"),
        ("raw/edge", [[0, 2**32]], "Error"),
        ("raw/node-label", ["a"] * NUM_NODES, "ValueError"),
        ("raw/node-label", [0.5] * NUM_NODES, "labels that are not whole numbers"),
        ("raw/node-label", ["inf"] * NUM_NODES, "labels that are not whole numbers"),
        ("raw/node-label", [0], "1 labels for 40 nodes"),
        ("raw/node-feat", ["a"] * NUM_NODES, "ValueError"),
        ("split/time/train", ["a"], "ValueError"),
        ("split/time/valid", [0.5], "ValueError"),
        ("split/time/test", ["nan"], "ValueError"),
    ],
)
def test_text_file_with_wrong_values_is_refused_by_name(root, name, rows, message):
    write_csv_set(root / "ogbn_arxiv", "time")
    write_csv(root / "ogbn_arxiv" / f"{name}.csv.gz", rows)
    if message is None:
        name, message = "raw/node-label", "40 labels for 41 nodes"
    with pytest.raises(BettyError, match=rf"{name}\.csv\.gz does not load .*{message}") as error:
        load_dataset("ogbn-arxiv", root)
    assert "\n" not in str(error.value)


BINARY = {
    "edge_index": EDGES.T,
    "node_feat": FEATURES,
    "num_nodes_list": np.array([NUM_NODES]),
}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"num_nodes_list": np.array([-1])}, "-1 is no number of nodes"),
        ({"num_nodes_list": np.array([40.0])}, "40.0 is no number of nodes"),
        ({"num_nodes_list": np.array(40)}, "Error"),
        ({"num_nodes_list": np.array(["a"])}, "a is no number of nodes"),
        ({"edge_index": EDGES}, r"edge_index is int64 \[90, 2\] and not integer \[2, E\]"),
        ({"edge_index": EDGES.T + 0.5}, "edge_index is float64"),
        ({"edge_index": np.array([[0], [2**32]])}, "node ids from 0 to 4294967296 for 40 nodes"),
        ({"node_feat": FEATURES[:, 0]}, "Error"),
        ({"node_feat": FEATURES.astype(str)}, "node_feat is <U32 and not numbers"),
    ],
)
def test_binary_file_with_wrong_arrays_is_refused_by_name(root, change, message):
    write_binary_set(root / "ogbn_papers100M")
    np.savez(root / "ogbn_papers100M" / "raw" / "data.npz", **(BINARY | change))
    with pytest.raises(BettyError, match=rf"data\.npz does not load .*{message}"):
        load_dataset("ogbn-papers100M", root)


@pytest.mark.parametrize("name", ["data", "node-label"])
def test_lone_array_in_place_of_a_binary_file_is_refused_by_name(root, name):
    write_binary_set(root / "ogbn_papers100M")
    with open(root / "ogbn_papers100M" / "raw" / f"{name}.npz", "wb") as file:
        np.save(file, EDGES)
    with pytest.raises(BettyError, match=rf"{name}\.npz does not load"):
        load_dataset("ogbn-papers100M", root)


def test_edges_out_of_range_are_refused(root):
    write_csv_set(root / "ogbn_arxiv", "time")
    write_csv(root / "ogbn_arxiv" / "raw" / "edge.csv.gz", [[0, NUM_NODES]])
    with pytest.raises(BettyError, match=r"edge\.csv\.gz does not load .*node ids from 0 to 40 for 40 nodes"):
        load_dataset("ogbn-arxiv", root)
