"""A directed graph of a file's, with self-loops and parallel edges: through sampling, training and evaluation."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.nn.functional import cross_entropy

from betty import GraphSAGE, load_dataset, partition, sample_full_batch, split
from betty.datasets import Dataset, csc
from betty.evaluation import layerwise_inference
from betty.full_batch.__main__ import main as store_full_batches
from betty.micro_batch_train.__main__ import main as train
from betty.micro_batch_train.graph_partitioner import METHODS

NUM_NODES, NUM_FEATURES, NUM_CLASSES = 60, 5, 3


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    random = np.random.default_rng(4)
    # The last five nodes have no in-edges.
    edges = np.stack([random.integers(NUM_NODES, size=400), random.integers(NUM_NODES - 5, size=400)], axis=1)
    edges[:20] = edges[20:40]  # parallel
    edges[40:45, 0] = edges[40:45, 1]  # self-loops
    path = tmp_path_factory.mktemp("directed") / "mine.npz"
    features = random.standard_normal((NUM_NODES, NUM_FEATURES))
    labels = random.integers(NUM_CLASSES, size=NUM_NODES)
    np.savez(path, edges=edges, node_features=features, node_labels=labels, train_idx=np.arange(0, NUM_NODES, 2))
    return path


@pytest.fixture(scope="module")
def dataset(path: Path) -> Dataset:
    return load_dataset(path, directed=True)


def dense_logits(path: Path, model: GraphSAGE) -> torch.Tensor:
    """A GraphSAGE with mean aggregation over the in-edges of the file, parallel ones as often as they are there."""
    with np.load(path) as file:
        sources, destinations = file["edges"].T
        x = torch.from_numpy(file["node_features"].astype(np.float32)).double()
    counts = np.zeros((NUM_NODES, NUM_NODES))
    np.add.at(counts, (destinations, sources), 1)
    mean = torch.from_numpy(counts / counts.sum(1, keepdims=True).clip(min=1))
    for layer in model.layers:
        h = x @ layer.fc_self.weight.T + mean @ x @ layer.fc_neigh.weight.T + layer.fc_self.bias
        x = h.relu()
    return h


def double_model() -> GraphSAGE:
    torch.manual_seed(0)
    return GraphSAGE(NUM_FEATURES, 8, NUM_CLASSES, num_layers=2, dropout=0.0).double()


def test_sampling_all_neighbours_computes_with_the_in_edges_of_the_file(path: Path, dataset: Dataset) -> None:
    model = double_model()
    full_batch = sample_full_batch(dataset.graph, dataset.train_ids, [-1, -1], seed=0)
    logits = model(full_batch.blocks, dataset.features[full_batch.input_ids].double())
    torch.testing.assert_close(logits, dense_logits(path, model)[dataset.train_ids])


def test_evaluation_computes_with_the_in_edges_of_the_file(path: Path, dataset: Dataset) -> None:
    model = double_model()
    logits = layerwise_inference(model, *csc(dataset.graph), dataset.features, "cpu", max_edges=50)
    torch.testing.assert_close(logits.double(), dense_logits(path, model).detach(), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("method", METHODS)
def test_micro_batches_of_a_directed_graph_have_the_whole_batchs_gradient(dataset: Dataset, method: str) -> None:
    full_batch = sample_full_batch(dataset.graph, dataset.train_ids, [3, 4], seed=0)
    whole, model = double_model(), double_model()
    features, labels = dataset.features.double(), dataset.labels
    cross_entropy(whole(full_batch.blocks, features[full_batch.input_ids]), labels[full_batch.output_ids]).backward()
    for micro_batch in split(full_batch, partition(full_batch, 4, method, seed=0)):
        logits = model(micro_batch.blocks, features[micro_batch.input_ids])
        (cross_entropy(logits, labels[micro_batch.output_ids]) * micro_batch.weight).backward()
    for mine, expected in zip(model.parameters(), whole.parameters(), strict=True):
        torch.testing.assert_close(mine.grad, expected.grad)


def losses(output: Path) -> list[float]:
    return [json.loads(line)["loss"] for line in (output / "metrics.jsonl").read_text().splitlines()]


def test_the_command_lines_keep_directions_from_the_file_to_the_evaluation(path: Path, tmp_path: Path) -> None:
    flags = ["--dataset", str(path), "--full-batch-root", str(tmp_path / "batches"), "--fan-out", "3,3", "--quiet"]
    own = ["--num-epochs", "2", "--eval", "--lr", "0.1"]
    store_full_batches([*flags, "--directed", "--num-epochs", "2"])
    train([*flags, *own, "--directed", "--load-full-batch", "--output", str(tmp_path / "stored")])
    train([*flags, *own, "--directed", "--output", str(tmp_path / "sampled")])
    train([*flags, *own, "--output", str(tmp_path / "undirected")])
    assert losses(tmp_path / "stored") == losses(tmp_path / "sampled") != losses(tmp_path / "undirected")
    assert json.loads((tmp_path / "stored" / "config.json").read_text())["flags"]["directed"] is True


def test_stored_full_batches_of_the_directed_graph_are_not_taken_for_the_undirected_one(
    path: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    flags = ["--dataset", str(path), "--full-batch-root", str(tmp_path / "batches"), "--fan-out", "3,3", "--quiet"]
    store_full_batches([*flags, "--directed", "--num-epochs", "1"])
    with pytest.raises(SystemExit) as end:
        train([*flags, "--load-full-batch", "--num-epochs", "1", "--output", str(tmp_path / "run")])
    assert end.value.code == 2
    assert "graph" in capfd.readouterr().err


def test_directed_is_refused_for_a_named_data_set_on_the_command_line(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as end:
        store_full_batches(["--dataset", "karate", "--directed", "--data-root", str(tmp_path), "--quiet"])
    assert end.value.code == 2
    assert "error: karate has no directions of edges; only .npz files keep them" in capfd.readouterr().err
