"""The locality order of a data set: made once for all its training nodes, whatever is sampled for them."""

from __future__ import annotations

import logging
import time
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.sparse import csr_array, get_index_dtype
from torch import Tensor

from betty.datasets import Dataset
from betty.datasets.graph import csc
from betty.dgl_compat import dgl
from betty.full_batch.manifest import Recipe
from betty.micro_batch_train.locality import locality_leaves
from betty.micro_batch_train.stored_parts import StoredTensors
from betty.seeds import derive_seed

logger = logging.getLogger(__name__)

NAME = "locality-order"


class LocalityOrder:
    """Small groups of the training nodes, numbered so that near ones share neighbours in the whole graph.

    Args:
        node_ids: int64 ``[num_train]``, the training nodes.
        leaves: int64 ``[num_train]``, the group of each.
        num_nodes: of the graph.
    """

    def __init__(self, node_ids: Tensor, leaves: Tensor, num_nodes: int) -> None:
        self._leaf_of_node = torch.zeros(num_nodes, dtype=torch.int64)
        self._leaf_of_node[node_ids] = leaves

    def leaves_of(self, output_ids: Tensor) -> Tensor:
        """The groups of some of the training nodes, without gaps in their numbers: int64 ``[num_outputs]``."""
        _, leaves = self._leaf_of_node[output_ids].unique(return_inverse=True)
        return leaves


def stored_order(dataset: Dataset, recipe: Recipe, root: Path) -> LocalityOrder:
    """The locality order of a data set, from the disk or made and stored.

    Args:
        dataset: its graph and its training nodes.
        recipe: of full batches of these, with the fingerprints of both and the seed of METIS.
        root: folder of all stored full batches.
    """
    seed = recipe.seed
    # Beside the full batches of all fan-outs: the order is the same for them.
    store = StoredTensors(recipe.folder(root).parent, {"graph": recipe.graph, "node_ids": recipe.output_ids})
    leaves = store.load(NAME, {"seed": seed})
    if leaves is None or leaves.numel() != dataset.train_ids.numel():
        logger.info("making the locality order of %s training nodes, once", f"{dataset.train_ids.numel():,}")
        started = time.perf_counter()
        needs = neighbourhoods(dataset.graph, dataset.train_ids)
        leaves = torch.from_numpy(locality_leaves(needs, derive_seed(seed, "partition"))).int()
        store.save(NAME, {"seed": seed}, leaves)
        logger.info("made the locality order in %.1f s", time.perf_counter() - started)
    return LocalityOrder(dataset.train_ids, leaves.long(), dataset.graph.num_nodes())


def neighbourhoods(graph: dgl.DGLGraph, node_ids: Tensor) -> csr_array:
    """Some nodes and all their in-neighbours: float32 ``[num_rows, num_nodes]`` of ones."""
    indptr, indices = (tensor.numpy() for tensor in csc(graph))
    rows = node_ids.numpy()
    degrees = indptr[rows + 1] - indptr[rows]
    starts = np.zeros(rows.size + 1, dtype=np.int64)
    np.cumsum(degrees, out=starts[1:])
    positions = np.arange(starts[-1]) + np.repeat(indptr[rows] - starts[:-1], degrees)
    neighbours = _rows_of_ones(indices[positions], starts, graph.num_nodes())
    needs = neighbours + _rows_of_ones(rows, np.arange(rows.size + 1), graph.num_nodes())
    needs.data.fill(1)
    return needs


def _rows_of_ones(columns: NDArray, starts: NDArray, num_columns: int) -> csr_array:
    index = get_index_dtype(maxval=max(columns.size, num_columns))
    ones = np.ones(columns.size, dtype=np.float32)
    return csr_array((ones, columns.astype(index), starts.astype(index)), shape=(starts.size - 1, num_columns))
