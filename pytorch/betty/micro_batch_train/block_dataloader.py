"""Cutting micro-batches out of a full batch, and loading them one ahead of the training."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property

import numpy as np
import torch
from scipy.sparse import csr_array
from torch import Tensor

from betty.blocks import Block, FullBatch, MicroBatch, chain_blocks, index_dtype
from betty.device_loader import DeviceLoader, LoadedBatch, one_ahead
from betty.errors import BettyError


class MicroBatchCutter:
    """Cuts micro-batches out of one full batch.

    A node has one position in all blocks of a full batch, so a micro-batch is cut by walking from its output nodes
    to the inputs: slice the nodes' rows out of the block, append the sources not met before to the nodes, go on with
    the block before. One scratch array translates positions in the full batch into local ids of the micro-batch and
    serves all layers and all micro-batches.

    Cutting takes O(edges of the micro-batch), and a scan of one byte per input node of the full batch and layer,
    which finds the new sources in ascending order: features are then gathered in the order in which they lie in
    memory. Not for use by several threads at once.

    Args:
        full_batch: what to cut; its tensors are read in place, never copied.
    """

    def __init__(self, full_batch: FullBatch) -> None:
        num_inputs = full_batch.input_ids.numel()
        self._full_batch = full_batch
        self._rows = [_sparse_rows(block, num_inputs) for block in full_batch.blocks]
        self._local_ids = np.empty(num_inputs, dtype=np.int32 if index_dtype(num_inputs) == torch.int32 else np.int64)
        self._is_new = np.zeros(num_inputs, dtype=bool)

    def cut(self, positions: Tensor) -> MicroBatch:
        """Cut the micro-batch of some output nodes.

        Args:
            positions: int64 ``[num_outputs]``, distinct positions in the full batch's ``output_ids``.

        Returns:
            The micro-batch whose output nodes are these, in this order.
        """
        nodes = positions.numpy()
        self._local_ids[nodes] = np.arange(nodes.size, dtype=self._local_ids.dtype)
        layers = []
        for rows in reversed(self._rows):
            edges = rows[nodes]
            new_nodes = self._new_sources(edges.indices, nodes)
            self._local_ids[new_nodes] = np.arange(nodes.size, nodes.size + new_nodes.size, dtype=self._local_ids.dtype)
            indptr = torch.from_numpy(edges.indptr.astype(np.int64, copy=False))
            layers.append((indptr, torch.from_numpy(self._local_ids.take(edges.indices))))
            nodes = np.concatenate([nodes, new_nodes])
        input_ids = self._full_batch.input_ids.index_select(0, torch.from_numpy(nodes))
        weight = positions.numel() / self._full_batch.output_ids.numel()
        return MicroBatch(chain_blocks(layers[::-1], input_ids), weight)

    def _new_sources(self, sources: np.ndarray, nodes: np.ndarray) -> np.ndarray:
        """The distinct sources that are not among the nodes, ascending."""
        self._is_new[sources] = True
        self._is_new[nodes] = False
        new_nodes = np.flatnonzero(self._is_new)
        self._is_new[new_nodes] = False
        return new_nodes


def _sparse_rows(block: Block, num_inputs: int) -> csr_array:
    # SciPy slices rows about twice as fast as index arithmetic on tensors does. The values are of no use.
    values = np.ones(block.num_edges, dtype=np.int8)
    return csr_array((values, block.indices.numpy(), block.indptr.numpy()), shape=(block.num_dst, num_inputs))


def split(full_batch: FullBatch, parts: Sequence[Tensor]) -> list[MicroBatch]:
    """Split a full batch into micro-batches.

    Args:
        full_batch: what to split, in host memory.
        parts: int64 tensors of positions in ``full_batch.output_ids``, which together hold every position once.

    Returns:
        One micro-batch per part, in the order of the parts.

    Raises:
        BettyError: the parts overlap or leave out output nodes.
    """
    check_parts(full_batch, parts)
    workers = max(1, min(torch.get_num_threads(), len(parts)))
    with ThreadPoolExecutor(workers) as pool:
        shares = list(pool.map(lambda first: _cut_all(full_batch, parts[first::workers]), range(workers)))
    return [shares[index % workers][index // workers] for index in range(len(parts))]


def _cut_all(full_batch: FullBatch, parts: Sequence[Tensor]) -> list[MicroBatch]:
    cutter = MicroBatchCutter(full_batch)
    return [cutter.cut(part) for part in parts]


def check_parts(full_batch: FullBatch, parts: Sequence[Tensor]) -> None:
    """Refuse parts that do not hold every output node exactly once.

    Raises:
        BettyError: they do not, or one is empty.
    """
    num_outputs = full_batch.output_ids.numel()
    if any(part.numel() == 0 for part in parts):
        raise BettyError("a part has no output nodes; leave it out")
    positions = torch.cat(list(parts)) if parts else torch.empty(0, dtype=torch.int64)
    in_range = positions.numel() == num_outputs and bool(((positions >= 0) & (positions < num_outputs)).all())
    if not in_range or bool((torch.bincount(positions, minlength=num_outputs) != 1).any()):
        raise BettyError(
            f"the parts hold {positions.numel()} positions, but must hold each of the {num_outputs} output nodes once"
        )


class MicroBatchLoader:
    """Yields the micro-batches of a full batch on the device, the next one being made while this one trains.

    A background thread cuts the next micro-batch, gathers its features and labels and copies them to the device. It
    runs one ahead and no further: no more than two micro-batches are alive at a time, as long as the caller keeps
    none of them. An error in the background is raised from the loop; leaving the loop early ends the thread.

    Args:
        full_batch: in host memory.
        parts: as for :func:`split`.
        device_loader: gathers and copies.
    """

    def __init__(self, full_batch: FullBatch, parts: Sequence[Tensor], device_loader: DeviceLoader) -> None:
        check_parts(full_batch, parts)
        self._full_batch = full_batch
        self._parts = parts
        self._device_loader = device_loader

    def __len__(self) -> int:
        return len(self._parts)

    def __iter__(self) -> Iterator[LoadedBatch]:
        return map(self._device_loader.hand_over, one_ahead(self._load, self._parts))

    @cached_property
    def _cutter(self) -> MicroBatchCutter:
        return MicroBatchCutter(self._full_batch)

    def _load(self, part: Tensor) -> LoadedBatch:
        start = time.perf_counter()
        micro_batch = self._cutter.cut(part)
        return self._device_loader.load(micro_batch, prepare_s=time.perf_counter() - start)
