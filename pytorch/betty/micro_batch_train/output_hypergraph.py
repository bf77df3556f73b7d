"""The hypergraph of a full batch's output nodes: what is loaded and computed once for all of them, or once per part.

Every output node is a vertex; every node of every block that two or more of them need is a *net* that joins these. A
partition makes one copy of a net for each part that has a vertex of it: the number of copies of the nets of the input
nodes is what redundancy counts, exactly, where an edge cut only approximates it. Nets carry the memory of a copy, so
that the memory of a part is the sum over the nets that it touches.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array, eye_array

from betty.blocks import Block, FullBatch
from betty.micro_batch_train.memory_weights import MemoryWeights
from betty.micro_batch_train.output_graphs import own_and_neighbours
from betty.seeds import derive_seed

MAX_PINS = 1 << 23
"""Pairs of an output node and a node it needs that a layer may add: of larger ones a random part of the nets is taken.

With half of the nets of synthetic-arxiv's input layer, 16 parts had 2 % more redundancy than with all of them.
"""

MAX_PINS_ON_THE_WAY = 1 << 24
"""The same for a layer that is not the last one to be looked at: it has to be complete to go on from."""


@dataclass(frozen=True, eq=False)
class OutputHypergraph:
    """Output nodes as vertices, shared nodes as nets.

    Args:
        nets: float32 ``[num_outputs, num_nets]`` of ones, the nets of every vertex.
        loads: float64 ``[num_nets]``, memory that a part takes for touching a net.
        counts: float64 ``[num_nets]``, input nodes that a part loads for it: what a net stands for where not all nets
            are there, 0 for nets of other layers.
        own_loads: float64 ``[num_outputs]``, memory that an output node takes alone, whichever part it is in.
    """

    nets: csr_array
    loads: NDArray[np.float64]
    counts: NDArray[np.float64]
    own_loads: NDArray[np.float64]

    @cached_property
    def counts_of_vertex(self) -> NDArray[np.float64]:
        """Input nodes that a part of one vertex alone loads for its nets: float64 ``[num_outputs]``."""
        return self.nets @ self.counts

    @cached_property
    def loads_of_vertex(self) -> NDArray[np.float64]:
        """Memory of a part of one vertex alone: float64 ``[num_outputs]``."""
        return self.nets @ self.loads + self.own_loads

    def contracted(self, cluster_of_output: NDArray[np.int64], num_clusters: int) -> OutputHypergraph:
        """The hypergraph whose vertices are clusters of output nodes.

        Args:
            cluster_of_output: int64 ``[num_outputs]``, the cluster of each; clusters may be empty.
            num_clusters: how many there are.
        """
        own_loads = np.bincount(cluster_of_output, weights=self.own_loads, minlength=num_clusters)
        return OutputHypergraph(self._touched(cluster_of_output, num_clusters), self.loads, self.counts, own_loads)

    def part_loads(self, part_of_vertex: NDArray[np.int64], num_parts: int) -> NDArray[np.float64]:
        """Memory of every part, 0 of an empty one: float64 ``[num_parts]``.

        Args:
            part_of_vertex: int64 ``[num_outputs]``, the part of each.
            num_parts: how many there are.
        """
        own_loads = np.bincount(part_of_vertex, weights=self.own_loads, minlength=num_parts)
        return self._touched(part_of_vertex, num_parts) @ self.loads + own_loads

    def copies(self, part_of_vertex: NDArray[np.int64], num_parts: int) -> float:
        """Input nodes of several output nodes that all parts load together, one copy for each part."""
        return float((self._touched(part_of_vertex, num_parts) @ self.counts).sum())

    def _touched(self, part_of_vertex: NDArray[np.int64], num_parts: int) -> csr_array:
        """The nets of every part: float32 ``[num_parts, num_nets]`` of ones."""
        ones = np.ones(part_of_vertex.size, dtype=np.float32)
        members = csr_array((ones, (part_of_vertex, np.arange(ones.size))), shape=(num_parts, ones.size))
        nets = members @ self.nets
        nets.data.fill(1)
        return nets

    def of(self, outputs: NDArray[np.int64]) -> OutputHypergraph:
        """The hypergraph of some of the output nodes, by their positions, int64 ``[num_some]``.

        Its nets are those that several of these share; the others are part of what an output node takes alone.
        """
        return _with_nets_of_several([self.nets[outputs]], self.loads, self.counts, self.own_loads[outputs])


def output_hypergraph(full_batch: FullBatch, weights: MemoryWeights, seed: int) -> OutputHypergraph:
    """The nets of all layers, from the last block towards the input as far as :data:`MAX_PINS_ON_THE_WAY` allows.

    Args:
        full_batch: in host memory.
        weights: memory per node and edge of every block, and per output node.
        seed: of the choice of nets where there are too many.
    """
    blocks = full_batch.blocks
    own_loads = weights.of_output + weights.of_edge[-1] * _degrees(blocks[-1])
    layers: list[csr_array] = []
    loads: list[NDArray[np.float64]] = []
    counts: list[NDArray[np.float64]] = []
    reached = eye_array(blocks[-1].num_dst, dtype=np.float32, format="csr")
    for layer in reversed(range(len(blocks))):
        block, sources = blocks[layer], sources_of(blocks[layer])
        # What a node takes: its own values, and the edges that lead to it in the block before.
        load = np.full(block.num_src, weights.of_source[layer], dtype=np.float64)
        if layer > 0:
            load += weights.of_edge[layer - 1] * _degrees(blocks[layer - 1])
        num_pins = int((reached @ np.diff(sources.indptr)).sum())
        goes_on = layer > 0 and num_pins <= MAX_PINS_ON_THE_WAY
        share = 1.0 if goes_on else min(1.0, MAX_PINS / max(num_pins, 1))
        kept = np.arange(block.num_src)
        if share < 1:
            kept = np.flatnonzero(np.random.default_rng(derive_seed(seed, "nets", layer)).random(block.num_src) < share)
            sources = sources[:, kept]
        reached = reached @ sources
        reached.data.fill(1)
        layers.append(reached)
        loads.append(load[kept] / share)
        counts.append(np.full(kept.size, 0.0 if goes_on else 1 / share))
        if not goes_on:
            break
    return _with_nets_of_several(layers, np.concatenate(loads), np.concatenate(counts), own_loads)


def _with_nets_of_several(
    layers: Sequence[csr_array],
    loads: NDArray[np.float64],
    counts: NDArray[np.float64],
    own_loads: NDArray[np.float64],
) -> OutputHypergraph:
    """One matrix of all layers; nets of a single vertex are no nets but part of what the vertex takes alone."""
    num_outputs = own_loads.size
    pins = np.concatenate([np.bincount(layer.indices, minlength=layer.shape[1]) for layer in layers])
    several = pins > 1
    number = np.cumsum(several) - 1
    indptr = np.zeros(num_outputs + 1, dtype=np.int64)
    rows, columns, first = [], [], 0
    for layer in layers:
        net = layer.indices.astype(np.int64) + first
        row = np.repeat(np.arange(num_outputs, dtype=np.int32), np.diff(layer.indptr))
        alone = ~several[net]
        own_loads = own_loads + np.bincount(row[alone], weights=loads[net[alone]], minlength=num_outputs)
        rows.append(row[~alone])
        columns.append(number[net[~alone]].astype(np.int32))
        first += layer.shape[1]
    order = np.argsort(np.concatenate(rows), kind="stable")
    indices = np.concatenate(columns)[order]
    np.cumsum(sum(np.bincount(row, minlength=num_outputs) for row in rows), out=indptr[1:])
    shape = (num_outputs, int(several.sum()))
    nets = csr_array((np.ones(indices.size, dtype=np.float32), indices, indptr.astype(np.int32)), shape=shape)
    return OutputHypergraph(nets, loads[several], counts[several], own_loads)


def sources_of(block: Block) -> csr_array:
    """The source nodes that each destination needs, itself among them: float32 ``[num_dst, num_src]`` of ones."""
    return own_and_neighbours(block, np.ones(block.num_edges, dtype=np.float32))


def _degrees(block: Block) -> NDArray[np.int64]:
    return np.diff(block.indptr.numpy())
