"""METIS in a process of its own: its binding keeps Python's lock, and would stop the training that it runs beside.

A program and a module that does without PyTorch, so that it starts in a tenth of a second. The graph comes by the
standard input and the parts go to the standard output: a line of JSON, then the bytes of the arrays.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import BinaryIO

import numpy as np
import pymetis
from numpy.typing import NDArray

from betty.watch import die_with

SOURCE_ROOT = Path(__file__).parents[2]

Graph = tuple[NDArray[np.integer], NDArray[np.integer], NDArray[np.integer]]
"""Row starts, neighbours and weights of the edges of a symmetric graph in CSR form, in METIS's own index type."""


def cut(graph: Graph, num_parts: int, seed: int) -> NDArray[np.integer]:
    """The part of every node: integer ``[num_nodes]``."""
    starts, neighbours, weights = graph
    result = pymetis.part_graph(
        num_parts,
        pymetis.CSRAdjacency(starts, neighbours),
        eweights=weights,
        recursive=True,
        options=pymetis.Options(seed=seed),
    )
    return np.array(result.vertex_part, dtype=pymetis.zero_copy_dtype())


def cut_in_a_process(graph: Graph, num_parts: int, seed: int) -> NDArray[np.integer]:
    """What :func:`cut` returns, from another process.

    Raises:
        subprocess.CalledProcessError: it did not end well; with what it said.
    """
    header = json.dumps({"sizes": [array.size for array in graph], "num_parts": num_parts, "seed": seed})
    sent = b"".join([header.encode(), b"\n", *(np.ascontiguousarray(array).data for array in graph)])
    search_path = os.pathsep.join([str(SOURCE_ROOT), *os.environ.get("PYTHONPATH", "").split(os.pathsep)])
    done = subprocess.run(
        [sys.executable, "-m", "betty.micro_batch_train.metis_process", str(os.getpid())],
        input=sent,
        capture_output=True,
        check=True,
        env=os.environ | {"PYTHONPATH": search_path},
    )
    return np.frombuffer(done.stdout, dtype=pymetis.zero_copy_dtype())


def serve(source: BinaryIO, target: BinaryIO) -> None:
    """Cut the graph that comes, and write the parts."""
    header = json.loads(source.readline())
    index = np.dtype(pymetis.zero_copy_dtype())
    graph = tuple(np.frombuffer(source.read(size * index.itemsize), dtype=index) for size in header["sizes"])
    target.write(cut(graph, header["num_parts"], header["seed"]).data)


if __name__ == "__main__":
    die_with(int(sys.argv[1]))
    serve(sys.stdin.buffer, sys.stdout.buffer)
