"""Data sets made on the spot, in the sizes of well-known ones: ``synthetic-<preset>``.

The graph is a degree-corrected stochastic block model with power-law degrees (:mod:`betty.datasets.block_model`). A
class is a group of communities, and more than nine tenths of the edges stay inside a class. Features are Gaussian
clusters, one per class, that overlap so much that one node's features say little; and a fifth of the labels is replaced
by random ones, so that about 60 % of the edges join nodes of one label, as in ogbn-arxiv. Averaging over neighbours is
what tells the classes apart: a multilayer perceptron on the features scores far below GraphSAGE.

Node, undirected edge, feature, class and split counts are exactly those of the presets. ``synthetic-reddit`` has an
average degree of 50 unless told otherwise; with ``average_degree=492`` it has Reddit's 114,615,892 directed edges.

A data set is made once and kept in ``<root>/<name>-seed-<seed>/``; see :mod:`betty.datasets.cache`.
"""

import dataclasses
import logging
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from betty.datasets.block_model import BlockModel, sample_block_model
from betty.datasets.cache import load_or_make, write_cache
from betty.datasets.dataset import Dataset
from betty.datasets.graph import undirected_csc
from betty.datasets.splits import split_by_counts
from betty.errors import BettyError
from betty.progress import progress_bar
from betty.seeds import derive_seed

logger = logging.getLogger(__name__)

GENERATOR_VERSION = 1
"""To be raised when the same seed gives another data set, so that cached ones are made again."""

PREFIX = "synthetic-"
NODES_PER_CHUNK = 1 << 16
LABEL_NOISE = 0.2
MAX_DENSITY = 0.1
"""The largest average degree as a share of the nodes; above it distinct edges get hard to find."""


@dataclass(frozen=True)
class Preset:
    """Sizes of a data set.

    Args:
        num_nodes: number of nodes.
        num_edges: number of undirected edges.
        max_degree: the largest degree planned.
        num_features: number of features.
        num_classes: number of classes.
        split: nodes for training, validation and testing; they sum to ``num_nodes``.
        separation: the distance of a cluster's centre from the origin in standard deviations of the features: what
            decides how far a classifier gets without neighbours.
    """

    num_nodes: int
    num_edges: int
    max_degree: int
    num_features: int
    num_classes: int
    split: tuple[int, int, int]
    separation: float = 2.0

    @property
    def average_degree(self) -> float:
        return 2 * self.num_edges / self.num_nodes


REDDIT_DIRECTED_EDGES = 114_615_892

PRESETS = {
    "tiny": Preset(1_000, 5_000, 100, 16, 5, (600, 200, 200), separation=1.2),
    "arxiv": Preset(169_343, 1_166_243, 13_000, 128, 40, (90_941, 29_799, 48_603)),
    "reddit": Preset(232_965, REDDIT_DIRECTED_EDGES // 2, 21_000, 602, 41, (153_431, 23_831, 55_703)),
    "products": Preset(2_449_029, 61_859_140, 17_000, 100, 47, (196_615, 39_323, 2_213_091)),
}
DEFAULT_DEGREES = {"reddit": 50}
"""Average degrees where they are not the preset's own."""


def load_synthetic(preset_name: str, root: Path, seed: int, average_degree: float | None = None) -> Dataset:
    """Load a synthetic data set; make it first where it is not there yet.

    Args:
        preset_name: a key of :data:`PRESETS`.
        root: the data root.
        seed: of everything random in it.
        average_degree: undirected edges an end of which a node is, on average; the preset's if not given, 50 for
            ``reddit``.

    Raises:
        BettyError: the average degree is not above 0 or is more than a tenth of the number of nodes.
    """
    name = PREFIX + preset_name
    preset = PRESETS[preset_name]
    default_degree = DEFAULT_DEGREES.get(preset_name, preset.average_degree)
    if average_degree is None or average_degree == default_degree:
        average_degree = default_degree
    else:
        name += f"-degree-{average_degree:g}"
    preset = _with_average_degree(preset, average_degree, name)
    folder = root / f"{name}-seed-{seed}"
    made_from = {
        "generator_version": GENERATOR_VERSION,
        "seed": seed,
        **dataclasses.asdict(preset),
        "split": list(preset.split),
    }
    return load_or_make(folder, made_from, partial(_generate, preset, seed, folder, made_from), name)


def _with_average_degree(preset: Preset, average_degree: float, name: str) -> Preset:
    most = MAX_DENSITY * preset.num_nodes
    if not 0 < average_degree <= most:
        raise BettyError(f"{name}: an average degree of {average_degree:g} is not above 0 and at most {most:g}")
    # 492 is what Reddit's 491.99 is known as; it gives Reddit's number of edges, and not one close to it.
    if average_degree in (preset.average_degree, round(preset.average_degree)):
        return preset
    num_edges = max(round(average_degree * preset.num_nodes / 2), 1)
    max_degree = max(round(preset.max_degree * average_degree / preset.average_degree), 1)
    return dataclasses.replace(preset, num_edges=num_edges, max_degree=max_degree)


def _generate(preset: Preset, seed: int, folder: Path, made_from: dict[str, Any]) -> None:
    logger.info("making %s: %d nodes, %d undirected edges", folder, preset.num_nodes, preset.num_edges)
    # Large enough that a node of average degree leaves nine tenths of its community unlinked.
    community_size = max(100, round(10 * preset.average_degree))
    graph = sample_block_model(
        BlockModel(
            num_nodes=preset.num_nodes,
            num_edges=preset.num_edges,
            num_classes=preset.num_classes,
            num_communities=max(preset.num_classes, preset.num_nodes // community_size),
            max_degree=preset.max_degree,
        ),
        seed,
    )
    classes = graph.classes
    csc = undirected_csc(graph.first_ends, graph.second_ends, preset.num_nodes)
    del graph
    write_cache(
        folder,
        made_from,
        csc,
        torch.from_numpy(_noisy(classes, seed)),
        split_by_counts(torch.arange(preset.num_nodes), preset.split, seed),
        preset.num_classes,
        _feature_chunks(preset, classes, seed),
    )


def _noisy(classes: NDArray[np.int64], seed: int) -> NDArray[np.int64]:
    """The classes with a share of them replaced by the class of a random node."""
    random = np.random.default_rng(derive_seed(seed, "label noise"))
    is_wrong = random.random(len(classes)) < LABEL_NOISE
    return np.where(is_wrong, classes[random.integers(len(classes), size=len(classes))], classes)


def _feature_chunks(preset: Preset, classes: NDArray[np.int64], seed: int) -> Iterator[NDArray[np.float32]]:
    """Gaussians of unit variance around their class's centre."""
    random = np.random.default_rng(derive_seed(seed, "feature centres"))
    centres = random.standard_normal((preset.num_classes, preset.num_features), dtype=np.float32)
    centres *= preset.separation / np.sqrt(preset.num_features)
    chunk_starts = range(0, preset.num_nodes, NODES_PER_CHUNK)
    for start in progress_bar(chunk_starts, "features", unit="chunk"):
        random = np.random.default_rng(derive_seed(seed, "features", start))
        chunk_classes = classes[start : start + NODES_PER_CHUNK]
        chunk = random.standard_normal((len(chunk_classes), preset.num_features), dtype=np.float32)
        chunk += centres.take(chunk_classes, axis=0)
        yield chunk
