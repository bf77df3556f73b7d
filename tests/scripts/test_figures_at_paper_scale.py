"""The paper-scale commands start on the real data sets' on-disk format: on little data, with small sizes."""

import gzip
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from tests.scripts.figure_scripts import FIGURES, commands, draw

NUM_NODES = 60
SMALL = {"NUM_HIDDEN": "4", "NUM_EPOCHS": "2", "NUM_RUNS": "1", "NUM_BATCHES": "1 2", "METHODS": "random"}
SMALLER = {
    "figure02": {"AGGREGATORS": "lstm", "LAYERS_FAN_OUTS": "3,3,3", "HIDDEN_SIZES": "", "LSTM_FAN_OUTS": ""},
    "figure04": {"MINI_BATCH_SIZE": "10"},
    "figure05": {"AGGREGATORS": "lstm", "NUM_BATCHES": "2"},
    "figure11": {"NUM_BATCHES": "2"},
    "figure12": {"AGGREGATORS": "lstm", "NUM_BATCHES": "2"},
    "breakdown": {"NUM_BATCHES": "2"},
}
SMALLER["figure10"] = SMALLER["figure02"] | {"CAPACITY": "1GB"}
SPLITS = {"ogbn-arxiv": "time", "ogbn-products": "sales_ranking"}


def write_csv(path: Path, rows: np.ndarray) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with gzip.open(path, "wt") as file:
        np.savetxt(file, rows, fmt="%g", delimiter=",")


def write_raw_files(folder: Path, split: str) -> None:
    """A graph as OGB's archive unpacks: half of the nodes train, a quarter each validates and tests."""
    random = np.random.default_rng(0)
    write_csv(folder / "raw" / "edge.csv.gz", random.integers(NUM_NODES, size=(200, 2)))
    write_csv(folder / "raw" / "node-feat.csv.gz", random.standard_normal((NUM_NODES, 5)))
    write_csv(folder / "raw" / "node-label.csv.gz", random.integers(40, size=NUM_NODES))
    write_csv(folder / "raw" / "num-node-list.csv.gz", np.array([NUM_NODES]))
    write_csv(folder / "raw" / "num-edge-list.csv.gz", np.array([200]))
    parts = np.split(np.arange(NUM_NODES), [30, 45])
    for name, ids in zip(("train", "valid", "test"), parts, strict=True):
        write_csv(folder / "split" / split / f"{name}.csv.gz", ids)


@pytest.fixture(scope="module")
def results(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("paper")
    for name, split in SPLITS.items():
        write_raw_files(folder / "data" / name.replace("-", "_"), split)
    return folder / "results"


@pytest.mark.parametrize("figure", FIGURES)
def test_its_commands_run_on_ogb_files(results: Path, figure: str) -> None:
    draw(figure, results, **{"SCALE": "paper", **SMALL, **SMALLER.get(figure, {})})
    runs = [path.name for path in (results / figure / "runs").iterdir()]
    assert all(name.startswith(("ogbn-arxiv", "ogbn-products")) for name in runs)
    assert (results / figure / "table.md").exists()


@pytest.mark.parametrize(
    ("figure", "words"),
    [
        ("figure02", "--dataset ogbn-products --fan-out 10,25 --num-layers 2 --aggre lstm --num-hidden 256"),
        ("figure02", "--fan-out 10,25,30,40,50 --num-layers 5 --aggre mean --num-hidden 256"),
        ("figure04", "betty.mini_batch_train --dataset ogbn-products --batch-size 12289"),
        ("figure05", "--dataset ogbn-arxiv --fan-out 10 --num-layers 1 --aggre lstm --num-hidden 128"),
        ("figure10", "--fan-out 10,25 --aggre lstm --num-hidden 256 --selection-method REG --memory-budget 24GB"),
        ("figure12", "--dataset ogbn-products --fan-out 10 --aggre lstm --num-hidden 256 --num-batch 32"),
        ("figure13", "--dataset ogbn-arxiv --num-hidden 16 --num-batch 8 --dropout-mode exact"),
        ("breakdown", "--dataset ogbn-products --fan-out 10,25 --aggre lstm --num-batch 12 --selection-method REG"),
    ],
)
def test_its_sizes_are_the_papers(tmp_path: Path, figure: str, words: str) -> None:
    lines = [line.split() for line in commands(figure, tmp_path / "results", SCALE="paper")]
    flags = words.split()
    pairs = [flags[position : position + 2] for position in range(len(flags)) if flags[position].startswith("--")]
    found = [line for line in lines if all(pair in map(list, pairwise(line)) for pair in pairs)]
    assert found
