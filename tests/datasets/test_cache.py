import copy
import json
import logging
from contextlib import contextmanager

import numpy as np
import pytest
import torch

from betty.datasets import cache
from betty.datasets.cache import FILE, FORMAT_VERSION, load_or_make, write_cache
from betty.datasets.graph import csc, graph_fingerprint
from betty.datasets.splits import Split
from betty.envelope import Rows, tensor_digest, write_sealed
from betty.errors import BettyError

MADE_FROM = {"seed": 1, "split": [2, 1, 0]}
FEATURES = np.arange(12, dtype=np.float32).reshape(3, 4)
NONE = torch.empty(0, dtype=torch.int64)


def write(folder, made_from=MADE_FROM, chunks=(FEATURES[:2], FEATURES[2:])):
    write_cache(
        folder,
        made_from,
        (torch.tensor([0, 1, 2, 2]), torch.tensor([1, 0])),
        torch.tensor([0, 1, 1]),
        Split(torch.tensor([0, 2]), torch.tensor([1]), NONE),
        2,
        iter(chunks),
    )


def load(folder, made_from=MADE_FROM):
    return load_or_make(folder, made_from, lambda: pytest.fail("made again"), "set")


def test_what_was_written_is_read(tmp_path):
    write(tmp_path / "set")
    dataset = load_or_make(tmp_path / "set", MADE_FROM, lambda: pytest.fail("made again"), "set", "ogbn-arxiv")
    assert (dataset.name, dataset.num_classes, dataset.evaluator_name) == ("set", 2, "ogbn-arxiv")
    np.testing.assert_array_equal(dataset.features.numpy(), FEATURES)
    assert [tensor.tolist() for tensor in csc(dataset.graph)] == [[0, 1, 2, 2], [1, 0]]
    assert dataset.labels.tolist() == [0, 1, 1]
    assert [ids.tolist() for ids in (dataset.train_ids, dataset.val_ids, dataset.test_ids)] == [[0, 2], [1], []]
    assert {path.name for path in (tmp_path / "set").iterdir()} == {FILE}


def test_fingerprints_are_those_of_the_content(tmp_path):
    write(tmp_path)
    dataset = load(tmp_path)
    assert dataset.fingerprints() == {
        "graph": graph_fingerprint(dataset.graph),
        "features": tensor_digest(dataset.features),
        "labels": tensor_digest(dataset.labels),
        "train_ids": tensor_digest(dataset.train_ids),
        "val_ids": tensor_digest(dataset.val_ids),
        "test_ids": tensor_digest(dataset.test_ids),
    }


def test_writing_into_features_does_not_reach_the_file(tmp_path):
    write(tmp_path)
    load(tmp_path).features.zero_()
    np.testing.assert_array_equal(load(tmp_path).features.numpy(), FEATURES)


def test_files_of_somebody_else_in_the_folder_stay(tmp_path):
    (tmp_path / "features.npy").write_bytes(b"mine")
    load_or_make(tmp_path, MADE_FROM, lambda: write(tmp_path), "set")
    assert (tmp_path / "features.npy").read_bytes() == b"mine"


def assert_is_made_again(folder, caplog):
    """By one notice, whatever is looked at first."""
    with caplog.at_level(logging.INFO, logger="betty"):
        dataset = load_or_make(folder, MADE_FROM, lambda: write(folder), "set")
        np.testing.assert_array_equal(dataset.features.numpy(), FEATURES)
        assert [tensor.tolist() for tensor in csc(dataset.graph)] == [[0, 1, 2, 2], [1, 0]]
    assert dataset.labels.tolist() == [0, 1, 1]
    (line,) = [line for line in caplog.messages if "it is made again" in line]
    assert str(folder / FILE) in line
    assert "\n" not in line
    load(folder)


def bits(folder):
    """Where each tensor's bytes begin and end."""
    content = (folder / FILE).read_bytes()
    length = int.from_bytes(content[:8], "little")
    header = json.loads(content[8 : 8 + length])
    return {
        name: [8 + length + offset for offset in entry["data_offsets"]]
        for name, entry in header.items()
        if name != "__metadata__"
    }


@pytest.mark.parametrize("name", ["features", "labels", "indptr", "indices", "train_ids", "val_ids"])
@pytest.mark.parametrize("end", [0, -1])
def test_a_flipped_bit_is_made_again(tmp_path, caplog, name, end):
    write(tmp_path)
    whole = bytearray((tmp_path / FILE).read_bytes())
    start, stop = bits(tmp_path)[name]
    flipped = bytearray(whole)
    flipped[start if end == 0 else stop - 1] ^= 1
    (tmp_path / FILE).write_bytes(flipped)
    assert_is_made_again(tmp_path, caplog)
    assert (tmp_path / FILE).read_bytes() == whole


@pytest.mark.parametrize("keep", [0, 10, -1])
def test_a_cut_file_is_made_again(tmp_path, caplog, keep):
    write(tmp_path)
    (tmp_path / FILE).write_bytes((tmp_path / FILE).read_bytes()[:keep])
    assert_is_made_again(tmp_path, caplog)


def test_a_folder_in_the_place_of_the_file_is_refused_in_one_line(tmp_path):
    (tmp_path / FILE).mkdir()
    with pytest.raises(BettyError, match="cannot write to") as error:
        load_or_make(tmp_path, MADE_FROM, lambda: write(tmp_path), "set")
    assert "\n" not in str(error.value)


def test_other_flags_are_made_again(tmp_path, caplog):
    write(tmp_path, {**MADE_FROM, "seed": 2})
    assert_is_made_again(tmp_path, caplog)


def test_a_newer_format_is_refused_by_name(tmp_path):
    write(tmp_path, {**MADE_FROM, "format_version": FORMAT_VERSION + 1})
    with pytest.raises(BettyError, match=rf"{FILE} has format {FORMAT_VERSION + 1}, newer than this Betty's"):
        load(tmp_path)


GOOD = {
    "indptr": torch.tensor([0, 1, 2, 2]),
    "indices": torch.tensor([1, 0]),
    "labels": torch.tensor([0, 1, 1]),
    "train_ids": torch.tensor([0, 2]),
    "val_ids": torch.tensor([1]),
    "test_ids": NONE,
    "features": torch.from_numpy(FEATURES),
}


def wrong(key, values, dtype=torch.int64):
    return GOOD | {key: torch.tensor(values, dtype=dtype)}


@pytest.mark.parametrize(
    "tensors",
    [
        pytest.param({f"{key}s": value for key, value in GOOD.items()}, id="other names"),
        pytest.param(wrong("more", [1]), id="one more"),
        pytest.param(wrong("indices", [1, 0], torch.int32), id="other dtype"),
        pytest.param(wrong("indptr", []), id="no pointers"),
        pytest.param(wrong("labels", [0, 1, 2]), id="label too large"),
        pytest.param(wrong("labels", [0, 1]), id="too few labels"),
        pytest.param(wrong("train_ids", [0, 3]), id="training node too large"),
        pytest.param(wrong("train_ids", [[0], [2]]), id="training nodes in two dimensions"),
        pytest.param(wrong("features", [[1.0], [2.0]], torch.float32), id="too few features"),
        pytest.param(wrong("features", [1.0, 2.0, 3.0], torch.float32), id="features in one dimension"),
        pytest.param(wrong("features", FEATURES.tolist(), torch.float64), id="wide features"),
    ],
)
def test_well_sealed_tensors_that_make_no_data_set_are_made_again(tmp_path, caplog, tensors):
    write_sealed(tmp_path / FILE, tensors, {"format_version": FORMAT_VERSION, **MADE_FROM}, {"num_classes": 2})
    assert_is_made_again(tmp_path, caplog)


@pytest.mark.parametrize(
    "tensors",
    [
        pytest.param(wrong("indices", [1, 3]), id="node id too large"),
        pytest.param(wrong("indices", [1, -1]), id="node id negative"),
        pytest.param(wrong("indptr", [0, 1, 2, 3]), id="pointer beyond the edges"),
        pytest.param(wrong("indptr", [0, 2**63 - 1, -2, 2]), id="pointers whose differences overflow"),
        pytest.param(wrong("indptr", [1, 1, 2, 2]), id="pointers that do not begin at 0"),
        pytest.param(wrong("indptr", [0, 2, 1, 2]), id="pointers that descend"),
    ],
)
def test_well_sealed_tensors_that_make_no_graph_are_refused_and_made_again_for_the_next_time(tmp_path, caplog, tensors):
    write_sealed(tmp_path / FILE, tensors, {"format_version": FORMAT_VERSION, **MADE_FROM}, {"num_classes": 2})
    dataset = load_or_make(tmp_path, MADE_FROM, lambda: write(tmp_path), "set")
    with pytest.raises(BettyError, match="is another data set than before; start again"):
        _ = dataset.graph
    assert "makes no data set" in caplog.text
    assert [tensor.tolist() for tensor in csc(load(tmp_path).graph)] == [[0, 1, 2, 2], [1, 0]]


@pytest.mark.parametrize("facts", [{}, {"num_classes": "2"}, {"num_classes": -1}, {"num_classes": [2]}])
def test_well_sealed_facts_that_make_no_data_set_are_made_again(tmp_path, caplog, facts):
    write_sealed(tmp_path / FILE, GOOD, {"format_version": FORMAT_VERSION, **MADE_FROM}, facts)
    assert_is_made_again(tmp_path, caplog)


def test_what_turns_out_damaged_and_is_made_again_as_another_data_set_is_refused(tmp_path):
    write(tmp_path)
    content = bytearray((tmp_path / FILE).read_bytes())
    content[bits(tmp_path)["features"][0]] ^= 1
    (tmp_path / FILE).write_bytes(content)
    dataset = load_or_make(tmp_path, MADE_FROM, lambda: write(tmp_path, chunks=[2 * FEATURES]), "set")
    with pytest.raises(BettyError, match="is another data set than before; start again"):
        _ = dataset.features


def test_what_another_process_made_meanwhile_is_not_made_again(tmp_path, monkeypatch):
    @contextmanager
    def waits_for_another_that_makes_it(folder):
        write(folder)
        yield

    monkeypatch.setattr(cache, "locked", waits_for_another_that_makes_it)
    assert load(tmp_path / "set").num_nodes == 3


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
        assert load_or_make(tmp_path / "set", MADE_FROM, make, "set").features.numel() == FEATURES.size
    assert events == ["lock set", "make", "unlock"]


def test_what_is_broken_right_after_it_was_made_is_refused_in_one_line(tmp_path):
    def make():
        write(tmp_path)
        (tmp_path / FILE).write_bytes(b"")

    with pytest.raises(BettyError, match=rf"{FILE} is damaged"):
        load_or_make(tmp_path, MADE_FROM, make, "set")


@pytest.mark.parametrize("place", ["file/set", "n" * 5000])
def test_folder_that_cannot_be_written_to_is_refused_in_one_line(tmp_path, place):
    (tmp_path / "file").touch()
    with pytest.raises(BettyError, match=r"cannot write to .*; choose another data root") as error:
        load(tmp_path / place)
    assert "\n" not in str(error.value)


def test_a_writer_that_dies_half_way_leaves_the_data_set_that_was_there(tmp_path):
    write(tmp_path)
    before = (tmp_path / FILE).read_bytes()

    def dying_chunks():
        yield FEATURES[:2]
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write(tmp_path, chunks=dying_chunks())
    assert (tmp_path / FILE).read_bytes() == before
    assert not list(tmp_path.glob("*.partial"))


def test_too_few_rows_of_features_are_refused(tmp_path):
    with pytest.raises(BettyError, match="2 rows of node features for 3 nodes"):
        write(tmp_path, chunks=[FEATURES[:2]])
    assert list(tmp_path.iterdir()) == []


def test_rows_are_written_one_chunk_after_the_other(tmp_path):
    alive = []

    def chunks():
        for row in range(3):
            alive.append(row)
            yield FEATURES[row : row + 1]

    rows = Rows(3, chunks())
    assert alive == []
    write_sealed(tmp_path / FILE, {"features": rows}, {})
    assert alive == [0, 1, 2]


def test_a_data_set_whose_checks_still_run_can_be_copied(tmp_path):
    write(tmp_path)
    copied = copy.deepcopy(load(tmp_path))
    np.testing.assert_array_equal(copied.features.numpy(), FEATURES)
    assert [tensor.tolist() for tensor in csc(copied.graph)] == [[0, 1, 2, 2], [1, 0]]
