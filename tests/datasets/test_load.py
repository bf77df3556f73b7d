import subprocess
import sys

import pytest
import torch

import betty.datasets
from betty.datasets import DATASET_NAMES, csc, load_dataset
from betty.errors import BettyError


def test_unknown_name_is_refused_with_all_that_are_known(tmp_path):
    with pytest.raises(BettyError, match="no data set 'coral'") as error:
        load_dataset("coral", tmp_path)
    assert all(name in str(error.value) for name in DATASET_NAMES)
    assert ".npz" in str(error.value)


def test_average_degree_of_a_real_data_set_is_refused(tmp_path):
    with pytest.raises(BettyError, match="not for karate"):
        load_dataset("karate", tmp_path, average_degree=4)


def test_second_split_of_a_data_set_with_one_is_refused(tmp_path):
    with pytest.raises(BettyError, match="there is no split 1"):
        load_dataset("karate", tmp_path, split=1)


def test_root_is_the_folder_data_by_default(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    load_dataset("synthetic-tiny")
    assert (tmp_path / "data" / "synthetic-tiny-seed-0" / "dataset.safetensors").exists()


def test_karate_needs_no_download(tmp_path):
    dataset = load_dataset("karate", tmp_path)
    indptr, indices = csc(dataset.graph)
    assert dataset.graph.num_edges() == 2 * 78
    # The instructor's and the president's neighbours, counted by Zachary.
    assert indptr.diff()[[0, 33]].tolist() == [16, 17]
    assert 33 not in indices[: indptr[1]]
    assert torch.equal(dataset.features, torch.eye(34))
    assert dataset.labels[[0, 33]].tolist() == [0, 1]
    assert [ids.numel() for ids in (dataset.train_ids, dataset.val_ids, dataset.test_ids)] == [20, 7, 7]
    assert not torch.equal(dataset.train_ids, load_dataset("karate", tmp_path, seed=1).train_ids)


def test_karate_leaves_home_folder_and_network_alone(tmp_path):
    program = """
import sys
from betty.datasets import load_dataset
load_dataset("karate", sys.argv[1])
assert sys.modules["ogb.version"].check_outdated is None, "OGB asks for its newest version"
"""
    source_root = betty.datasets.__file__.rsplit("/betty/", 1)[0]
    finished = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path / "data")],
        env={"HOME": str(tmp_path / "home"), "PYTHONPATH": source_root},
        capture_output=True,
        text=True,
    )
    assert (finished.returncode, finished.stdout, finished.stderr) == (0, "", "")
    assert not (tmp_path / "home").exists()
