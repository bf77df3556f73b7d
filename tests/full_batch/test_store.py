import dataclasses
import errno
import json
import multiprocessing
import os
import random
import resource
import signal
import stat
import time
from collections.abc import Callable
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch
from safetensors import safe_open

from betty import BettyError
from betty.envelope import SEAL, write_sealed_json
from betty.files import LOCK
from betty.full_batch import FullBatchWriter, Recipe, SampledFullBatches, StoredFullBatches, store
from betty.full_batch.manifest import FILE_NAME, FORMAT_VERSION
from tests.full_batch.graphs import assert_same_bits, random_graph

GRAPH = random_graph(60, 400)
OUTPUT_IDS = torch.arange(60).flip(0)[::2].contiguous()
SOURCE = SampledFullBatches(GRAPH, OUTPUT_IDS, [3, -1], seed=5, batch_size=16)
RECIPE = Recipe.of("tiny", "0123abcd", OUTPUT_IDS, [3, -1], seed=5, batch_size=16)
NUM_EPOCHS = 2
SAMPLED = {(epoch, batch): SOURCE.load(epoch, batch) for epoch in range(NUM_EPOCHS) for batch in range(2)}


def write(root: Path, num_epochs: int = NUM_EPOCHS) -> FullBatchWriter:
    writer = FullBatchWriter(root, RECIPE)
    for position in writer.missing(num_epochs):
        writer.write(*position, SAMPLED[position])
    return writer


def contents(root: Path) -> dict[str, bytes]:
    files = [path for path in sorted(root.rglob("*")) if path.is_file() and path.name != LOCK]
    return {str(path.relative_to(root)): path.read_bytes() for path in files}


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory) -> dict[str, bytes]:
    root = tmp_path_factory.mktemp("uninterrupted")
    write(root)
    return contents(root)


@pytest.fixture
def folder(tmp_path) -> Path:
    """A folder with all full batches stored, its root being its grandparent."""
    return write(tmp_path).folder


def stored(folder: Path, recipe: Recipe = RECIPE) -> StoredFullBatches:
    return StoredFullBatches(folder.parents[1], recipe)


def change_manifest(folder: Path, change: Callable[[dict], None]) -> None:
    path = folder / FILE_NAME
    content = json.loads(path.read_text())
    del content[SEAL]
    change(content)
    write_sealed_json(path, content)


def test_stored_batches_are_the_sampled_ones_bit_for_bit(folder):
    batches = stored(folder)

    assert batches.num_batches == SOURCE.num_batches == 2
    for position, full_batch in SAMPLED.items():
        assert_same_bits(batches.load(*position), full_batch)
        assert_same_bits(batches.load(*position), full_batch)


def test_batches_without_edges_are_stored_too(tmp_path):
    isolated = torch.tensor([59, 58])
    source = SampledFullBatches(GRAPH, isolated, [10, 25], seed=0)
    recipe = Recipe.of("tiny", "0123abcd", isolated, [10, 25], seed=0)

    FullBatchWriter(tmp_path, recipe).write(0, 0, source.load(0, 0))

    assert source.load(0, 0).num_edges == 0
    assert_same_bits(StoredFullBatches(tmp_path, recipe).load(0, 0), source.load(0, 0))


def test_the_layout_is_as_documented(folder):
    assert folder.parts[-2:] == ("tiny", "fan-out-3-all_seed-5_batch-size-16")
    names = [f"epoch-000{epoch}_batch-000{batch}.safetensors" for epoch in range(2) for batch in range(2)]
    assert sorted(path.name for path in folder.iterdir()) == [LOCK, *names, "manifest.json"]
    with safe_open(folder / names[0], framework="pt") as content:
        assert set(content.keys()) == {"node_ids", "0.indptr", "0.indices", "1.indptr", "1.indices"}

    manifest = json.loads((folder / FILE_NAME).read_text())
    full_batch = SAMPLED[1, 0]
    assert manifest["format_version"] == FORMAT_VERSION
    assert (manifest["fan_outs"], manifest["seed"], manifest["batch_size"]) == ([3, -1], 5, 16)
    assert manifest["files"][2] | {"sha256": None} == {
        "epoch": 1,
        "batch": 0,
        "bytes": (folder / names[2]).stat().st_size,
        "sha256": None,
        "input_nodes": full_batch.input_ids.numel(),
        "output_nodes": 16,
        "edges": [block.num_edges for block in full_batch.blocks],
    }


def test_a_folder_without_a_batch_size_does_not_name_one():
    recipe = Recipe.of("../a graph.v2", "0123abcd", OUTPUT_IDS, [10, 25], seed=1236)
    assert recipe.folder(Path("root")) == Path("root/___a_graph_v2/fan-out-10-25_seed-1236")


def test_files_are_readable_as_the_users_other_files_are(folder, tmp_path):
    other = tmp_path / "other"
    other.touch()
    assert {path.stat().st_mode for path in folder.iterdir()} == {other.stat().st_mode}


@pytest.mark.skipif(not Path("/proc/self/maps").exists(), reason="needs Linux's list of mappings")
def test_loaded_tensors_are_mapped_privately_and_share_their_node_ids(folder):
    full_batch = stored(folder).load(1, 1)
    before = contents(folder)

    mapped = [line.split() for line in Path("/proc/self/maps").read_text().splitlines() if str(folder) in line]
    ranges = [[int(end, 16) for end in fields[0].split("-")] for fields in mapped]
    for block in full_batch.blocks:
        assert block.src_ids.data_ptr() == full_batch.input_ids.data_ptr()
        for tensor in (block.indptr, block.indices, block.src_ids):
            assert any(start <= tensor.data_ptr() < stop for start, stop in ranges)
    full_batch.input_ids.fill_(0)
    assert contents(folder) == before


def test_a_file_is_checked_once_and_no_other_is_read(folder, monkeypatch):
    checked = []
    monkeypatch.setattr(store, "sha256", lambda path: checked.append(path.name) or real_sha256(path))
    for path in folder.glob("epoch-0000*"):
        path.unlink()
    batches = stored(folder)

    for _ in range(3):
        batches.load(1, 0)

    assert checked == ["epoch-0001_batch-0000.safetensors"]


real_sha256 = store.sha256


def flip_last_bit(path: Path) -> None:
    flipped = bytearray(path.read_bytes())
    flipped[-1] ^= 1
    path.write_bytes(flipped)


@pytest.mark.parametrize("cut", [0, 7, 8, 100, -1])
def test_a_file_that_was_cut_is_refused(folder, cut):
    path = folder / "epoch-0001_batch-0000.safetensors"
    path.write_bytes(path.read_bytes()[:cut])
    with pytest.raises(BettyError, match=rf"{path.name} has \d+ bytes .* --num-epochs 2"):
        stored(folder).load(1, 0)


def test_a_file_with_another_ones_content_is_refused(folder):
    path = folder / "epoch-0001_batch-0000.safetensors"
    flip_last_bit(path)
    with pytest.raises(BettyError, match=rf"{path.name} is damaged.*make it again"):
        stored(folder).load(1, 0)


def test_a_file_that_vanished_is_refused(folder):
    path = folder / "epoch-0001_batch-0000.safetensors"
    path.unlink()
    with pytest.raises(BettyError, match=rf"{path.name} cannot be read: No such file"):
        stored(folder).load(1, 0)


@pytest.mark.parametrize(
    "change",
    [
        {"dataset": "other"},
        {"graph": "4567"},
        {"output_ids": "89ef"},
        {"num_outputs": 29},
        {"fan_outs": (3, 4)},
        {"seed": 6},
        {"batch_size": None},
    ],
)
def test_full_batches_of_another_recipe_are_refused(folder, change):
    other = dataclasses.replace(RECIPE, **change)
    other_folder = other.folder(folder.parents[1])
    other_folder.parent.mkdir(exist_ok=True)
    if other_folder != folder:
        folder.rename(other_folder)

    for reader_or_writer in (StoredFullBatches, FullBatchWriter):
        with pytest.raises(BettyError, match=rf"manifest.json is of other full batches: {next(iter(change))} is"):
            reader_or_writer(folder.parents[1], other)


def test_the_order_of_the_output_nodes_is_part_of_the_recipe(folder):
    reordered = Recipe.of("tiny", "0123abcd", OUTPUT_IDS.flip(0), [3, -1], seed=5, batch_size=16)
    with pytest.raises(BettyError, match="output_ids is"):
        stored(folder, reordered)


def test_a_newer_format_is_refused(folder):
    change_manifest(folder, lambda manifest: manifest.update(format_version=FORMAT_VERSION + 1, files="unknown"))
    with pytest.raises(BettyError, match=r"manifest.json has format version \d+, newer than \d+; update Betty"):
        stored(folder)


@pytest.mark.parametrize(
    "key",
    ["format_version", "dataset", "graph", "output_ids", "num_outputs", "fan_outs", "seed", "batch_size", "files"],
)
@pytest.mark.parametrize("value", ["missing", {}, True])
def test_a_manifest_with_a_damaged_entry_is_refused(folder, key, value):
    change_manifest(folder, lambda manifest: manifest.pop(key) if value == "missing" else manifest.update({key: value}))
    with pytest.raises(BettyError, match=r"manifest.json is damaged \(.*\); delete the folder"):
        stored(folder)


@pytest.mark.parametrize("key", ["epoch", "batch", "bytes", "sha256", "input_nodes", "output_nodes", "edges"])
def test_a_manifest_with_a_damaged_file_entry_is_refused(folder, key):
    change_manifest(folder, lambda manifest: manifest["files"][1].pop(key))
    with pytest.raises(BettyError, match=rf"manifest.json is damaged \(.*`{key}`.*\); delete the folder"):
        stored(folder)


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"3", b'{"files": []}', b"\xff\xfe"])
def test_a_manifest_that_is_none_is_refused(folder, content):
    (folder / FILE_NAME).write_bytes(content)
    with pytest.raises(BettyError, match=r"manifest.json is damaged .*again"):
        stored(folder)


@pytest.mark.parametrize("content", [b"", b"[" * 200_000, b'{"files": [{"edges": ["x"]}]}', b'{"seed": ' + b"9" * 5000])
def test_all_is_made_again_with_one_notice_where_the_manifest_is_none(folder, uninterrupted, caplog, content):
    (folder / FILE_NAME).write_bytes(content)
    write(folder.parents[1])
    (notice,) = [message for message in caplog.messages if "made again" in message]
    assert str(folder / FILE_NAME) in notice
    assert contents(folder.parents[1]) == uninterrupted


@pytest.mark.parametrize("sizes", [["x"], "x", {"a": 1}, [None], [1.5]])
def test_a_manifest_with_other_types_deep_inside_is_refused(folder, sizes):
    change_manifest(folder, lambda manifest: manifest["files"][1].update(edges=sizes))
    with pytest.raises(BettyError, match=r"manifest.json is damaged \(.*files\[1\].edges"):
        stored(folder)


def test_a_manifest_that_cannot_be_read_is_refused(tmp_path):
    (RECIPE.folder(tmp_path) / FILE_NAME).mkdir(parents=True)
    with pytest.raises(BettyError, match=r"manifest.json is not a regular file"):
        StoredFullBatches(tmp_path, RECIPE)


@pytest.mark.parametrize("damage", [lambda path: path.unlink(), lambda path: path.write_bytes(b"cut"), flip_last_bit])
def test_damaged_batches_are_sampled_again_with_one_notice_where_they_can_be(folder, caplog, damage):
    path = folder / "epoch-0001_batch-0000.safetensors"
    damage(path)
    batches = StoredFullBatches(folder.parents[1], RECIPE, SOURCE)
    batches.require_epochs(NUM_EPOCHS)
    for position, full_batch in SAMPLED.items():
        for _ in range(2):
            assert_same_bits(batches.load(*position), full_batch)
    (notice,) = caplog.messages
    assert path.name in notice
    assert "sampled again" in notice


def test_epochs_that_are_not_stored_are_refused_with_the_command_that_makes_them(folder):
    batches = stored(folder)
    command = "python -m betty.full_batch --fan-out 3,-1 --seed 5 --num-epochs {} --batch-size 16"

    batches.require_epochs(2)
    with pytest.raises(BettyError, match=f"batch 0 of epoch 2 is not stored in .*{command.format(3)}"):
        batches.load(2, 0)
    with pytest.raises(BettyError, match=f"batch 0 of epoch 2 is not stored in .*{command.format(9)}"):
        batches.require_epochs(9)
    with pytest.raises(BettyError, match="there is no batch 2 in epoch 0"):
        batches.load(0, 2)


def test_nothing_stored_is_refused_with_the_command_that_makes_it(tmp_path):
    with pytest.raises(BettyError, match=r"not stored in .*python -m betty.full_batch .*--num-epochs 4"):
        StoredFullBatches(tmp_path, RECIPE).require_epochs(4)


def test_any_flipped_bit_is_refused_or_changes_nothing(folder):
    root, numbers = folder.parents[1], random.Random(0)
    paths = [folder / FILE_NAME, folder / "epoch-0000_batch-0001.safetensors"]
    refused = 0
    for _ in range(400):
        path = numbers.choice(paths)
        intact = path.read_bytes()
        flipped = bytearray(intact)
        flipped[numbers.randrange(len(flipped))] ^= 1 << numbers.randrange(8)
        path.write_bytes(flipped)
        try:
            assert_same_bits(StoredFullBatches(root, RECIPE).load(0, 1), SAMPLED[0, 1])
        except BettyError:
            refused += 1
        path.write_bytes(intact)
    assert refused > 250


def test_a_second_run_writes_nothing(folder):
    before = {path: path.stat().st_mtime_ns for path in folder.iterdir()}
    assert write(folder.parents[1]).missing(NUM_EPOCHS) == []
    assert {path: path.stat().st_mtime_ns for path in folder.iterdir()} == before


def test_more_epochs_extend_and_fewer_keep_what_is_there(tmp_path, uninterrupted):
    write(tmp_path, num_epochs=1)
    write(tmp_path, num_epochs=2)
    assert contents(tmp_path) == uninterrupted
    write(tmp_path, num_epochs=1)
    assert contents(tmp_path) == uninterrupted


@pytest.mark.parametrize("damage", [lambda path: path.unlink(), lambda path: path.write_bytes(b"cut")])
def test_files_that_vanished_or_were_cut_are_made_again(folder, uninterrupted, damage):
    damage(folder / "epoch-0000_batch-0001.safetensors")
    writer = FullBatchWriter(folder.parents[1], RECIPE)
    assert writer.missing(NUM_EPOCHS) == [(0, 1)]
    del writer

    write(folder.parents[1])

    assert contents(folder.parents[1]) == uninterrupted


def test_a_second_writer_in_a_folder_is_refused(folder):
    first = FullBatchWriter(folder.parents[1], RECIPE)
    assert first.missing(NUM_EPOCHS) == []
    with pytest.raises(BettyError, match="another process is writing to"):
        FullBatchWriter(folder.parents[1], RECIPE)


def test_training_is_refused_before_it_starts_where_a_file_is_cut(folder):
    with open(folder / "epoch-0001_batch-0001.safetensors", "r+b") as file:
        file.truncate(100)
    with pytest.raises(BettyError, match=r"epoch-0001_batch-0001\.safetensors has 100 bytes"):
        stored(folder).require_epochs(NUM_EPOCHS)


def test_leftovers_of_a_killed_run_go_away(folder, uninterrupted):
    (folder / "epoch-0009_batch-0000.safetensors.partial").write_bytes(b"half")
    (folder / f"{FILE_NAME}.partial").write_bytes(b"{")
    write(folder.parents[1])
    assert contents(folder.parents[1]) == uninterrupted


@contextmanager
def interruption(moment: int, interrupt: Callable[[], None]):
    """Interrupt the file operation number ``moment``: a write in its middle, anything else before it is done."""
    count = 0

    def interrupted(operation):
        def run(*arguments):
            nonlocal count
            if count == moment:
                if isinstance(arguments[0], int) and stat.S_ISREG(os.fstat(arguments[0]).st_mode):
                    os.ftruncate(arguments[0], os.fstat(arguments[0]).st_size // 2)
                interrupt()
            count += 1
            return operation(*arguments)

        return run

    with pytest.MonkeyPatch.context() as patch:
        for name in ("fsync", "replace"):
            patch.setattr(os, name, interrupted(getattr(os, name)))
        yield


MOMENTS = range(4 * 2 * 3)


def test_an_error_at_any_moment_leaves_whole_files_and_the_next_run_goes_on(tmp_path, uninterrupted):
    def fail():
        raise OSError(errno.ENOSPC, "No space left on device")

    for moment in MOMENTS:
        root = tmp_path / str(moment)
        with (
            interruption(moment, fail),
            pytest.raises(BettyError, match=r"cannot write to .*: No space left on device"),
        ):
            write(root)
        left = contents(root)
        manifests = [name for name in left if name.endswith(FILE_NAME)]
        assert all(left[name] == uninterrupted[name] for name in left.keys() - manifests)
        assert_stored_batches_load(root)

        write(root)

        assert contents(root) == uninterrupted


def assert_stored_batches_load(root: Path) -> None:
    batches = StoredFullBatches(root, RECIPE)
    manifest = RECIPE.folder(root) / FILE_NAME
    files = json.loads(manifest.read_text())["files"] if manifest.exists() else []
    for file in files:
        position = file["epoch"], file["batch"]
        assert_same_bits(batches.load(*position), SAMPLED[position])


def kill_self() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def write_until_killed(root: Path, moment: int) -> None:
    with interruption(moment, kill_self):
        write(root)


@pytest.mark.skipif("fork" not in multiprocessing.get_all_start_methods(), reason="forks")
def test_a_kill_at_any_moment_is_made_good_by_the_next_run(tmp_path, uninterrupted):
    fork = multiprocessing.get_context("fork")
    for moment in MOMENTS:
        root = tmp_path / str(moment)
        process = fork.Process(target=write_until_killed, args=(root, moment))
        process.start()
        process.join(timeout=20)
        assert process.exitcode == -signal.SIGKILL
        assert_stored_batches_load(root)

        write(root)

        assert contents(root) == uninterrupted


@pytest.mark.skipif("fork" not in multiprocessing.get_all_start_methods(), reason="forks")
def test_kills_one_after_another_are_made_good(tmp_path, uninterrupted):
    fork = multiprocessing.get_context("fork")
    for delay in (0.001, 0.003, 0.005, 0.01):
        process = fork.Process(target=write, args=(tmp_path,))
        process.start()
        time.sleep(delay)
        process.kill()
        process.join(timeout=20)

    write(tmp_path)

    assert contents(tmp_path) == uninterrupted


def test_a_file_that_outgrows_the_disk_is_one_clear_error(tmp_path):
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (512, hard))
    try:
        with pytest.raises(BettyError, match=r"cannot write to .*: File too large; make room"):
            write(tmp_path)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert contents(tmp_path) == {}


def test_a_root_that_is_no_folder_is_one_clear_error(tmp_path):
    root = tmp_path / "file"
    root.write_text("not a folder")
    with pytest.raises(BettyError, match="cannot write to"):
        write(root)
