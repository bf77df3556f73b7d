import json
import logging

import numpy as np
import pytest
import torch

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
        torch.tensor([0, 1, -1]),
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
    assert dataset.labels.tolist() == [0, 1, -1]
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
    load_or_make(tmp_path, MADE_FROM, lambda: pytest.fail("made again"), "set")


def test_a_newer_format_is_refused_by_name(tmp_path):
    write(tmp_path)
    manifest = json.loads((tmp_path / "dataset.json").read_text())
    (tmp_path / "dataset.json").write_text(json.dumps({**manifest, "format_version": FORMAT_VERSION + 1}))
    with pytest.raises(BettyError, match=r"dataset\.json has format 2, newer than this Betty's 1"):
        read_cache(tmp_path, MADE_FROM, "set")


def test_a_manifest_that_is_not_json_is_refused_by_name(tmp_path):
    write(tmp_path)
    (tmp_path / "dataset.json").write_text('{"format_ver')
    with pytest.raises(BettyError, match=r"dataset\.json is not a JSON file"):
        read_cache(tmp_path, MADE_FROM, "set")


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
