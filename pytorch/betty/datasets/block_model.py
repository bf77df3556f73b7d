"""Random graphs with hubs and communities: a degree-corrected stochastic block model.

The model is that of Karrer and Newman, "Stochastic blockmodels and community structure in networks" (2011): an edge's
ends are drawn in proportion to the degrees planned for the nodes. Planned degrees follow a power law that is cut off at
a maximum. The number of distinct edges is met exactly.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from betty.datasets.graph import distinct_of_sorted
from betty.progress import progress_bar
from betty.seeds import derive_seed

EDGES_PER_CHUNK = 1 << 22
SURPLUS = 1.1
"""How many more edges to draw than are missing, since some are there already."""


@dataclass(frozen=True)
class BlockModel:
    """What a graph is drawn from.

    Args:
        num_nodes: number of nodes, below 2**31.
        num_edges: number of undirected edges, without duplicates and self-loops.
        num_classes: number of classes; each is a group of communities.
        num_communities: number of communities, at least ``num_classes``.
        max_degree: no degree above this one is planned.
        degree_exponent: of the power law of the degrees, above 1.
        community_share: the share of edges that is drawn inside a community.
        class_share: the share of edges that is drawn inside a class; the rest is drawn over the whole graph.
    """

    num_nodes: int
    num_edges: int
    num_classes: int
    num_communities: int
    max_degree: int
    degree_exponent: float = 2.3
    community_share: float = 0.55
    class_share: float = 0.38


@dataclass(frozen=True, eq=False)
class BlockGraph:
    """A graph that was drawn.

    Args:
        first_ends: int32 ``[num_edges]``; every undirected edge is there once.
        second_ends: int32 ``[num_edges]``, the other ends.
        classes: int64 ``[num_nodes]``; every class has a node.
    """

    first_ends: NDArray[np.int32]
    second_ends: NDArray[np.int32]
    classes: NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class _Stubs:
    """Ends of edges waiting for a partner: a node is there as often as its planned degree says.

    Nodes are numbered by class and community here, so that both are ranges of stubs.
    """

    nodes: NDArray[np.int32]
    community_of_node: NDArray[np.int32]
    community_range: tuple[NDArray[np.int64], NDArray[np.int64]]
    class_range: tuple[NDArray[np.int64], NDArray[np.int64]]
    """First stub and stub after the last one, for every community, of its class."""

    def among_all(self, count: int, random: np.random.Generator) -> NDArray[np.int32]:
        return self.nodes.take(random.integers(len(self.nodes), size=count))


def sample_block_model(model: BlockModel, seed: int) -> BlockGraph:
    """Draw a graph; the same model and seed give the same graph on any number of threads.

    Memory at the peak: about 40 bytes an undirected edge. Node ids are shuffled: they tell nothing of communities.
    """
    random = np.random.default_rng(derive_seed(seed, "block model"))
    stubs, classes = _plan(model, random)
    keys = _draw_keys(model, stubs, seed)
    del stubs
    node_ids = random.permutation(model.num_nodes).astype(np.int32)
    low, high = np.divmod(keys, model.num_nodes)
    del keys
    shuffled_classes = np.empty_like(classes)
    shuffled_classes[node_ids] = classes
    return BlockGraph(node_ids.take(low), node_ids.take(high), shuffled_classes)


def _plan(model: BlockModel, random: np.random.Generator) -> tuple[_Stubs, NDArray[np.int64]]:
    """Stubs, and the class of every node."""
    communities_of_class = proportional_counts(
        random.permutation(1.0 / (np.arange(model.num_classes) + 3.0)), model.num_communities, minimum=1
    )
    community_sizes = proportional_counts(
        random.lognormal(sigma=0.5, size=model.num_communities), model.num_nodes, minimum=1
    )
    class_of_community = np.repeat(np.arange(model.num_classes), communities_of_class)
    community_of_node = np.repeat(np.arange(model.num_communities, dtype=np.int32), community_sizes)

    num_stubs = 2 * model.num_edges
    degrees = proportional_counts(
        _power_law(model, random), num_stubs, minimum=1 if num_stubs >= model.num_nodes else 0
    )
    stubs_before_node = np.concatenate([[0], np.cumsum(degrees)])
    community_bounds = stubs_before_node[np.concatenate([[0], np.cumsum(community_sizes)])]
    class_bounds = community_bounds[np.concatenate([[0], np.cumsum(communities_of_class)])]
    stubs = _Stubs(
        nodes=np.repeat(np.arange(model.num_nodes, dtype=np.int32), degrees),
        community_of_node=community_of_node,
        community_range=(community_bounds[:-1], community_bounds[1:]),
        class_range=(class_bounds[:-1][class_of_community], class_bounds[1:][class_of_community]),
    )
    return stubs, class_of_community[community_of_node]


def proportional_counts(weights: NDArray[np.float64], total: int, minimum: int) -> NDArray[np.int64]:
    """Whole numbers of the given sum, as close to proportional to the weights as the minimum lets them be."""
    shares = weights * ((total - minimum * len(weights)) / weights.sum())
    counts = np.floor(shares).astype(np.int64)
    missing = total - minimum * len(weights) - counts.sum()
    counts[np.argsort(counts - shares, kind="stable")[:missing]] += 1
    return counts + minimum


def _power_law(model: BlockModel, random: np.random.Generator) -> NDArray[np.float64]:
    """Weights with density ~ x**-exponent from 1 up to where the heaviest node has the maximal degree."""
    decay = 1.0 - model.degree_exponent
    # The mean of the weights depends on where they are cut, hence cut and mean degree are settled together.
    cut = max(float(model.max_degree), 2.0)
    mean_degree = 2.0 * model.num_edges / model.num_nodes
    for _ in range(20):
        mean_weight = decay / (decay + 1.0) * (cut ** (decay + 1.0) - 1.0) / (cut**decay - 1.0)
        cut = max(model.max_degree * mean_weight / mean_degree, 2.0)
    return (1.0 - random.random(model.num_nodes) * (1.0 - cut**decay)) ** (1.0 / decay)


def _draw_keys(model: BlockModel, stubs: _Stubs, seed: int) -> NDArray[np.int64]:
    """``low end * num_nodes + high end`` of exactly ``num_edges`` distinct edges."""
    keys = np.empty(model.num_edges, dtype=np.int64)
    chunk_starts = range(0, model.num_edges, EDGES_PER_CHUNK)
    for start in progress_bar(chunk_starts, "edges", unit="chunk"):
        random = np.random.default_rng(derive_seed(seed, "edges", start))
        stop = min(start + EDGES_PER_CHUNK, model.num_edges)
        # Every second stub is an end by plan and not by chance: it leaves few nodes without an edge.
        _draw_edges(model, stubs, stubs.nodes[2 * start : 2 * stop : 2], random, out=keys[start:stop])
    keys = _sorted_distinct(keys)

    random = np.random.default_rng(derive_seed(seed, "missing edges"))
    extra = np.empty(0, dtype=np.int64)
    while missing := model.num_edges - len(keys) - len(extra):
        sources = stubs.among_all(int(SURPLUS * missing) + 16, random)
        drawn = _draw_edges(model, stubs, sources, random, out=np.empty(len(sources), dtype=np.int64))
        drawn = _absent_from(extra, _absent_from(keys, _sorted_distinct(drawn)))
        extra = np.sort(np.concatenate([extra, random.permutation(drawn)[:missing]]))
    return np.concatenate([keys, extra])


def _draw_edges(
    model: BlockModel,
    stubs: _Stubs,
    sources: NDArray[np.int32],
    random: np.random.Generator,
    out: NDArray[np.int64],
) -> NDArray[np.int64]:
    """Draw a partner for every source; the keys of the edges go to ``out``, that of a self-loop is -1."""
    kind = random.random(len(sources))
    community = stubs.community_of_node.take(sources)
    inside_community = kind < model.community_share
    inside_class = kind < model.community_share + model.class_share
    first, stop = (
        np.where(inside_community, of_community.take(community), np.where(inside_class, of_class.take(community), all_))
        for of_community, of_class, all_ in zip(
            stubs.community_range, stubs.class_range, (0, len(stubs.nodes)), strict=True
        )
    )
    stub = first + (random.random(len(sources)) * (stop - first)).astype(np.int64)
    partners = stubs.nodes.take(stub)
    np.multiply(np.minimum(sources, partners), model.num_nodes, out=out, dtype=np.int64)
    out += np.maximum(sources, partners)
    out[sources == partners] = -1
    return out


def _sorted_distinct(keys: NDArray[np.int64]) -> NDArray[np.int64]:
    """Sorts in place; self-loops and second copies are left out."""
    keys.sort()
    return distinct_of_sorted(keys[np.searchsorted(keys, 0) :])


def _absent_from(present: NDArray[np.int64], keys: NDArray[np.int64]) -> NDArray[np.int64]:
    """Those of ``keys`` that are not in ``present``; both are sorted."""
    if len(present) == 0:
        return keys
    place = np.minimum(np.searchsorted(present, keys), len(present) - 1)
    return keys[present.take(place) != keys]
