"""Partitioning the output nodes of a full batch into the parts that become micro-batches."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Protocol, runtime_checkable

import numpy as np
import torch
from torch import Tensor

from betty.blocks import FullBatch
from betty.errors import BettyError
from betty.micro_batch_train.cutting import MicroBatchCutter
from betty.micro_batch_train.hypergraph_parts import HypergraphParts
from betty.micro_batch_train.locality_parts import LocalityParts
from betty.micro_batch_train.metis import minimum_cut
from betty.micro_batch_train.ordered_outputs import OrderedOutputs
from betty.micro_batch_train.output_graphs import MAX_SHARING, induced_graph, redundancy_graph
from betty.micro_batch_train.plan import Estimate
from betty.micro_batch_train.redundancy import input_nodes
from betty.seeds import derive_seed, generator

logger = logging.getLogger(__name__)

DEFAULT_METHOD = "locality"

SERVE_EVERY_EPOCH = frozenset({"locality", "hypergraph"})
"""Methods whose parts of one full batch are good for others of the same output nodes, and dear enough to be kept."""


@dataclass(frozen=True, eq=False)
class PartitionProblem:
    """What a method may look at.

    Args:
        full_batch: in host memory.
        seed: the same seed gives the same parts.
        estimate: what training on a micro-batch takes, for methods that make its memory even; these do without if it
            is not given.
        leaves: of a known locality order, int64 ``[num_outputs]``, see
            :func:`~betty.micro_batch_train.locality.locality_leaves`; made where it is needed if not given.
        reg_max_degree: output nodes that may share a node for it to count in the redundancy-embedded graph.
    """

    full_batch: FullBatch
    seed: int = 0
    estimate: Estimate | None = None
    leaves: Tensor | None = None
    reg_max_degree: int = MAX_SHARING


Assign = Callable[[int], Tensor]
"""Assigns the output nodes of one full batch to a number of parts above 1 and below the number of output nodes.

It returns the part of every output node, int64 ``[num_outputs]``, and may leave parts empty.
"""

PartitionMethod = Callable[[PartitionProblem], Assign]

METHODS: dict[str, PartitionMethod] = {}
"""Every method by its name.

A method takes a problem and returns what assigns the output nodes to any number of parts, so that what costs the most,
such as the graph that is cut, is made once for all numbers that are tried.
"""


def partition_method(name: str) -> Callable[[PartitionMethod], PartitionMethod]:
    """Make a function known to :func:`partition` under a name."""

    def register(method: PartitionMethod) -> PartitionMethod:
        METHODS[name] = method
        return method

    return register


@partition_method("range")
def _in_order(problem: PartitionProblem) -> Assign:
    """Output nodes in their order, in parts whose sizes differ by one at most."""
    num_outputs = problem.full_batch.output_ids.numel()
    return lambda num_parts: torch.arange(num_outputs) * num_parts // num_outputs


@partition_method("random")
def _at_random(problem: PartitionProblem) -> Assign:
    """Output nodes in random order, in parts whose sizes differ by one at most."""
    order = torch.randperm(problem.full_batch.output_ids.numel(), generator=generator(problem.seed, "partition"))
    return lambda num_parts: order % num_parts


@partition_method("metis")
def _by_minimum_cut(problem: PartitionProblem) -> Assign:
    """A minimum cut of the edges of the last block that join two output nodes."""
    graph = induced_graph(problem.full_batch.blocks[-1])
    return partial(minimum_cut, graph, seed=derive_seed(problem.seed, "partition"))


@partition_method("REG")
def _by_shared_nodes(problem: PartitionProblem) -> Assign:
    """A minimum cut of the redundancy-embedded graph (Betty, ASPLOS 2023, section 4)."""
    graph = redundancy_graph(problem.full_batch.blocks[-1], problem.reg_max_degree)
    return partial(minimum_cut, graph, seed=derive_seed(problem.seed, "partition"))


@partition_method("locality")
def _by_locality(problem: PartitionProblem) -> Assign:
    """Runs of a locality order, refined until they take the same memory and load little twice."""
    return LocalityParts(_ordered_outputs(problem))


@partition_method("hypergraph")
def _by_minimum_connectivity(problem: PartitionProblem) -> Assign:
    """A partition by Mt-KaHyPar of the hypergraph of shared input nodes, refined until parts take the same memory."""
    return HypergraphParts(_ordered_outputs(problem))


def _ordered_outputs(problem: PartitionProblem) -> OrderedOutputs:
    return OrderedOutputs(problem.full_batch, problem.seed, problem.estimate, problem.leaves)


@runtime_checkable
class _AssignsSegments(Protocol):
    """Assigns to parts that are to be joined with their neighbours, at less cost than to parts that stay so."""

    def segments(self, num_segments: int) -> Tensor: ...


class Partitioner:
    """Makes any number of parts of one full batch; what these have in common is made once, when it is first needed.

    Args:
        problem: what to partition.
        method: a name in :data:`METHODS`, in any case.

    Raises:
        BettyError: no such method.
    """

    def __init__(self, problem: PartitionProblem, method: str = DEFAULT_METHOD) -> None:
        self._problem = problem
        self._method = method
        self._prepare = partial(_find_method(method), problem)
        self._num_outputs = problem.full_batch.output_ids.numel()

    @cached_property
    def _assign(self) -> Assign:
        return self._prepare()

    def parts(self, num_parts: int) -> list[Tensor]:
        """Make parts, as :func:`partition` does."""
        return self._parts(num_parts, lambda: self._assign(num_parts))

    def segments(self, num_segments: int) -> list[Tensor]:
        """Make small parts of which neighbours share the most."""

        def assign() -> Tensor:
            if isinstance(self._assign, _AssignsSegments):
                return self._assign.segments(num_segments)
            # METIS numbers the parts of its recursive bisection in the order of its tree.
            return self._assign(num_segments)

        return self._parts(num_segments, assign)

    def halves(self, part: Tensor) -> list[Tensor]:
        """Split one part of several output nodes in two, as :func:`halves` does."""
        problem = self._problem
        return halves(problem.full_batch, part, self._method, problem.seed, problem.reg_max_degree)

    @property
    def refines(self) -> bool:
        """Whether its parts are better than runs of its segments."""
        return isinstance(self._assign, _AssignsSegments)

    def _parts(self, num_parts: int, assign: Callable[[], Tensor]) -> list[Tensor]:
        if not isinstance(num_parts, int) or num_parts < 1:
            raise BettyError(f"cannot make {num_parts} parts of a full batch; ask for a whole number of 1 or more")
        if self._num_outputs == 0:
            return []
        if num_parts == 1:
            part_of_output = torch.zeros(self._num_outputs, dtype=torch.int64)
        elif num_parts >= self._num_outputs:
            part_of_output = torch.arange(self._num_outputs)
        else:
            part_of_output = assign()
        return positions_by_part(part_of_output)


def partition(
    full_batch: FullBatch,
    num_parts: int,
    method: str = DEFAULT_METHOD,
    seed: int = 0,
    *,
    estimate: Estimate | None = None,
    reg_max_degree: int = MAX_SHARING,
) -> list[Tensor]:
    """Partition the output nodes of a full batch.

    Args:
        full_batch: in host memory.
        num_parts: how many parts to make. Parts that come out empty are left out, so that there are never more parts
            than output nodes; METIS leaves some empty where parts are to hold a few nodes only.
        method: a name in :data:`METHODS`, in any case.
        seed: the same seed gives the same parts.
        estimate: what training on a micro-batch takes, for ``locality`` and ``hypergraph``, which make it even; see
            :func:`~betty.micro_batch_train.model_estimate`. Without one, nodes and edges are made even.
        reg_max_degree: output nodes that may share a node for it to count in ``REG``.

    Returns:
        int64 tensors of positions in ``full_batch.output_ids``: each ascending and not empty, all disjoint, together
        every position.

    Raises:
        BettyError: no such method, or ``num_parts`` is below 1.
    """
    problem = PartitionProblem(full_batch, seed, estimate, reg_max_degree=reg_max_degree)
    return Partitioner(problem, method).parts(num_parts)


def _find_method(name: str) -> PartitionMethod:
    for known, method in METHODS.items():
        if known.lower() == name.lower():
            return method
    raise BettyError(f"unknown partitioning method {name!r}; known are: {', '.join(METHODS)}")


def positions_by_part(part_of_output: Tensor) -> list[Tensor]:
    """The positions of every part that is not empty, ascending, from the part of each output node."""
    sizes = part_of_output.bincount()
    # By NumPy, which takes a fraction of the time that PyTorch's threads do.
    positions = torch.from_numpy(np.argsort(part_of_output.numpy(), kind="stable"))
    return list(positions.split(sizes[sizes > 0].tolist()))


def re_partition(
    full_batch: FullBatch,
    parts: Sequence[Tensor],
    times: int,
    method: str = "REG",
    seed: int = 0,
    reg_max_degree: int = MAX_SHARING,
) -> list[Tensor]:
    """Split the micro-batch with the most input nodes in two, again and again.

    A micro-batch of one output node cannot be split; then the next largest is. Where none is left, it ends early.

    Args:
        full_batch: in host memory.
        parts: as :func:`partition` returns them.
        times: how often to split.
        method: partitions the micro-batch to be split; a name in :data:`METHODS`, in any case.
        seed: for the method.
        reg_max_degree: output nodes that may share a node for it to count in ``REG``.

    Returns:
        ``parts``, the two halves in the place of what was split.

    Raises:
        BettyError: no such method.
    """
    _find_method(method)
    parts = list(parts)
    for done in range(times):
        largest = _largest_divisible(full_batch, parts)
        if largest is None:
            logger.info("re-partitioned %d of %d times: every micro-batch is down to one output node", done, times)
            break
        parts[largest : largest + 1] = halves(full_batch, parts[largest], method, seed, reg_max_degree)
    return parts


def halves(
    full_batch: FullBatch, part: Tensor, method: str = "REG", seed: int = 0, reg_max_degree: int = MAX_SHARING
) -> list[Tensor]:
    """Split one part in two.

    Args:
        full_batch: in host memory.
        part: int64 ``[num_outputs]``, ascending positions in ``full_batch.output_ids``, two or more.
        method: partitions the part's micro-batch; a name in :data:`METHODS`, in any case.
        seed: for the method.
        reg_max_degree: output nodes that may share a node for it to count in ``REG``.

    Returns:
        Two parts, each ascending and not empty.

    Raises:
        BettyError: no such method.
    """
    (micro_batch,) = MicroBatchCutter(full_batch).cut([part])
    positions = partition(micro_batch, 2, method, seed, reg_max_degree=reg_max_degree)
    if len(positions) == 1:
        # The method left one of the two empty.
        positions = positions[0].chunk(2)
    return [part.index_select(0, half) for half in positions]


def _largest_divisible(full_batch: FullBatch, parts: Sequence[Tensor]) -> int | None:
    """The part with the most input nodes among those of several output nodes."""
    is_divisible = torch.tensor([part.numel() > 1 for part in parts], dtype=torch.bool)
    if not is_divisible.any():
        return None
    return int(input_nodes(full_batch, parts).where(is_divisible, -1).argmax())
