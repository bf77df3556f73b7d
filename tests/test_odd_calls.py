"""Calls from Python that are not quite as the documentation has them: taken as meant, or refused in one line."""

import logging

import numpy as np
import pandas as pd
import pytest
import torch
from scipy import sparse

from betty import BettyError, Block, load_dataset, sample_full_batch
from betty.dgl_compat import dgl
from betty.full_batch import SampledFullBatches
from tests.full_batch.graphs import assert_same_bits, random_graph

GRAPH = random_graph(50, 400)
IDS = [7, 3, 41]
FAN_OUTS = [2, 3]
EXPECTED = sample_full_batch(GRAPH, torch.tensor(IDS), FAN_OUTS, seed=5)
PAIRS = (torch.tensor([0, 1, 2]), torch.tensor([1, 2, 0]))
PARALLEL = (torch.tensor([0, 0, 1]), torch.tensor([1, 1, 0]))
RELATIONS = {("user", "likes", "item"): ([0], [1]), ("item", "of", "user"): ([0], [1])}


def with_edge_data(graph: dgl.DGLGraph, **data: torch.Tensor) -> dgl.DGLGraph:
    graph.edata.update(data)
    return graph


@pytest.mark.parametrize(
    "ids",
    [
        IDS,
        tuple(IDS),
        np.array(IDS),
        np.array(IDS, dtype=np.uint8),
        np.array(IDS, dtype=np.int16),
        np.array(IDS, dtype=np.uint64),
        np.array(IDS, dtype=">i4"),
        pd.Series(IDS),
        torch.tensor(IDS, dtype=torch.int32),
        torch.tensor(IDS, dtype=torch.uint8),
        [np.int64(node) for node in IDS],
        torch.tensor([IDS, IDS])[0],
    ],
    ids=lambda ids: f"{type(ids).__name__} {getattr(ids, 'dtype', '')}",
)
def test_output_nodes_are_taken_in_every_form(ids):
    assert_same_bits(sample_full_batch(GRAPH, ids, FAN_OUTS, seed=5), EXPECTED)
    assert_same_bits(SampledFullBatches(GRAPH, ids, FAN_OUTS, seed=5).load(0, 0), EXPECTED)


@pytest.mark.parametrize("fan_outs", [(2, 3), np.array([2, 3]), torch.tensor([2, 3])])
def test_fan_outs_are_taken_in_every_form(fan_outs):
    assert_same_bits(sample_full_batch(GRAPH, IDS, fan_outs, seed=np.int64(5)), EXPECTED)


@pytest.mark.parametrize(
    ("ids", "message"),
    [
        ([], "non-empty"),
        (np.empty(0), "non-empty"),
        (3, "one-dimensional"),
        ([[1, 2], [3, 4]], "one-dimensional"),
        ([[1, 2], [3]], "a list that holds no integers; give a list"),
        ({1, 2}, "a set that holds no integers; give a list"),
        (["1", "2"], "a list that holds no integers"),
        ([1.0, 2.0], "torch.float64, and must be integers"),
        (np.ones(50, dtype=bool), r"are a mask, and must be ids; give .*nonzero"),
        (torch.ones(50, dtype=torch.bool), r"are a mask, and must be ids; give .*nonzero"),
        (None, "NoneType that holds no integers"),
        ([-1, 2], "from -1 to 2"),
        (np.array([2**64 - 1], dtype=np.uint64), "run from"),
        ([3, 3], "more than once"),
    ],
)
def test_what_are_no_output_nodes_is_refused_with_a_remedy(ids, message):
    assert_refused(lambda: sample_full_batch(GRAPH, ids, FAN_OUTS, seed=5), message)


@pytest.mark.parametrize("fan_outs", [10, "10,25", None, [[10, 25]], np.array([2.0, 3.0])])
def test_what_are_no_fan_outs_is_refused_with_a_remedy(fan_outs):
    assert_refused(
        lambda: sample_full_batch(GRAPH, IDS, fan_outs, seed=5), r"fan-outs .*one per layer, as in \[10, 25\]"
    )


@pytest.mark.parametrize("position", [{"seed": None}, {"seed": 1.5}, {"seed": 0, "epoch": "1"}])
def test_a_seed_or_a_position_that_is_no_number_is_refused(position):
    assert_refused(lambda: sample_full_batch(GRAPH, IDS, FAN_OUTS, **position), "whole number")


@pytest.mark.parametrize(
    ("graph", "message"),
    [
        (None, r"the graph is a NoneType and no dgl.DGLGraph; make it one by dgl.graph"),
        (PAIRS, r"the graph is a tuple and no dgl.DGLGraph; make it one by dgl.graph"),
        (sparse.eye_array(3).tocsr(), r"the graph is a csr_array and no dgl.DGLGraph"),
        (with_edge_data(dgl.graph(PAIRS), w=torch.rand(3)), r"data on its edges \(w\).*graph.edata.pop\('w'\)"),
        (
            dgl.to_homogeneous(dgl.heterograph(RELATIONS)),
            r"edges are of several types.*graph.edata.pop\('_TYPE'\)",
        ),
        (dgl.heterograph(RELATIONS), r"several node or edge types.*dgl.to_homogeneous\(graph, store_type=False\)"),
        (dgl.to_block(dgl.graph(PAIRS)), "or is a block"),
    ],
)
def test_a_graph_of_which_something_would_be_lost_is_refused_with_a_remedy(graph, message):
    assert_refused(lambda: sample_full_batch(graph, [0, 1], [2], seed=5), message)


def test_a_data_set_in_place_of_its_graph_is_refused(tmp_path):
    dataset = load_dataset("karate", tmp_path)
    assert_refused(lambda: sample_full_batch(dataset, [0, 1], [2], seed=5), "a Dataset .*; give its field graph")


def test_the_remedies_of_refused_graphs_work():
    weighted = with_edge_data(dgl.graph(PAIRS), w=torch.rand(3))
    weighted.edata.pop("w")
    one_type = dgl.to_homogeneous(dgl.heterograph(RELATIONS), store_type=False)
    for graph in (weighted, one_type):
        block = sample_full_batch(graph, [0, 1], [-1], seed=5).blocks[0]
        assert block.num_edges == graph.in_degrees([0, 1]).sum()


def test_edge_data_of_one_type_and_ids_of_single_edges_lose_nothing(caplog):
    graph = with_edge_data(dgl.graph(PAIRS), **{dgl.ETYPE: torch.zeros(3), dgl.EID: torch.arange(3)})
    assert sample_full_batch(graph, [0, 1, 2], [-1], seed=5).num_edges == 3
    assert not caplog.records


@pytest.mark.parametrize(
    "take", [lambda graph: sample_full_batch(graph, [0, 1], [-1], seed=5).blocks[0], Block.from_dgl]
)
def test_ids_of_parallel_edges_are_told_of_and_the_edges_kept(caplog, take):
    graph = dgl.graph(PARALLEL)
    assert take(graph).in_degrees().tolist() == [1, 2]
    assert not caplog.records
    assert take(with_edge_data(graph, **{dgl.EID: torch.arange(3)})).in_degrees().tolist() == [1, 2]
    (record,) = caplog.records
    assert record.levelno == logging.WARNING
    assert "parallel edges with ids" in record.message


@pytest.mark.parametrize(
    ("block", "message"),
    [
        (EXPECTED.blocks[0], "the graph is a Block and no dgl.DGLGraph"),
        (dgl.to_block(with_edge_data(dgl.graph(PAIRS), w=torch.rand(3))), r"data on its edges \(w\)"),
        (dgl.to_block(dgl.heterograph(RELATIONS)), r"several node or edge types.*to_homogeneous"),
        (dgl.to_block(dgl.graph(([3], [0])), include_dst_in_src=False), "do not begin with its destination nodes"),
        (dgl.create_block(([0], [2]), num_src_nodes=1, num_dst_nodes=3), "do not begin with its destination nodes"),
    ],
)
def test_a_block_of_which_something_would_be_lost_is_refused_with_a_remedy(block, message):
    assert_refused(lambda: Block.from_dgl(block), message)


def test_a_whole_graph_is_a_block_of_all_nodes():
    block = Block.from_dgl(dgl.graph(PAIRS, num_nodes=5))
    assert block.src_ids.tolist() == block.dst_ids.tolist() == [0, 1, 2, 3, 4]
    assert block.indices.tolist() == [2, 0, 1]


@pytest.mark.parametrize(
    ("arguments", "flags", "message"),
    [
        (["karate"], {"directed": True}, "karate has no directions of edges; only .npz files keep them"),
        (["synthetic-tiny"], {"directed": True}, "synthetic-tiny has no directions of edges"),
        (["karate"], {"split": 2}, "there is no split 2"),
        (["karate"], {"average_degree": 3}, "an average degree can be chosen for synthetic"),
        ([7], {}, "there is no data set '7'"),
        ([None], {}, "there is no data set 'None'"),
        (["my-graph.npy"], {}, r"there is no data set 'my-graph.npy'.*\.npz"),
        (["none.npz"], {}, "none.npz does not exist"),
        (["karate"], {"seed": -1}, "seed of -1"),
    ],
)
def test_impossible_data_sets_are_refused_with_a_remedy(tmp_path, arguments, flags, message):
    assert_refused(lambda: load_dataset(*arguments, tmp_path, **flags), message)


def test_a_named_data_set_may_be_asked_for_as_the_undirected_one_that_it_is(tmp_path):
    assert load_dataset("karate", tmp_path, directed=False).graph.num_edges() == 2 * 78


def assert_refused(call, message):
    with pytest.raises(BettyError, match=message) as error:
        call()
    assert "\n" not in str(error.value)
