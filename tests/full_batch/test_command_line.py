import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from betty import load_dataset
from betty.datasets import graph_fingerprint
from betty.full_batch import Recipe, SampledFullBatches, StoredFullBatches
from betty.full_batch.command_line import main
from betty.micro_batch_train import locality_order
from betty.micro_batch_train.command_line import main as train
from betty.micro_batch_train.stored_parts import StoredTensors
from tests.full_batch.graphs import assert_same_bits

FLAGS = ["--dataset", "karate", "--fan-out", "3,5", "--num-epochs", "2", "--batch-size", "7", "--seed", "11"]


def run(tmp_path: Path, *flags: str) -> None:
    main([*FLAGS, "--data-root", str(tmp_path / "data"), "--full-batch-root", str(tmp_path / "stored"), *flags])


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def folder(tmp_path: Path) -> Path:
    return tmp_path / "stored" / "karate" / "fan-out-3-5_seed-11_batch-size-7"


def test_what_the_command_stores_is_what_sampling_gives(tmp_path):
    run(tmp_path, "--quiet")

    dataset = load_dataset("karate", root=tmp_path / "data")
    recipe = Recipe.of("karate", graph_fingerprint(dataset.graph), dataset.train_ids, [3, 5], 11, 7)
    stored = StoredFullBatches(tmp_path / "stored", recipe)
    sampled = SampledFullBatches(dataset.graph, dataset.train_ids, [3, 5], 11, 7)
    assert stored.num_batches == sampled.num_batches > 1
    for epoch in range(2):
        for batch in range(sampled.num_batches):
            assert_same_bits(stored.load(epoch, batch), sampled.load(epoch, batch))


def test_sizes_and_speed_are_logged(tmp_path, capfd):
    run(tmp_path)
    first = capfd.readouterr().err
    run(tmp_path)
    second = capfd.readouterr().err

    assert re.search(r"wrote \d+ batches, [\d.]+ MiB, in [\d.]+ s: [\d.]+ MiB/s, [\d,]+ edges/s", first)
    assert re.search(r"holds \d+ batches, [\d.]+ MiB; on average \d+ input nodes, \d+ output nodes, \d+ edges", first)
    assert "stored already" in second


def test_the_locality_order_is_made_once_and_training_finds_it(tmp_path, capfd, monkeypatch):
    run(tmp_path)
    first = capfd.readouterr().err
    assert re.search(r"making the locality order of [\d,]+ training nodes, once\nmade .* order in [\d.]+ s", first)
    assert len(list((tmp_path / "stored" / "karate").glob("locality-order_*.safetensors"))) == 1

    monkeypatch.setattr(locality_order, "locality_leaves", None)
    run(tmp_path, "--fan-out", "2,2")
    assert "making the locality order" not in capfd.readouterr().err
    roots = ["--data-root", str(tmp_path / "data"), "--full-batch-root", str(tmp_path / "stored")]
    own = ["--selection-method", "locality", "--load-full-batch", "--output", str(tmp_path / "run")]
    train([*FLAGS, *roots, *own, "--quiet"])


def test_parts_beside_the_full_batches_do_not_disturb_them(tmp_path):
    run(tmp_path, "--quiet", "--num-epochs", "1")
    before = contents(folder(tmp_path))
    store = StoredTensors(folder(tmp_path) / "parts", {})
    store.save("parts-locality", {}, torch.arange(5))
    kept = store.load("parts-locality", {})

    run(tmp_path, "--quiet", "--num-epochs", "2")
    dataset = load_dataset("karate", root=tmp_path / "data")
    recipe = Recipe.of("karate", graph_fingerprint(dataset.graph), dataset.train_ids, [3, 5], 11, 7)
    StoredFullBatches(tmp_path / "stored", recipe).require_epochs(2)
    assert all((folder(tmp_path) / name).exists() for name in before)
    assert torch.equal(store.load("parts-locality", {}), kept)


def test_full_batches_are_stored_where_a_training_left_its_parts_before(tmp_path):
    StoredTensors(folder(tmp_path) / "parts", {}).save("parts-locality", {}, torch.arange(5))
    run(tmp_path, "--quiet")
    run(tmp_path / "other", "--quiet")
    shutil.rmtree(folder(tmp_path) / "parts")
    assert contents(folder(tmp_path)) == contents(folder(tmp_path / "other"))


def test_quiet_says_nothing(tmp_path, capfd):
    run(tmp_path, "--quiet")
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--fan-out", "3,0"], "at least 1, or -1"),
        (["--batch-size", "0"], "above 0"),
        (["--dataset", "no-such-graph"], "no-such-graph"),
        (["--full-batch-root", __file__], "is a file; choose another folder"),
    ],
)
def test_what_the_user_can_put_right_is_one_line_and_exit_code_2(tmp_path, capfd, flags, message):
    with pytest.raises(SystemExit) as exit_info:
        run(tmp_path, "--quiet", *flags)

    error = capfd.readouterr().err
    assert exit_info.value.code == 2
    assert message in error
    assert error.count("\n") == 1
    assert error.startswith("python -m betty.full_batch: error: ")


def test_a_killed_command_goes_on_when_it_is_started_again(tmp_path):
    many_epochs = ["--quiet", "--num-epochs", "30"]
    python_path = os.pathsep.join(path for path in sys.path if path)
    command = [sys.executable, "-m", "betty.full_batch", *FLAGS, *many_epochs]
    process = subprocess.Popen(
        [*command, "--data-root", str(tmp_path / "data"), "--full-batch-root", str(tmp_path / "stored")],
        env={**os.environ, "PYTHONPATH": python_path},
        stdout=subprocess.PIPE,
    )
    deadline = time.monotonic() + 60
    while len(list(tmp_path.glob("stored/*/*/epoch-0002*"))) == 0 and time.monotonic() < deadline:
        time.sleep(0.002)
    process.kill()
    # Until the process in which the command runs is gone, too, which holds the other end.
    process.communicate()
    assert process.returncode == -signal.SIGKILL
    files_left = json.loads((folder(tmp_path) / "manifest.json").read_text())["files"]

    run(tmp_path, *many_epochs)
    run(tmp_path / "uninterrupted", *many_epochs)

    expected = contents(folder(tmp_path / "uninterrupted"))
    assert 0 < len(files_left) < len(expected) - 1
    assert contents(folder(tmp_path)) == expected
