"""Partitioning the output nodes of a full batch into the parts that become micro-batches."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from functools import cached_property, partial

import numpy as np
import torch
from torch import Tensor

from betty.blocks import FullBatch
from betty.errors import BettyError
from betty.micro_batch_train.cutting import MicroBatchCutter
from betty.micro_batch_train.metis import minimum_cut
from betty.micro_batch_train.output_graphs import induced_graph, redundancy_graph
from betty.micro_batch_train.redundancy import input_nodes
from betty.seeds import derive_seed, generator

logger = logging.getLogger(__name__)


Assign = Callable[[int], Tensor]
"""Assigns the output nodes of one full batch to a number of parts above 1 and below the number of output nodes.

It returns the part of every output node, int64 ``[num_outputs]``, and may leave parts empty.
"""

PartitionMethod = Callable[[FullBatch, int], Assign]

METHODS: dict[str, PartitionMethod] = {}
"""Every method by its name.

A method takes a full batch and a seed and returns what assigns the output nodes to any number of parts, so that what
costs the most, such as the graph that is cut, is made once for all numbers that are tried.
"""


def partition_method(name: str) -> Callable[[PartitionMethod], PartitionMethod]:
    """Make a function known to :func:`partition` under a name."""

    def register(method: PartitionMethod) -> PartitionMethod:
        METHODS[name] = method
        return method

    return register


@partition_method("range")
def _in_order(full_batch: FullBatch, seed: int) -> Assign:
    """Output nodes in their order, in parts whose sizes differ by one at most."""
    num_outputs = full_batch.output_ids.numel()

    return lambda num_parts: torch.arange(num_outputs) * num_parts // num_outputs


@partition_method("random")
def _at_random(full_batch: FullBatch, seed: int) -> Assign:
    """Output nodes in random order, in parts whose sizes differ by one at most."""
    order = torch.randperm(full_batch.output_ids.numel(), generator=generator(seed, "partition"))
    return lambda num_parts: order % num_parts


@partition_method("metis")
def _by_minimum_cut(full_batch: FullBatch, seed: int) -> Assign:
    """A minimum cut of the edges of the last block that join two output nodes."""
    return partial(minimum_cut, induced_graph(full_batch.blocks[-1]), seed=derive_seed(seed, "partition"))


@partition_method("REG")
def _by_shared_nodes(full_batch: FullBatch, seed: int) -> Assign:
    """A minimum cut of the redundancy-embedded graph (Betty, ASPLOS 2023, section 4)."""
    return partial(minimum_cut, redundancy_graph(full_batch.blocks[-1]), seed=derive_seed(seed, "partition"))


class Partitioner:
    """Makes any number of parts of one full batch; what these have in common is made once, when it is first needed.

    Args:
        full_batch: in host memory.
        method: a name in :data:`METHODS`, in any case.
        seed: the same seed gives the same parts.

    Raises:
        BettyError: no such method.
    """

    def __init__(self, full_batch: FullBatch, method: str = "REG", seed: int = 0) -> None:
        self._prepare = partial(_find_method(method), full_batch, seed)
        self._num_outputs = full_batch.output_ids.numel()

    @cached_property
    def _assign(self) -> Assign:
        return self._prepare()

    def parts(self, num_parts: int) -> list[Tensor]:
        """Make parts, as :func:`partition` does."""
        if not isinstance(num_parts, int) or num_parts < 1:
            raise BettyError(f"cannot make {num_parts} parts of a full batch; ask for a whole number of 1 or more")
        if self._num_outputs == 0:
            return []
        if num_parts == 1:
            part_of_output = torch.zeros(self._num_outputs, dtype=torch.int64)
        elif num_parts >= self._num_outputs:
            part_of_output = torch.arange(self._num_outputs)
        else:
            part_of_output = self._assign(num_parts)
        return _positions_by_part(part_of_output)


def partition(full_batch: FullBatch, num_parts: int, method: str = "REG", seed: int = 0) -> list[Tensor]:
    """Partition the output nodes of a full batch.

    Args:
        full_batch: in host memory.
        num_parts: how many parts to make. Parts that come out empty are left out, so that there are never more parts
            than output nodes; METIS leaves some empty where parts are to hold a few nodes only.
        method: a name in :data:`METHODS`, in any case.
        seed: the same seed gives the same parts.

    Returns:
        int64 tensors of positions in ``full_batch.output_ids``: each ascending and not empty, all disjoint, together
        every position.

    Raises:
        BettyError: no such method, or ``num_parts`` is below 1.
    """
    return Partitioner(full_batch, method, seed).parts(num_parts)


def _find_method(name: str) -> PartitionMethod:
    for known, method in METHODS.items():
        if known.lower() == name.lower():
            return method
    raise BettyError(f"unknown partitioning method {name!r}; known are: {', '.join(METHODS)}")


def _positions_by_part(part_of_output: Tensor) -> list[Tensor]:
    sizes = part_of_output.bincount()
    # By NumPy, which takes a fraction of the time that PyTorch's threads do.
    positions = torch.from_numpy(np.argsort(part_of_output.numpy(), kind="stable"))
    return list(positions.split(sizes[sizes > 0].tolist()))


def re_partition(
    full_batch: FullBatch, parts: Sequence[Tensor], times: int, method: str = "REG", seed: int = 0
) -> list[Tensor]:
    """Split the micro-batch with the most input nodes in two, again and again.

    A micro-batch of one output node cannot be split; then the next largest is. Where none is left, it ends early.

    Args:
        full_batch: in host memory.
        parts: as :func:`partition` returns them.
        times: how often to split.
        method: partitions the micro-batch to be split; a name in :data:`METHODS`, in any case.
        seed: for the method.

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
        parts[largest : largest + 1] = halves(full_batch, parts[largest], method, seed)
    return parts


def halves(full_batch: FullBatch, part: Tensor, method: str = "REG", seed: int = 0) -> list[Tensor]:
    """Split one part in two.

    Args:
        full_batch: in host memory.
        part: int64 ``[num_outputs]``, ascending positions in ``full_batch.output_ids``, two or more.
        method: partitions the part's micro-batch; a name in :data:`METHODS`, in any case.
        seed: for the method.

    Returns:
        Two parts, each ascending and not empty.

    Raises:
        BettyError: no such method.
    """
    (micro_batch,) = MicroBatchCutter(full_batch).cut([part])
    positions = partition(micro_batch, 2, method, seed)
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
