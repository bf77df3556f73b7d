import os
import subprocess
import sys
import zlib

import numpy as np
import pytest
from scipy.sparse import csr_array

from betty.micro_batch_train.output_hypergraph import OutputHypergraph
from betty.micro_batch_train.refinement import _Parts, _within, refined


def random_hypergraph(num_vertices: int, num_nets: int, seed: int) -> OutputHypergraph:
    """Every vertex has up to six nets near its place in a row, whole numbers of memory, and one net is everybody's."""
    draw = np.random.default_rng(seed)
    pins = np.zeros((num_vertices, num_nets), dtype=np.float32)
    for vertex in range(num_vertices):
        place = vertex * num_nets // num_vertices
        pins[vertex, (place + draw.integers(0, 12, size=draw.integers(0, 7))) % num_nets] = 1
    pins[:, :1] = 1
    counts = draw.integers(0, 2, size=num_nets).astype(np.float64)
    return OutputHypergraph(
        csr_array(pins),
        draw.integers(1, 10, size=num_nets).astype(np.float64),
        counts,
        draw.integers(1, 20, size=num_vertices).astype(np.float64),
    )


def loads_written_out(hypergraph: OutputHypergraph, part: np.ndarray, num_parts: int) -> list[float]:
    pins = hypergraph.nets.toarray() > 0
    return [
        float(hypergraph.loads[pins[part == number].any(axis=0)].sum() + hypergraph.own_loads[part == number].sum())
        for number in range(num_parts)
    ]


def copies(hypergraph: OutputHypergraph, part: np.ndarray, num_parts: int) -> float:
    pins = hypergraph.nets.toarray() > 0
    return sum(hypergraph.counts[pins[part == number].any(axis=0)].sum() for number in range(num_parts))


def run(
    hypergraph: OutputHypergraph,
    part: np.ndarray,
    num_parts: int,
    seed: int = 0,
    temperature: float = 0.3,
    num_rounds: int = 40,
    factors: np.ndarray | None = None,
) -> np.ndarray:
    factors = np.ones(num_parts) if factors is None else factors
    return refined(hypergraph, part, num_parts, num_rounds, np.random.default_rng(seed), temperature, factors)


@pytest.mark.parametrize("num_parts", [2, 3, 8, 33])
def test_loads_and_touches_after_many_moves_are_those_made_from_scratch(num_parts: int) -> None:
    hypergraph = random_hypergraph(120, 90, seed=num_parts)
    draw = np.random.default_rng(num_parts)
    parts = _Parts(hypergraph, draw.integers(num_parts, size=120), num_parts)
    for _ in range(60):
        gives = draw.permutation(num_parts) < draw.integers(1, num_parts)
        candidates = np.flatnonzero(gives[parts.part_of])
        moved = draw.permutation(candidates)[: draw.integers(0, candidates.size + 1)]
        to = draw.choice(np.flatnonzero(~gives), size=moved.size)
        expected = parts.part_of.copy()
        expected[moved] = to
        parts.move(moved, hypergraph.nets[moved], to)
        assert parts.part_of.tolist() == expected.tolist()
        assert parts.loads.tolist() == loads_written_out(hypergraph, expected, num_parts)
        members = expected == np.arange(num_parts)[:, None]
        num_vertices = (hypergraph.nets.toarray().T > 0).astype(int) @ members.T
        assert parts.num_vertices.tolist() == num_vertices.tolist()
        assert parts.touches.tolist() == (num_vertices > 0).tolist()


@pytest.mark.parametrize("num_parts", [2, 5, 16])
@pytest.mark.parametrize("seed", range(4))
def test_the_largest_part_never_takes_more_than_at_first(num_parts: int, seed: int) -> None:
    hypergraph = random_hypergraph(150, 120, seed)
    for start in (
        np.arange(150) % num_parts,
        np.arange(150) * num_parts // 150,
        np.zeros(150, dtype=np.int64),
        np.random.default_rng(seed).integers(num_parts, size=150),
    ):
        before = start.copy()
        part = run(hypergraph, start, num_parts, seed)
        assert start.tolist() == before.tolist()
        assert part.shape == (150,)
        assert set(part.tolist()) <= set(range(num_parts))
        largest_before, largest = (max(loads_written_out(hypergraph, each, num_parts)) for each in (start, part))
        assert largest <= largest_before


@pytest.mark.parametrize("num_parts", [2, 5, 8])
def test_parts_at_random_become_even_and_hold_fewer_copies(num_parts: int) -> None:
    hypergraph = random_hypergraph(400, 300, seed=1)
    start = np.random.default_rng(0).integers(num_parts, size=400)
    part = run(hypergraph, start, num_parts, num_rounds=100)
    loads = loads_written_out(hypergraph, part, num_parts)
    assert max(loads) <= 1.05 * np.mean(loads)
    assert copies(hypergraph, part, num_parts) < 0.75 * copies(hypergraph, start, num_parts)


def test_all_in_one_part_are_spread_over_all_parts() -> None:
    hypergraph = random_hypergraph(400, 300, seed=2)
    loads = loads_written_out(hypergraph, run(hypergraph, np.zeros(400, dtype=np.int64), 6, num_rounds=100), 6)
    assert max(loads) <= 1.1 * np.mean(loads)


def test_two_groups_that_share_nothing_are_told_apart() -> None:
    pins = np.zeros((40, 20), dtype=np.float32)
    pins[0::2, :10] = pins[1::2, 10:] = 1
    hypergraph = OutputHypergraph(csr_array(pins), np.ones(20), np.ones(20), np.ones(40))
    start = np.arange(40) // 20
    start[:4], start[-4:] = [0, 1, 0, 1], [0, 1, 0, 1]
    for seed in range(5):
        part = run(hypergraph, np.where(np.arange(40) < 30, np.arange(40) % 2, start), 2, seed, num_rounds=60)
        assert copies(hypergraph, part, 2) == 20


def test_a_part_that_takes_more_than_the_hypergraph_says_gets_less() -> None:
    hypergraph = random_hypergraph(400, 300, seed=3)
    factors = np.array([1.0, 1.3, 1.0, 0.8])
    part = run(hypergraph, np.arange(400) * 4 // 400, 4, num_rounds=150, factors=factors)
    takes = np.array(loads_written_out(hypergraph, part, 4)) * factors
    assert takes.max() <= 1.05 * takes.mean()


def test_the_same_seed_gives_the_same_parts_and_another_one_others() -> None:
    hypergraph, start = random_hypergraph(150, 120, seed=5), np.arange(150) % 4
    first, second, other = (run(hypergraph, start, 4, seed).tolist() for seed in (1, 1, 2))
    assert first == second
    assert first != other


def test_without_rounds_nothing_moves() -> None:
    start = np.arange(150) % 4
    assert run(random_hypergraph(150, 120, seed=5), start, 4, num_rounds=0).tolist() == start.tolist()


ODD_HYPERGRAPHS = {
    "no nets": OutputHypergraph(csr_array((30, 0), dtype=np.float32), np.ones(0), np.ones(0), np.ones(30)),
    "nothing takes memory": OutputHypergraph(
        csr_array(np.ones((30, 4), dtype=np.float32)), np.zeros(4), np.ones(4), np.zeros(30)
    ),
    "nothing counts": OutputHypergraph(
        csr_array(np.ones((30, 4), dtype=np.float32)), np.ones(4), np.zeros(4), np.ones(30)
    ),
    "one takes nearly all": OutputHypergraph(
        csr_array(np.eye(30, 4, dtype=np.float32)), np.ones(4), np.ones(4), np.array([1e6] + [1.0] * 29)
    ),
    "tiny numbers": OutputHypergraph(
        csr_array(np.ones((30, 4), dtype=np.float32)), np.full(4, 1e-30), np.ones(4), np.full(30, 1e-30)
    ),
}


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("hypergraph", ODD_HYPERGRAPHS.values(), ids=ODD_HYPERGRAPHS)
@pytest.mark.parametrize("num_parts", [1, 2, 7, 29, 40])
def test_odd_hypergraphs_are_no_error(hypergraph: OutputHypergraph, num_parts: int) -> None:
    for start in (np.arange(30) % num_parts, np.zeros(30, dtype=np.int64)):
        part = run(hypergraph, start, num_parts)
        assert set(part.tolist()) <= set(range(num_parts))
        loads_before, loads = (loads_written_out(hypergraph, each, num_parts) for each in (start, part))
        assert max(loads) <= max(loads_before) * (1 + 1e-9)


@pytest.mark.filterwarnings("error")
def test_no_vertices_are_no_error() -> None:
    nobody = np.zeros(0, dtype=np.int64)
    nothing = OutputHypergraph(csr_array((0, 3), dtype=np.float32), np.ones(3), np.ones(3), np.zeros(0))
    assert run(nothing, nobody, 4).tolist() == []


@pytest.mark.parametrize("seed", range(3))
def test_amounts_are_within_what_a_part_allows_as_if_added_one_after_the_other(seed: int) -> None:
    draw = np.random.default_rng(seed)
    part, amounts, most = draw.integers(5, size=200), draw.integers(0, 9, size=200), draw.integers(0, 80, size=5)
    sums, expected = np.zeros(5), []
    for number, amount in zip(part, amounts, strict=True):
        expected.append(bool(sums[number] <= most[number]))
        sums[number] += amount
    assert _within(part, amounts.astype(np.float64), most.astype(np.float64)).tolist() == expected


def checksum() -> int:
    """Of parts of a hypergraph whose numbers of input nodes have no exact sums."""
    nets = random_hypergraph(1000, 12000, seed=7).nets
    draw = np.random.default_rng(7)
    hypergraph = OutputHypergraph(nets, draw.random(12000), draw.random(12000), draw.random(1000))
    return zlib.crc32(run(hypergraph, np.arange(1000) % 6, 6, num_rounds=20).tobytes())


def test_parts_do_not_depend_on_the_number_of_threads() -> None:
    command = [sys.executable, "-c", f"from {__name__} import checksum; print(checksum())"]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    processes = [
        subprocess.Popen(command, env={**environment, "OMP_NUM_THREADS": threads}, stdout=subprocess.PIPE, text=True)
        for threads in ("1", "2", "4")
    ]
    assert {process.communicate()[0] for process in processes} == {f"{checksum()}\n"}
