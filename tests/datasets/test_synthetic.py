import dataclasses

import numpy as np
import pytest
import torch

from betty.datasets import csc, graph_fingerprint, load_dataset, synthetic
from betty.datasets.synthetic import DEFAULT_DEGREES, PRESETS
from betty.errors import BettyError


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    return tmp_path_factory.mktemp("data")


def tiny(root, **flags):
    return load_dataset("synthetic-tiny", root, **flags)


@pytest.mark.parametrize(
    ("name", "num_nodes", "num_edges", "num_features", "num_classes"),
    [
        ("arxiv", 169_343, 1_166_243, 128, 40),
        ("reddit", 232_965, 57_307_946, 602, 41),
        ("products", 2_449_029, 61_859_140, 100, 47),
    ],
)
def test_presets_have_the_sizes_of_the_real_ones(name, num_nodes, num_edges, num_features, num_classes):
    preset = PRESETS[name]
    assert (preset.num_nodes, preset.num_edges) == (num_nodes, num_edges)
    assert (preset.num_features, preset.num_classes) == (num_features, num_classes)
    assert sum(preset.split) == num_nodes


def test_sizes_are_exactly_those_of_the_preset(root):
    dataset = tiny(root)
    preset = PRESETS["tiny"]
    assert dataset.graph.num_nodes() == preset.num_nodes
    assert dataset.graph.num_edges() == 2 * preset.num_edges
    assert dataset.features.shape == (preset.num_nodes, preset.num_features)
    assert dataset.features.dtype == torch.float32
    assert set(dataset.labels.tolist()) == set(range(preset.num_classes))
    parts = (dataset.train_ids, dataset.val_ids, dataset.test_ids)
    assert tuple(part.numel() for part in parts) == preset.split
    assert torch.cat(parts).sort().values.tolist() == list(range(preset.num_nodes))


def test_graph_is_symmetric_without_self_loops(root):
    indptr, indices = csc(tiny(root).graph)
    destinations = torch.repeat_interleave(torch.arange(len(indptr) - 1), indptr.diff())
    edges = set(zip(indices.tolist(), destinations.tolist(), strict=True))
    assert len(edges) == len(indices)
    assert all((b, a) in edges and a != b for a, b in edges)


def files(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_same_seed_gives_the_same_bytes_on_any_number_of_threads(root, tmp_path):
    tiny(root)
    threads = torch.get_num_threads()
    torch.set_num_threads(1 if threads > 1 else 3)
    try:
        tiny(tmp_path)
    finally:
        torch.set_num_threads(threads)
    assert files(tmp_path / "synthetic-tiny-seed-0") == files(root / "synthetic-tiny-seed-0")


def test_other_seed_gives_another_data_set(root):
    first, other = tiny(root), tiny(root, seed=1)
    assert graph_fingerprint(first.graph) != graph_fingerprint(other.graph)
    assert not torch.equal(first.features, other.features)
    assert not torch.equal(first.train_ids, other.train_ids)


def test_second_load_reads_the_files(root, monkeypatch):
    first = tiny(root)
    monkeypatch.setattr(synthetic, "sample_block_model", lambda *_: pytest.fail("made again"))
    second = tiny(root)
    assert torch.equal(first.features, second.features)
    assert graph_fingerprint(first.graph) == graph_fingerprint(second.graph)


def test_another_version_of_the_generator_makes_it_again(tmp_path, monkeypatch):
    before = tiny(tmp_path)
    stored = files(tmp_path / "synthetic-tiny-seed-0")
    monkeypatch.setattr(synthetic, "GENERATOR_VERSION", synthetic.GENERATOR_VERSION + 1)
    after = tiny(tmp_path)
    assert files(tmp_path / "synthetic-tiny-seed-0") != stored
    assert after.fingerprints() == before.fingerprints()


def accuracy_of_linear_classifier(dataset, features):
    """Least squares on one-hot labels, which needs no training loop."""
    design = np.concatenate([features, np.ones((len(features), 1))], axis=1)
    one_hot = np.eye(dataset.num_classes)[dataset.labels.numpy()]
    train, test = dataset.train_ids.numpy(), dataset.test_ids.numpy()
    weights = np.linalg.lstsq(design[train], one_hot[train], rcond=None)[0]
    return ((design[test] @ weights).argmax(1) == dataset.labels.numpy()[test]).mean()


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_neighbours_matter(root, seed):
    dataset = tiny(root, seed=seed)
    own = dataset.features.numpy().astype(np.float64)
    indptr, indices = csc(dataset.graph)
    of_neighbours = np.stack([own[row.numpy()].mean(0) for row in indices.split(indptr.diff().tolist())])
    alone = accuracy_of_linear_classifier(dataset, own)
    with_neighbours = accuracy_of_linear_classifier(dataset, np.concatenate([own, of_neighbours], axis=1))
    assert with_neighbours > alone + 0.15
    assert alone > 0.3


def test_average_degree_is_met_and_kept_apart(root):
    dataset = tiny(root, average_degree=30)
    assert dataset.graph.num_edges() == 30 * 1_000
    assert dataset.name == "synthetic-tiny-degree-30"
    assert tiny(root).graph.num_edges() == 10_000


def test_reddit_has_an_average_degree_of_50_or_all_edges_of_the_real_one(tmp_path, monkeypatch):
    made = []
    monkeypatch.setattr(synthetic, "load_or_make", lambda folder, made_from, make, name: made.append((name, made_from)))
    for average_degree in (None, 50, 492):
        synthetic.load_synthetic("reddit", tmp_path, 0, average_degree)
    assert DEFAULT_DEGREES == {"reddit": 50}
    assert [name for name, _ in made] == ["synthetic-reddit", "synthetic-reddit", "synthetic-reddit-degree-492"]
    assert [made_from["num_edges"] for _, made_from in made] == [5_824_125, 5_824_125, 57_307_946]


@pytest.mark.parametrize("average_degree", [0, -1, 101, float("nan")])
def test_average_degree_out_of_range_is_refused(root, average_degree):
    with pytest.raises(BettyError, match="is not above 0 and at most 100"):
        tiny(root, average_degree=average_degree)


def test_largest_average_degree_works(tmp_path):
    assert tiny(tmp_path, average_degree=100).graph.num_edges() == 100_000


def test_average_degree_of_nearly_nothing_leaves_isolated_nodes(tmp_path):
    dataset = tiny(tmp_path, average_degree=0.1)
    assert dataset.graph.num_edges() == 100
    assert (csc(dataset.graph)[0].diff() == 0).sum() > 800


def test_wide_data_set_is_written_in_chunks_like_in_one(tmp_path, monkeypatch):
    preset = dataclasses.replace(PRESETS["tiny"], num_nodes=1_000)
    classes = np.random.default_rng(0).integers(5, size=1_000)
    monkeypatch.setattr(synthetic, "NODES_PER_CHUNK", 300)
    chunks = list(synthetic._feature_chunks(preset, classes, seed=0))
    assert [len(chunk) for chunk in chunks] == [300, 300, 300, 100]
    features = np.concatenate(chunks).astype(np.float64)
    centres = np.stack([features[classes == label].mean(0) for label in range(5)])
    assert abs((features - centres[classes]).std() - 1) < 0.05
    assert np.abs(np.linalg.norm(centres, axis=1).mean() - preset.separation) < 0.5
