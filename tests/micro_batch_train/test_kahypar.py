"""Partitions of hypergraphs are judged by counting, net by net, the parts that touch it."""

import json
import os
import subprocess
import sys
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from scipy.sparse import csr_array

from betty import BettyError
from betty.micro_batch_train import kahypar
from betty.micro_batch_train.kahypar import minimum_connectivity


def ring(num_vertices: int, num_nets: int, seed: int) -> list[list[int]]:
    """Nets of three to six vertices near each other in a ring."""
    random = np.random.default_rng(seed)
    nets = []
    for _ in range(num_nets):
        near = (random.integers(num_vertices) + random.integers(0, 12, random.integers(3, 7))) % num_vertices
        nets.append(sorted(set(near.tolist())))
    return nets


def matrix_of(nets: list[list[int]], num_vertices: int) -> csr_array:
    pins = [(vertex, number) for number, net in enumerate(nets) for vertex in net]
    rows, columns = zip(*pins, strict=True)
    return csr_array((np.ones(len(pins), dtype=np.float32), (rows, columns)), shape=(num_vertices, len(nets)))


def connectivity(nets: list[list[int]], weights: np.ndarray, part: np.ndarray) -> float:
    return sum(
        weight * (len({int(part[vertex]) for vertex in net}) - 1) for net, weight in zip(nets, weights, strict=True)
    )


def parts_of(num_parts: int, seed: int = 3) -> np.ndarray:
    nets = ring(200, 400, seed=1)
    return minimum_connectivity(matrix_of(nets, 200), np.ones(400), np.ones(200), num_parts, seed)


def test_nets_are_in_far_fewer_parts_than_at_random() -> None:
    nets, random = ring(200, 400, seed=1), np.random.default_rng(0)
    at_random = random.permutation(200) % 8
    assert connectivity(nets, np.ones(400), parts_of(8)) < 0.4 * connectivity(nets, np.ones(400), at_random)


def test_parts_are_of_even_weight() -> None:
    random = np.random.default_rng(2)
    nets, weights = ring(200, 400, seed=1), random.uniform(0.1, 3.0, 200)
    part = minimum_connectivity(matrix_of(nets, 200), np.ones(400), weights, 8, seed=0)
    assert np.bincount(part, weights=weights).max() <= 1.1 * weights.sum() / 8


def test_a_heavy_net_stays_in_one_part() -> None:
    # A line of four in which the middle is cut, unless that costs more.
    line, ones = matrix_of([[0, 1], [1, 2], [2, 3], [3, 0]], 4), np.ones(4)
    for heavy, joined in ((1, (1, 2)), (0, (0, 1))):
        weights = np.ones(4)
        weights[[heavy, (heavy + 2) % 4]] = 2.5
        part = minimum_connectivity(line, weights, ones, 2, seed=0)
        assert part[joined[0]] == part[joined[1]]
        assert sorted(np.bincount(part)) == [2, 2]


def test_weights_of_any_size_and_unit_will_do() -> None:
    nets = matrix_of(ring(200, 400, seed=1), 200)
    for unit in (1e-12, 1.0, 1e12):
        part = minimum_connectivity(nets, np.full(400, unit), np.full(200, unit), 8, seed=3)
        assert part.tolist() == parts_of(8).tolist()


@pytest.mark.parametrize("num_parts", [2, 199])
def test_a_part_for_nearly_every_vertex_or_two_parts(num_parts: int) -> None:
    part = parts_of(num_parts)
    assert part.dtype == np.int64
    assert part.shape == (200,)
    assert part.min() >= 0
    assert part.max() < num_parts


def test_two_vertices_in_two_parts() -> None:
    assert sorted(minimum_connectivity(matrix_of([[0, 1]], 2), np.ones(1), np.array([1.0, 9.0]), 2, seed=0)) == [0, 1]


@dataclass(frozen=True)
class OtherProcess:
    imported_before: bool
    part: list[int]


@pytest.fixture(scope="module")
def other_process() -> OtherProcess:
    """What is made in a process with another number of threads."""
    threads = torch.get_num_threads() % 2 + 1
    command = (
        f"import json, sys, torch; torch.set_num_threads({threads}); import betty, betty.micro_batch_train; "
        "before = 'mtkahypar' in sys.modules; from tests.micro_batch_train.test_kahypar import parts_of; "
        "print(json.dumps([before, parts_of(8).tolist()]))"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    shown = subprocess.run([sys.executable, "-c", command], capture_output=True, text=True, check=True, env=environment)
    assert shown.stderr == ""
    return OtherProcess(*json.loads(shown.stdout))


def test_the_same_seed_gives_the_same_parts_on_any_number_of_threads(other_process) -> None:
    assert parts_of(8).tolist() == parts_of(8).tolist() == other_process.part


def test_the_library_is_imported_where_it_is_needed_only(other_process) -> None:
    assert not other_process.imported_before


def test_without_the_library_one_line_says_how_to_get_it(monkeypatch) -> None:
    monkeypatch.setitem(sys.modules, "mtkahypar", None)
    kahypar._library.cache_clear()
    with pytest.raises(BettyError, match="pip install mtkahypar") as raised:
        parts_of(2)
    assert "\n" not in str(raised.value)


def test_more_parts_than_it_can_make_are_refused_before_it_takes_all_memory() -> None:
    nets = matrix_of([[0, 1]], 10_000)
    with pytest.raises(BettyError, match="4096 parts at most, not 5000") as raised:
        minimum_connectivity(nets, np.ones(1), np.ones(10_000), 5000, seed=0)
    assert "\n" not in str(raised.value)


def test_what_the_library_refuses_is_refused_in_one_line(monkeypatch) -> None:
    monkeypatch.setattr(kahypar, "IMBALANCE", -1.0)
    with pytest.raises(BettyError, match=r"Mt-KaHyPar makes no 2 parts of 200 output nodes: .*imbalance") as raised:
        parts_of(2)
    assert str(raised.value).isprintable()
