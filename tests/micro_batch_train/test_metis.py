import os
import select
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from threading import Event, Thread

import numpy as np
import pytest
import torch
from scipy.sparse import csr_array

from betty import BettyError
from betty.micro_batch_train import metis, metis_process
from betty.micro_batch_train.metis import minimum_cut


def ring_of_cliques(num_cliques: int, size: int) -> csr_array:
    """Cliques of edges of weight 3, each joined to the next by one of weight 1."""
    num_nodes = num_cliques * size
    graph = np.zeros((num_nodes, num_nodes), dtype=np.int64)
    for first in range(0, num_nodes, size):
        graph[first : first + size, first : first + size] = 3
        following = (first + size) % num_nodes
        graph[first, following] = graph[following, first] = 1
    np.fill_diagonal(graph, 0)
    return csr_array(graph)


GRAPH = ring_of_cliques(8, 12)


@pytest.fixture(autouse=True)
def any_graph_is_worth_a_process(monkeypatch) -> None:
    monkeypatch.setattr(metis, "WORTH_A_PROCESS", 0)


def in_background(graph: csr_array, num_parts: int, seed: int) -> torch.Tensor:
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(minimum_cut, graph, num_parts, seed).result()


def test_cliques_stay_together() -> None:
    parts = minimum_cut(GRAPH, 4, seed=0).reshape(8, 12)
    assert (parts == parts[:, :1]).all()


@pytest.mark.parametrize("num_parts", [2, 5, 90])
def test_a_process_of_its_own_gives_the_same_parts(num_parts: int) -> None:
    parts = in_background(GRAPH, num_parts, seed=3)
    assert parts.dtype == torch.int64
    assert torch.equal(parts, minimum_cut(GRAPH, num_parts, seed=3))


def test_in_the_background_python_goes_on_meanwhile(monkeypatch) -> None:
    """The process waits for this thread, which could not go on if METIS ran in the other one."""
    began, may_end = Event(), Event()
    popen = subprocess.Popen

    def begun(*args, **kwargs) -> subprocess.Popen:
        began.set()
        assert may_end.wait(60)
        return popen(*args, **kwargs)

    monkeypatch.setattr(metis_process.subprocess, "Popen", begun)
    thread = Thread(target=minimum_cut, args=(GRAPH, 4, 0))
    thread.start()
    assert began.wait(60)
    may_end.set()
    thread.join(60)
    assert not thread.is_alive()


def test_a_process_that_fails_is_an_error(monkeypatch) -> None:
    monkeypatch.setattr(metis_process.sys, "executable", "false")
    with pytest.raises(BettyError, match="METIS ended with code 1 on 96 output nodes"):
        in_background(GRAPH, 4, seed=0)


def test_a_small_graph_is_cut_here(monkeypatch) -> None:
    monkeypatch.setattr(metis, "WORTH_A_PROCESS", GRAPH.nnz + 1)
    monkeypatch.setattr(metis, "cut_in_a_process", None)
    assert torch.equal(in_background(GRAPH, 4, seed=0), minimum_cut(GRAPH, 4, seed=0))


PARENT = """
import os, subprocess, sys, time

started = subprocess.Popen([sys.executable, "-m", "betty.micro_batch_train.metis_process", str(os.getpid())])
print(started.pid, flush=True)
time.sleep(600)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="needs Linux's death signal of parents")
def test_the_process_dies_with_the_one_that_started_it() -> None:
    source = str(metis_process.SOURCE_ROOT)
    process = subprocess.Popen(
        [sys.executable, "-c", PARENT],
        env=os.environ | {"PYTHONPATH": source},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    number = int(process.stdout.readline())
    # More than a pipe holds: when it is written, METIS' process reads, and it waits for the rest.
    process.stdin.write(b'{"sizes": [1000000], "num_parts": 2, "seed": 0}\n' + bytes(1_000_000))
    process.stdin.flush()
    os.kill(number, 0)
    process.kill()
    # METIS' process holds the output as long as it lives, while its input stays open here.
    assert select.select([process.stdout], [], [], 60)[0]
    assert process.stdout.read() == b""
    process.stdin.close()
    process.wait()
