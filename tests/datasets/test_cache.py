import json
import logging
from contextlib import contextmanager

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from betty.datasets import cache
from betty.datasets.cache import FORMAT_VERSION, load_or_make, read_cache, write_cache
from betty.datasets.graph import csc
from betty.datasets.splits import Split
from betty.errors import BettyError

MADE_FROM = {"seed": 1, "split": [2, 1, 0]}
FEATURES = np.arange(12, dtype=np.float32).reshape(3, 4)


def write(folder, made_from=MADE_FROM, chunks=(FEATURES[:2], FEATURES[2:])):
    none = torch.empty(0, dtype=torch.int64)
    write_cache(
        folder,
        made_from,
        (torch.tensor([0, 1, 2, 2]), torch.tensor([1, 0])),
        torch.tensor([0, 1, 1]),
        Split(torch.tensor([0, 2]), torch.tensor([1]), none),
        2,
        iter(chunks),
    )


def test_what_was_written_is_read(tmp_path):
    write(tmp_path / "set")
    dataset = read_cache(tmp_path / "set", MADE_FROM, "set", "ogbn-arxiv")
    assert (dataset.name, dataset.num_classes, dataset.evaluator_name) == ("set", 2, "ogbn-arxiv")
    np.testing.assert_array_equal(dataset.features.numpy(), FEATURES)
    assert [tensor.tolist() for tensor in csc(dataset.graph)] == [[0, 1, 2, 2], [1, 0]]
    assert dataset.labels.tolist() == [0, 1, 1]
    assert [ids.tolist() for ids in (dataset.train_ids, dataset.val_ids, dataset.test_ids)] == [[0, 2], [1], []]
    assert {path.name for path in (tmp_path / "set").iterdir()} == {
        "features.npy",
        "graph.safetensors",
        "dataset.json",
    }


def test_writing_into_features_does_not_reach_the_file(tmp_path):
    write(tmp_path)
    read_cache(tmp_path, MADE_FROM, "set").features.zero_()
    np.testing.assert_array_equal(read_cache(tmp_path, MADE_FROM, "set").features.numpy(), FEATURES)


def test_nothing_there_is_none(tmp_path):
    assert read_cache(tmp_path / "set", MADE_FROM, "set") is None


@pytest.mark.parametrize("name", ["features.npy", "graph.safetensors"])
@pytest.mark.parametrize("keep", [0, 10, -1])
def test_a_cut_file_is_made_again(tmp_path, caplog, name, keep):
    write(tmp_path)
    whole = (tmp_path / name).read_bytes()
    (tmp_path / name).write_bytes(whole[:keep])
    with caplog.at_level(logging.INFO, logger="betty"):
        dataset = load_or_make(tmp_path, MADE_FROM, lambda: write(tmp_path), "set")
    assert dataset.num_nodes == 3
    assert (tmp_path / name).read_bytes() == whole
    assert f"lacks {name} or has it cut; it is made again" in caplog.text


def test_a_missing_file_is_made_again(tmp_path):
    write(tmp_path)
    (tmp_path / "features.npy").unlink()
    assert read_cache(tmp_path, MADE_FROM, "set") is None


def test_a_file_of_the_right_size_that_is_not_safetensors_is_made_again(tmp_path):
    write(tmp_path)
    path = tmp_path / "graph.safetensors"
    path.write_bytes(b"\xff" * path.stat().st_size)
    assert read_cache(tmp_path, MADE_FROM, "set") is None


def test_other_flags_are_made_again(tmp_path):
    write(tmp_path)
    assert read_cache(tmp_path, {**MADE_FROM, "seed": 2}, "set") is None


def test_what_is_there_is_not_made_again(tmp_path):
    write(tmp_path)
    dataset = load_or_make(tmp_path, MADE_FROM, lambda: pytest.fail("made again"), "set")
    assert dataset.name == "set"


def test_a_newer_format_is_refused_by_name(tmp_path):
    write(tmp_path)
    manifest = json.loads((tmp_path / "dataset.json").read_text())
    (tmp_path / "dataset.json").write_text(json.dumps({**manifest, "format_version": FORMAT_VERSION + 1}))
    with pytest.raises(BettyError, match=r"dataset\.json has format 2, newer than this Betty's 1"):
        read_cache(tmp_path, MADE_FROM, "set")


def assert_is_made_again(folder, caplog):
    with caplog.at_level(logging.INFO, logger="betty"):
        dataset = load_or_make(folder, MADE_FROM, lambda: write(folder), "set")
    assert dataset.labels.tolist() == [0, 1, 1]
    assert [tensor.tolist() for tensor in csc(dataset.graph)] == [[0, 1, 2, 2], [1, 0]]
    (line,) = [line for line in caplog.messages if "it is made again" in line]
    assert str(folder) in line
    assert "\n" not in line


@pytest.mark.parametrize(
    "text",
    ["", '{"format_ver', "[]", "null", "7", "[" * 100_000, '{"format_version": "x"}', '{"format_version": null}', "{}"],
    ids=lambda text: text[:20],
)
def test_a_manifest_that_is_none_is_made_again(tmp_path, caplog, text):
    write(tmp_path)
    (tmp_path / "dataset.json").write_text(text)
    assert_is_made_again(tmp_path, caplog)


@pytest.mark.parametrize("key", ["format_version", "made_from", "num_classes", "bytes"])
@pytest.mark.parametrize("value", [None, [], "x", {}, -1])
def test_a_manifest_with_a_wrong_entry_is_made_again(tmp_path, caplog, key, value):
    write(tmp_path)
    manifest = json.loads((tmp_path / "dataset.json").read_text())
    (tmp_path / "dataset.json").write_text(json.dumps({**manifest, key: value}))
    assert_is_made_again(tmp_path, caplog)


def wrong(key, values, dtype=torch.int64):
    return lambda tensors: tensors | {key: torch.tensor(values, dtype=dtype)}


@pytest.mark.parametrize(
    "change",
    [
        pytest.param(lambda tensors: {f"{key}s": value for key, value in tensors.items()}, id="other names"),
        pytest.param(wrong("more", [1]), id="one more"),
        pytest.param(wrong("indices", [1, 3]), id="node id too large"),
        pytest.param(wrong("indices", [1, -1]), id="node id negative"),
        pytest.param(wrong("indices", [1, 0], torch.int32), id="other dtype"),
        pytest.param(wrong("indptr", [0, 1, 2, 3]), id="pointer beyond the edges"),
        pytest.param(wrong("indptr", [0, 2**63 - 1, -2, 2]), id="pointers whose differences overflow"),
        pytest.param(wrong("indptr", [1, 1, 2, 2]), id="pointers that do not begin at 0"),
        pytest.param(wrong("indptr", [0, 2, 1, 2]), id="pointers that descend"),
        pytest.param(wrong("indptr", []), id="no pointers"),
        pytest.param(wrong("labels", [0, 1, 2]), id="label too large"),
        pytest.param(wrong("labels", [0, 1]), id="too few labels"),
        pytest.param(wrong("train_ids", [0, 3]), id="training node too large"),
        pytest.param(wrong("train_ids", [[0], [2]]), id="training nodes in two dimensions"),
    ],
)
def test_tensors_that_make_no_data_set_are_made_again(tmp_path, caplog, change):
    write(tmp_path)
    path = tmp_path / "graph.safetensors"
    save_file(change(load_file(path)), path)
    manifest = json.loads((tmp_path / "dataset.json").read_text())
    manifest["bytes"][path.name] = path.stat().st_size
    (tmp_path / "dataset.json").write_text(json.dumps(manifest))
    assert_is_made_again(tmp_path, caplog)


@pytest.mark.parametrize("header", [b"\xff" * 128, b"\x93NUMPY\x01\x00\x76\x00" + b"(" * 118])
def test_features_with_a_damaged_header_are_made_again(tmp_path, caplog, header):
    write(tmp_path)
    path = tmp_path / "features.npy"
    path.write_bytes(header + path.read_bytes()[128:])
    assert_is_made_again(tmp_path, caplog)


def test_what_another_process_made_meanwhile_is_not_made_again(tmp_path, monkeypatch):
    @contextmanager
    def waits_for_another_that_makes_it(folder):
        write(folder)
        yield

    monkeypatch.setattr(cache, "locked", waits_for_another_that_makes_it)
    assert load_or_make(tmp_path / "set", MADE_FROM, lambda: pytest.fail("made again"), "set").num_nodes == 3


def test_it_is_made_under_the_lock_on_its_folder_and_read_without(tmp_path, monkeypatch):
    events = []

    @contextmanager
    def recorded(folder):
        events.append(f"lock {folder.name}")
        yield
        events.append("unlock")

    def make():
        events.append("make")
        write(tmp_path / "set")

    monkeypatch.setattr(cache, "locked", recorded)
    for _ in range(2):
        load_or_make(tmp_path / "set", MADE_FROM, make, "set")
    assert events == ["lock set", "make", "unlock"]


def test_what_is_broken_right_after_it_was_made_is_refused_in_one_line(tmp_path):
    def make():
        write(tmp_path)
        (tmp_path / "features.npy").write_bytes(b"")

    with pytest.raises(BettyError, match=r"lacks features\.npy or has it cut"):
        load_or_make(tmp_path, MADE_FROM, make, "set")


@pytest.mark.parametrize("place", ["file/set", "n" * 5000])
def test_folder_that_cannot_be_written_to_is_refused_in_one_line(tmp_path, place):
    (tmp_path / "file").touch()
    with pytest.raises(BettyError, match=r"cannot write to .*; choose another data root") as error:
        load_or_make(tmp_path / place, MADE_FROM, lambda: pytest.fail("made"), "set")
    assert "\n" not in str(error.value)


def test_a_writer_that_dies_half_way_leaves_no_data_set(tmp_path):
    write(tmp_path)

    def dying_chunks():
        yield FEATURES[:2]
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write(tmp_path, chunks=dying_chunks())
    assert read_cache(tmp_path, MADE_FROM, "set") is None
    assert not list(tmp_path.glob("*.partial"))


def test_too_few_rows_of_features_are_refused(tmp_path):
    with pytest.raises(BettyError, match="2 rows of node features for 3 nodes"):
        write(tmp_path, chunks=[FEATURES[:2]])
    assert read_cache(tmp_path, MADE_FROM, "set") is None
