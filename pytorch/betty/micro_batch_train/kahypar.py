"""Mt-KaHyPar, by way of its own bindings, which are imported where they are first needed."""

from __future__ import annotations

import re
from functools import cache
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.sparse import csr_array

from betty.errors import BettyError

IMBALANCE = 0.03
"""The share by which a part may weigh more than the mean."""

LARGEST_SUM = 1 << 30
"""Of the weights of all vertices, and of all nets in all parts: Mt-KaHyPar adds them up in 32 bits."""

MAX_PARTS = 4096
"""Time and memory rise with the number of parts: 4096 of 20,000 vertices and as many nets take 14 s, 64 take 2 s."""

COLOURS = re.compile(r"\x1b\[[0-9;]*m")
"""What Mt-KaHyPar puts into its messages for a terminal."""

FINEST = 100
"""The weight of a mean net, unless the sum is too large for that: weights are integers."""


def minimum_connectivity(
    nets: csr_array,
    net_weights: NDArray[np.float64],
    vertex_weights: NDArray[np.float64],
    num_parts: int,
    seed: int,
) -> NDArray[np.int64]:
    """Partition the vertices of a hypergraph into parts of even weight, with few parts per net.

    What is made small is the sum over all nets of weight · (parts that touch the net − 1). Mt-KaHyPar's deterministic
    preset is what gives the same parts in every run, on any number of threads; it takes 2.5 times as long as the
    default one.

    Args:
        nets: ``[num_vertices, num_nets]``, the nets of every vertex; values are not looked at.
        net_weights: float64 ``[num_nets]``, above 0.
        vertex_weights: float64 ``[num_vertices]``, 0 or above, some of them above 0.
        num_parts: above 1 and below ``num_vertices``, up to :data:`MAX_PARTS`.
        seed: 0 to 2³¹ - 1; the same seed gives the same parts.

    Returns:
        int64 ``[num_vertices]``, the part of every vertex. Parts may be empty.

    Raises:
        BettyError: more parts than :data:`MAX_PARTS`, or Mt-KaHyPar is not installed or refuses.
    """
    if num_parts > MAX_PARTS:
        raise BettyError(f"Mt-KaHyPar makes {MAX_PARTS} parts at most, not {num_parts}; take the method locality")
    library, runtime = _library()
    num_vertices, num_nets = nets.shape
    by_net = nets.tocsc()
    pins, bounds = by_net.indices.tolist(), by_net.indptr.tolist()
    pins_of_nets = [pins[first:end] for first, end in pairwise(bounds)]
    try:
        library.set_seed(seed)
        context = runtime.context_from_preset(library.PresetType.DETERMINISTIC)
        context.set_partitioning_parameters(num_parts, IMBALANCE, library.Objective.KM1)
        context.logging = False
        hypergraph = runtime.create_hypergraph(
            context,
            num_vertices,
            num_nets,
            pins_of_nets,
            _integers(vertex_weights, LARGEST_SUM).tolist(),
            _integers(net_weights, min(LARGEST_SUM // num_parts, FINEST * num_nets)).tolist(),
        )
        return np.array(hypergraph.partition(context).get_partition(), dtype=np.int64)
    except (
        library.InvalidInputError,
        library.InvalidParameterError,
        library.SystemError,
        library.UnsupportedOperationError,
    ) as error:
        reason = " ".join(COLOURS.sub("", str(error)).split())
        raise BettyError(f"Mt-KaHyPar makes no {num_parts} parts of {num_vertices} output nodes: {reason}") from error


@cache
def _library() -> tuple[Any, Any]:
    """The library and what its only initialization in a process gives: threads are started once."""
    try:
        import mtkahypar
    except ImportError as error:
        raise BettyError(f"partitioning by hypergraph needs Mt-KaHyPar; pip install mtkahypar ({error})") from error
    return mtkahypar, mtkahypar.initialize(torch.get_num_threads(), print_warnings=False)


def _integers(weights: NDArray[np.float64], their_sum: int) -> NDArray[np.int64]:
    """Weights as integers of 1 or more, which sum to about so much."""
    return np.maximum(np.rint(weights * (their_sum / weights.sum())), 1).astype(np.int64)
