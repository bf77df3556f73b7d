import numpy as np
import pytest
import torch
import xxhash

from betty.datasets.graph import build_graph, csc, fingerprint_of, graph_fingerprint, undirected_csc
from betty.dgl_compat import dgl


def neighbours_by_brute_force(first_ends, second_ends, num_nodes):
    neighbours = [set() for _ in range(num_nodes)]
    for a, b in zip(first_ends.tolist(), second_ends.tolist(), strict=True):
        if a != b:
            neighbours[a].add(b)
            neighbours[b].add(a)
    return [sorted(of_node) for of_node in neighbours]


@pytest.mark.parametrize("dtype", [np.int32, np.int64])
@pytest.mark.parametrize(("num_nodes", "num_edges"), [(1, 0), (1, 3), (2, 1), (7, 40), (50, 60), (50, 900)])
def test_in_neighbours_are_those_of_brute_force(num_nodes, num_edges, dtype):
    random = np.random.default_rng(num_edges)
    first_ends, second_ends = random.integers(num_nodes, size=(2, num_edges)).astype(dtype)
    indptr, indices = undirected_csc(first_ends, second_ends, num_nodes)
    assert indptr.dtype == indices.dtype == torch.int64
    rows = [row.tolist() for row in indices.split(indptr.diff().tolist())]
    assert rows == neighbours_by_brute_force(first_ends, second_ends, num_nodes)


def test_inputs_stay_as_they_were():
    ends = np.array([[0, 1, 1], [1, 0, 1]])
    before = ends.copy()
    undirected_csc(*ends, 2)
    np.testing.assert_array_equal(ends, before)


def test_ids_beyond_32_bits_of_keys():
    num_nodes = 3_000_000
    indptr, indices = undirected_csc(np.array([num_nodes - 1], np.int32), np.array([5], np.int32), num_nodes)
    assert indices.tolist() == [num_nodes - 1, 5]
    assert indptr[5].item() == 0
    assert indptr[6].item() == indptr[num_nodes - 1].item() == 1


def test_graph_is_made_in_csc_form_only_and_on_the_same_tensors():
    indptr, indices = undirected_csc(np.array([0, 1]), np.array([1, 2]), 4)
    graph = build_graph(indptr, indices)
    assert graph.formats()["created"] == ["csc"]
    assert graph.idtype == torch.int64
    assert graph.num_nodes() == 4
    assert csc(graph)[1].data_ptr() == indices.data_ptr()
    sources, destinations = graph.edges()
    assert set(zip(sources.tolist(), destinations.tolist(), strict=True)) == {(0, 1), (1, 0), (1, 2), (2, 1)}


def test_csc_of_a_graph_made_from_an_edge_list():
    indptr, indices = csc(dgl.graph((torch.tensor([2, 0, 1]), torch.tensor([0, 2, 0])), num_nodes=4))
    assert indptr.tolist() == [0, 2, 2, 3, 3]
    assert sorted(indices[:2].tolist()) == [1, 2]


def test_fingerprint_is_known_from_the_checksums_of_the_tensors():
    indptr, indices = undirected_csc(np.array([0, 1]), np.array([1, 2]), 3)
    digests = (xxhash.xxh3_128(tensor.numpy().tobytes()).hexdigest() for tensor in (indptr, indices))
    assert graph_fingerprint(build_graph(indptr, indices)) == fingerprint_of(*digests)


def test_fingerprint_tells_graphs_apart():
    ends = np.array([0, 1]), np.array([1, 2])
    prints = {
        graph_fingerprint(build_graph(*undirected_csc(first, second, num_nodes)))
        for first, second, num_nodes in ((*ends, 3), (*ends, 4), (ends[0], np.array([1, 1]), 3), (ends[0], ends[0], 3))
    }
    assert len(prints) == 4
