"""Moving output nodes between parts until these load few nodes twice and take the same memory."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array

from betty.micro_batch_train.output_hypergraph import OutputHypergraph

LARGEST_STEP = 0.03
"""The share of a part's memory that may enter or leave it in a round beyond what evens it out."""

FIRST_PULL, LAST_PULL = 2.0, 40.0
"""By how much memory gets dearer in a part that takes more than the mean, in multiples of its excess."""

PRICE_OF_MEMORY = 0.1
"""What memory costs in a part that takes the mean, when all copies of input nodes cost as much as their number."""

CHEAPEST = 0.05
"""The lowest price of memory as a share of :data:`PRICE_OF_MEMORY`, in parts that take little."""

TEMPERATURE = 0.3
"""The largest loss that a move may bring at first, as a share of the input nodes of a mean vertex."""

COLD_FROM = 0.8
"""The share of the rounds after which no loss is allowed any more."""

PARTS_AT_ONCE = 32
"""The most parts to be refined together, neighbours in the order: time and memory go with their number."""


class _Parts:
    """A partition, with what each part touches and takes.

    Args:
        hypergraph: what is partitioned.
        part_of: int64 ``[num_vertices]``, the part of each; changed in place.
        num_parts: how many there are.
    """

    def __init__(self, hypergraph: OutputHypergraph, part_of: NDArray[np.int64], num_parts: int) -> None:
        nets = hypergraph.nets
        keys = nets.indices.astype(np.int64) * num_parts + np.repeat(part_of, np.diff(nets.indptr))
        vertices = np.bincount(keys, minlength=nets.shape[1] * num_parts)
        self._hypergraph = hypergraph
        self.part_of = part_of
        self.num_vertices = vertices.astype(np.int32).reshape(-1, num_parts)
        """Of every net in every part, int32 ``[num_nets, num_parts]``."""
        self.touches = (self.num_vertices > 0).astype(np.float32)
        """Whether a part has vertices of a net, 1 or 0, float32 ``[num_nets, num_parts]``."""
        self.loads = np.bincount(part_of, weights=hypergraph.own_loads, minlength=num_parts)
        """Memory of every part, float64 ``[num_parts]``."""
        self._count(np.flatnonzero(vertices), 1)

    def move(self, vertices: NDArray[np.int64], nets: csr_array, to: NDArray[np.int64]) -> None:
        """Move vertices, whose rows of the hypergraph's nets are ``nets``, into parts that none of them is from."""
        degrees, num_parts = np.diff(nets.indptr), self.loads.size
        first = nets.indices.astype(np.int64) * num_parts
        origin = self.part_of[vertices]
        num_vertices = self.num_vertices.reshape(-1)

        left = first + np.repeat(origin, degrees)
        np.subtract.at(num_vertices, left, 1)
        self._touch(np.unique(left[num_vertices[left] == 0]), 0)
        entered = first + np.repeat(to, degrees)
        self._touch(np.unique(entered[num_vertices[entered] == 0]), 1)
        np.add.at(num_vertices, entered, 1)

        own = self._hypergraph.own_loads[vertices]
        self.loads += np.bincount(to, weights=own, minlength=num_parts)
        self.loads -= np.bincount(origin, weights=own, minlength=num_parts)
        self.part_of[vertices] = to

    def _touch(self, keys: NDArray[np.int64], now: int) -> None:
        self.touches.reshape(-1)[keys] = now
        self._count(keys, 1 if now else -1)

    def _count(self, keys: NDArray[np.int64], sign: int) -> None:
        net, part = np.divmod(keys, self.loads.size)
        self.loads += sign * np.bincount(part, weights=self._hypergraph.loads[net], minlength=self.loads.size)


def refined(
    hypergraph: OutputHypergraph,
    part_of_vertex: NDArray[np.int64],
    num_parts: int,
    num_rounds: int,
    random: np.random.Generator,
    temperature: float,
    factors: NDArray[np.float64],
) -> NDArray[np.int64]:
    """Improve a partition: fewer input nodes in all, and parts that take the same memory.

    In each round a random half of the parts gives vertices to the other half. So all gains can be computed at once and
    all moves made at once: what a move gains can only grow by others, since parts that give do not take and those that
    take do not give. Memory costs the more, the more a part has beyond the mean, which is the derivative of the sum of
    squares of the parts' memory; the weight of that rises from round to round, while ever smaller losses are allowed.

    Args:
        hypergraph: of the vertices.
        part_of_vertex: int64 ``[num_vertices]``, where to start from.
        num_parts: 1 or more.
        num_rounds: each costs O(pins · num_parts) / 4 at most.
        random: chooses the halves and the losses that are allowed.
        temperature: the largest loss that a move may bring at first, as a share of the input nodes of a mean vertex.
        factors: of every part, float64 ``[num_parts]``: by how much its memory is above what the hypergraph says.

    Returns:
        int64 ``[num_vertices]``, of all rounds the one in which the largest part took the least; parts may be empty.
    """
    if num_parts == 1 or part_of_vertex.size == 0:
        return part_of_vertex.copy()
    parts = _Parts(hypergraph, part_of_vertex.copy(), num_parts)
    unit = _price_unit(hypergraph, parts)
    mean_count = max(float(hypergraph.counts_of_vertex.mean()), 1.0)
    least, best = np.inf, parts.part_of
    for round_number in range(num_rounds):
        progress = round_number / num_rounds
        pull = FIRST_PULL + (LAST_PULL - FIRST_PULL) * progress
        takes = parts.loads * factors
        if takes.max() < least:
            least, best = takes.max(), parts.part_of.copy()
        offers = _offers(hypergraph, parts, _half(takes, random), unit * _prices(takes, pull))
        largest_loss = temperature * max(0.0, 1 - progress / COLD_FROM) ** 2 * mean_count
        accepted = np.flatnonzero(offers.gain > -largest_loss * random.random(offers.gain.size) ** 2)
        moves = _bounded(offers, accepted, hypergraph, parts, takes)
        parts.move(moves.vertices, moves.nets, moves.to)
    return parts.part_of if (parts.loads * factors).max() < least else best


def _price_unit(hypergraph: OutputHypergraph, parts: _Parts) -> float:
    """Memory in input nodes: all of it weighs as much as all copies of input nodes."""
    # Not by BLAS, whose threads would round in another order.
    copies = float((hypergraph.counts * parts.touches.sum(axis=1)).sum())
    memory = float(parts.loads.sum())
    return max(copies, 1.0) / memory if memory > 0 else 0.0


def _prices(takes: NDArray[np.float64], pull: float) -> NDArray[np.float64]:
    """What memory costs in every part, float64 ``[num_parts]``."""
    excess = takes / max(takes.mean(), np.finfo(np.float64).tiny) - 1
    return np.maximum(PRICE_OF_MEMORY + pull * excess, CHEAPEST * PRICE_OF_MEMORY)


@dataclass(frozen=True, eq=False)
class _Moves:
    """Vertices, each with a part that it may move into.

    Args:
        vertices: int64 ``[num_moves]``.
        nets: float32 ``[num_moves, num_nets]``, their rows of the hypergraph's nets.
        to: int64 ``[num_moves]``, the part that each may move into.
        gain: float64 ``[num_moves]``, input nodes that a move saves, memory counted by its price.
        freed_load: float64 ``[num_moves]``, memory that the part it is in does without afterwards.
    """

    vertices: NDArray[np.int64]
    nets: csr_array
    to: NDArray[np.int64]
    gain: NDArray[np.float64]
    freed_load: NDArray[np.float64]

    def of(self, chosen: NDArray[np.int64]) -> _Moves:
        """Some of the moves, by their positions, in this order."""
        return _Moves(
            self.vertices[chosen], self.nets[chosen], self.to[chosen], self.gain[chosen], self.freed_load[chosen]
        )


def _offers(
    hypergraph: OutputHypergraph, parts: _Parts, gives: NDArray[np.bool_], prices: NDArray[np.float64]
) -> _Moves:
    """The best move of every vertex whose part gives, into one of the parts that do not.

    Args:
        hypergraph: of the vertices.
        parts: they are in.
        gives: bool ``[num_parts]``, neither all nor none.
        prices: of memory in every part in input nodes, float64 ``[num_parts]``.
    """
    takers = np.flatnonzero(~gives)
    vertices = np.flatnonzero(gives[parts.part_of])
    nets = hypergraph.nets[vertices]
    # What each vertex adds to a part are its nets that are not there.
    there = hypergraph.loads.astype(np.float32)[:, None] * prices[takers].astype(np.float32)
    there += hypergraph.counts.astype(np.float32)[:, None]
    there *= parts.touches[:, takers]
    adds = hypergraph.loads_of_vertex[vertices][:, None] * prices[takers]
    adds += hypergraph.counts_of_vertex[vertices][:, None]
    adds -= nets @ there
    best_taker = adds.argmin(axis=1)

    freed_count, freed_load = _freed(hypergraph, parts, vertices, nets)
    gain = freed_count + freed_load * prices[parts.part_of[vertices]] - adds[np.arange(vertices.size), best_taker]
    return _Moves(vertices, nets, takers[best_taker], gain, freed_load)


def _bounded(
    offers: _Moves, chosen: NDArray[np.int64], hypergraph: OutputHypergraph, parts: _Parts, takes: NDArray[np.float64]
) -> _Moves:
    """Those of the chosen offers, the best first, that bring no part further from the mean than a step."""
    mean = takes.mean()
    chosen = chosen[np.argsort(-offers.gain[chosen], kind="stable")]
    origin = parts.part_of[offers.vertices[chosen]]
    surplus = np.maximum(takes - mean, 0) + LARGEST_STEP * mean
    moves = offers.of(chosen[_within(origin, offers.freed_load[chosen], surplus)])
    added_load = hypergraph.loads_of_vertex[moves.vertices]
    added_load -= _loads_there(moves.nets, parts.touches, moves.to, hypergraph.loads)
    room = np.maximum(mean - takes, 0) + LARGEST_STEP * mean
    return moves.of(np.flatnonzero(_within(moves.to, added_load, room)))


def refined_in_groups(
    hypergraph: OutputHypergraph,
    part: NDArray[np.int64],
    num_parts: int,
    num_rounds: int,
    random: np.random.Generator,
    temperature: float,
    factors: NDArray[np.float64] | None = None,
) -> NDArray[np.int64]:
    """Refine groups of neighbouring parts, no more of them at once than :data:`PARTS_AT_ONCE`.

    Args and result as for :func:`refined`; without ``factors`` all are 1.
    """
    factors = np.ones(num_parts) if factors is None else factors
    num_groups = -(-num_parts // PARTS_AT_ONCE)
    if num_groups == 1:
        return refined(hypergraph, part, num_parts, num_rounds, random, temperature, factors)
    part = part.copy()
    bounds = np.arange(num_groups + 1) * num_parts // num_groups
    for first, end in pairwise(bounds):
        members = np.flatnonzero((part >= first) & (part < end))
        group = hypergraph.of(members)
        part[members] = first + refined(
            group, part[members] - first, int(end - first), num_rounds, random, temperature, factors[first:end]
        )
    return part


def _freed(
    hypergraph: OutputHypergraph, parts: _Parts, vertices: NDArray[np.int64], rows: csr_array
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Input nodes and memory that the parts of some vertices would do without if each one left alone.

    Args:
        hypergraph: of the vertices.
        parts: they are in.
        vertices: int64 ``[num_rows]``.
        rows: float32 ``[num_rows, num_nets]``, of the hypergraph's nets.

    Returns:
        Two of float64 ``[num_rows]``.
    """
    row_of_pin = np.repeat(np.arange(vertices.size), np.diff(rows.indptr))
    keys = rows.indices.astype(np.int64) * parts.loads.size + parts.part_of[vertices][row_of_pin]
    alone = np.flatnonzero(parts.num_vertices.reshape(-1)[keys] == 1)
    net, row = rows.indices[alone], row_of_pin[alone]
    freed_count = np.bincount(row, weights=hypergraph.counts[net], minlength=vertices.size)
    freed_load = np.bincount(row, weights=hypergraph.loads[net], minlength=vertices.size)
    return freed_count, freed_load + hypergraph.own_loads[vertices]


def _half(takes: NDArray[np.float64], random: np.random.Generator) -> NDArray[np.bool_]:
    """A random half of the parts, the one that takes the most in it, and not the one that takes the least.

    Args:
        takes: memory of every part, float64 ``[num_parts]``, two or more.

    Returns:
        bool ``[num_parts]``, neither all nor none.
    """
    gives = np.zeros(takes.size, dtype=bool)
    gives[random.permutation(takes.size)[: takes.size // 2]] = True
    gives[takes.argmax()] = True
    gives[takes.argmin()] = False
    if not gives.any():
        gives[0] = True
    return gives


def _loads_there(
    rows: csr_array, touches: NDArray[np.float32], to: NDArray[np.int64], loads: NDArray[np.float64]
) -> NDArray[np.float64]:
    """The memory of each row's nets that are in a part already, float64 ``[num_rows]``.

    Args:
        rows: float32 ``[num_rows, num_nets]``.
        touches: float32 ``[num_nets, num_parts]``, see :class:`_Parts`.
        to: int64 ``[num_rows]``, the part to look at for each row.
        loads: float64 ``[num_nets]``.
    """
    row_of_pin = np.repeat(np.arange(to.size), np.diff(rows.indptr))
    is_there = touches[rows.indices, to[row_of_pin]] > 0
    return np.bincount(row_of_pin[is_there], weights=loads[rows.indices[is_there]], minlength=to.size)


def _within(part: NDArray[np.int64], amounts: NDArray[np.float64], most: NDArray[np.float64]) -> NDArray[np.bool_]:
    """Which of the amounts stay within what each part allows, added up in their order; the first always does.

    Args:
        part: int64 ``[num_amounts]``, of each amount.
        amounts: float64 ``[num_amounts]``.
        most: of every part, float64 ``[num_parts]``.

    Returns:
        bool ``[num_amounts]``.
    """
    order = np.argsort(part, kind="stable")
    sums = np.cumsum(amounts[order])
    starts = np.searchsorted(part[order], np.arange(most.size))
    before = sums - amounts[order]
    before -= np.concatenate([[0.0], sums])[starts][part[order]]
    within = np.empty(part.size, dtype=bool)
    within[order] = before <= most[part[order]]
    return within
