"""METIS, by way of pymetis."""

from __future__ import annotations

import threading
from subprocess import CalledProcessError

import numpy as np
import pymetis
import torch
from scipy.sparse import csr_array
from torch import Tensor

from betty.errors import BettyError
from betty.micro_batch_train.metis_process import cut, cut_in_a_process

WORTH_A_PROCESS = 1 << 20
"""Entries of a graph from which on it takes METIS longer to cut it than a process to start, a tenth of a second."""


def minimum_cut(graph: csr_array, num_parts: int, seed: int) -> Tensor:
    """Partition the nodes of a graph into parts of equal size so that the edges between parts weigh little.

    By recursive bisection: on graphs of output nodes it gave parts of more even size than METIS's direct K-way scheme,
    fewer empty ones, and mostly the lower redundancy in the same time.

    Args:
        graph: symmetric ``[num_nodes, num_nodes]``, without a diagonal; integer weights above 0.
        num_parts: above 1 and below ``num_nodes``: METIS is not made for more parts than nodes.
        seed: 0 to 2³¹ - 1; the same seed gives the same parts.

    Returns:
        int64 ``[num_nodes]``, the part of every node. Where a part is to hold a few nodes only, some may be empty.

    Raises:
        BettyError: the process in which METIS ran in the background was ended.
    """
    index = pymetis.zero_copy_dtype()
    arrays = tuple(np.asarray(array, dtype=index) for array in (graph.indptr, graph.indices, graph.data))
    # Beside a training, that is in the background, METIS must not keep Python's lock for long.
    in_background = threading.current_thread() is not threading.main_thread()
    try:
        own_process = in_background and graph.nnz >= WORTH_A_PROCESS
        parts = (cut_in_a_process if own_process else cut)(arrays, num_parts, seed)
    except CalledProcessError as error:
        last_words = error.stderr.decode(errors="replace").strip().rpartition("\n")[2]
        raise BettyError(
            f"METIS ended with code {error.returncode} on {graph.shape[0]} output nodes ({last_words or 'no word'}); "
            "free memory of this machine"
        ) from error
    return torch.from_numpy(parts.astype(np.int64))
