import re
import subprocess
import sys
import weakref

import numpy as np
import pytest
import torch

from betty import BettyError, Block
from betty.evaluation import RowCutter, Scores, accuracy, evaluate, layerwise_inference, roc_auc
from betty.models import AGGREGATORS, GAT, MLP, GraphSAGE
from tests.random_blocks import random_block

NUM_NODES = 60


@pytest.fixture(scope="module")
def graph() -> Block:
    """A whole graph as one block: all sources are destinations; with isolated nodes and a hub."""
    block = random_block(NUM_NODES, NUM_NODES, max_degree=6, seed=11)
    return Block(block.indptr, block.indices, torch.arange(NUM_NODES))


@pytest.fixture(scope="module")
def x() -> torch.Tensor:
    return torch.randn(NUM_NODES, 5, generator=torch.Generator().manual_seed(12))


def dense_logits(model: GraphSAGE, adjacency: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    """The formula of a GraphSAGE with mean aggregation, on a dense adjacency."""
    mean = adjacency / adjacency.sum(1, keepdim=True).clamp(min=1)
    for layer in model.layers:
        own, neighbours, bias = layer.fc_self.weight, layer.fc_neigh.weight, layer.fc_self.bias
        h = x @ own.T + mean @ x @ neighbours.T + bias
        x = h.relu()
    return h


@pytest.mark.parametrize(("max_edges", "max_nodes"), [(1, 100), (17, 100), (10_000, 7), (10_000, 10_000)])
def test_logits_equal_a_dense_computation(graph, x, max_edges, max_nodes):
    adjacency = torch.zeros(NUM_NODES, NUM_NODES, dtype=torch.float64)
    destinations = torch.arange(NUM_NODES).repeat_interleave(graph.in_degrees())
    adjacency[destinations, graph.indices.long()] = 1
    model = GraphSAGE(5, 8, 3, num_layers=3).double()
    logits = layerwise_inference(model, graph.indptr, graph.indices, x, "cpu", max_edges, max_nodes)
    assert logits.dtype == torch.float32
    torch.testing.assert_close(logits.double(), dense_logits(model, adjacency, x.double()), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("aggre", AGGREGATORS)
def test_logits_equal_the_model_on_the_whole_graph(graph, x, aggre):
    model = GraphSAGE(5, 8, 3, num_layers=2, aggre=aggre)
    logits = layerwise_inference(model, graph.indptr, graph.indices.long(), x, "cpu", max_edges=20)
    torch.testing.assert_close(logits, model.eval()([graph, graph], x).detach(), rtol=1e-4, atol=1e-4)


def test_mlp_has_the_same_interface(graph, x):
    model = MLP(5, 8, 3, num_layers=2)
    logits = layerwise_inference(model, graph.indptr, graph.indices, x, "cpu", max_edges=20)
    torch.testing.assert_close(logits, model.eval()([graph, graph], x).detach())


class Recorder(GraphSAGE):
    """Notes the blocks that it is given."""

    def __init__(self) -> None:
        super().__init__(5, 8, 3, num_layers=2)
        self.seen: list[Block] = []

    def layer_forward(self, layer_index: int, block: Block, h: torch.Tensor) -> torch.Tensor:
        self.seen.append(block)
        return super().layer_forward(layer_index, block, h)


def test_batches_keep_to_their_bounds_but_for_a_hub_alone(graph, x):
    model = Recorder()
    layerwise_inference(model, graph.indptr, graph.indices, x, "cpu", max_edges=20, max_nodes=5)
    assert any(block.num_edges > 20 for block in model.seen)
    assert all(block.num_dst <= 5 for block in model.seen)
    assert all(block.num_edges <= 20 or block.num_dst == 1 for block in model.seen)
    assert torch.cat([block.dst_ids for block in model.seen]).tolist() == 2 * list(range(NUM_NODES))


def bytes_of(layer_index: int, block: Block) -> int:
    """An estimate that is large enough to tell layers, edges and both kinds of nodes apart."""
    return (layer_index + 1) * (100 * block.num_src + 7 * block.num_edges + 40 * block.num_dst)


SMALLEST_BUDGET = bytes_of(1, Block(torch.tensor([0, NUM_NODES]), torch.empty(NUM_NODES), torch.empty(NUM_NODES)))
"""What the hub, which has all nodes for neighbours, takes in the second layer."""


@pytest.mark.parametrize("budget", [SMALLEST_BUDGET, 2 * SMALLEST_BUDGET, 1 << 40])
@pytest.mark.parametrize("name", [*AGGREGATORS, "gat"])
def test_logits_do_not_depend_on_the_memory_budget(graph, x, name, budget):
    model = GAT(5, 8, 3, num_layers=2) if name == "gat" else GraphSAGE(5, 8, 3, num_layers=2, aggre=name)
    model = model.double()
    arguments = (model, graph.indptr, graph.indices, x, "cpu")
    logits = layerwise_inference(*arguments, memory_budget=budget, estimate=bytes_of)
    torch.testing.assert_close(logits, layerwise_inference(*arguments), rtol=1e-6, atol=1e-6)


def test_batches_keep_to_the_memory_budget(graph, x):
    model = Recorder()
    costs = []

    def estimate(layer_index: int, block: Block) -> int:
        costs.append(bytes_of(layer_index, block))
        return costs[-1]

    arguments = (model, graph.indptr, graph.indices, x, "cpu", 1024, 64)
    layerwise_inference(*arguments, memory_budget=SMALLEST_BUDGET, estimate=estimate)
    nodes = torch.cat([block.dst_ids for block in model.seen])
    assert nodes.tolist() == 2 * list(range(NUM_NODES))
    first_layer, *second_layer = model.seen
    assert first_layer.num_dst == NUM_NODES
    assert max(bytes_of(0, first_layer), *[bytes_of(1, block) for block in second_layer]) <= SMALLEST_BUDGET
    # Remembered: in the bounds' halvings from 1024 to one, and not in every batch again.
    assert 2 <= sum(cost > SMALLEST_BUDGET for cost in costs) <= 10


def test_a_hub_does_not_leave_batches_of_single_nodes_behind(x):
    degrees = torch.tensor([59] + 59 * [1])
    indptr = torch.cat([torch.zeros(1, dtype=torch.int64), degrees.cumsum(0)])
    indices = torch.cat([torch.arange(1, 60), torch.arange(59)]).int()
    model = Recorder()
    arguments = (model, indptr, indices, x, "cpu", 64, 64)
    layerwise_inference(*arguments, memory_budget=59, estimate=lambda layer_index, block: block.num_edges)
    assert [block.num_dst for block in model.seen] == 2 * [1, 32, 27]


def test_a_budget_that_is_too_small_is_refused_with_the_smallest_that_would_do(graph, x):
    model = Recorder()
    arguments = (model, graph.indptr, graph.indices, x, "cpu")
    with pytest.raises(BettyError, match=r"^node 59 with all its 60 neighbours .* in layer 1, .*$") as caught:
        layerwise_inference(*arguments, memory_budget=SMALLEST_BUDGET - 1, estimate=bytes_of)
    assert model.seen == []
    needed = re.search(r"needs ([\d,]+) bytes", str(caught.value)).group(1)
    assert int(needed.replace(",", "")) == SMALLEST_BUDGET
    layerwise_inference(*arguments, memory_budget=SMALLEST_BUDGET, estimate=bytes_of)


def test_a_single_node_above_the_budget_is_refused_where_it_is_met(graph, x):
    """Of nodes with as many edges the one with more distinct sources takes more."""
    indptr, indices = torch.tensor([0, 3, 5, 5, 5]), torch.tensor([1, 1, 1, 2, 3])
    model = GraphSAGE(5, 8, 3, num_layers=1)
    with pytest.raises(BettyError, match=r"^node 1 with all its 2 neighbours takes 3 bytes"):
        layerwise_inference(
            model, indptr, indices, x[:4], "cpu", memory_budget=2, estimate=lambda layer_index, block: block.num_src
        )


def test_an_empty_graph_has_no_logits():
    model, none = GraphSAGE(5, 8, 3, num_layers=2), torch.empty(0, dtype=torch.int64)
    logits = layerwise_inference(
        model, torch.zeros(1, dtype=torch.int64), none, torch.empty(0, 5), "cpu", memory_budget=1, estimate=bytes_of
    )
    assert logits.shape == (0, 3)


def test_nothing_of_a_batch_is_left_when_the_next_one_comes(graph, x):
    outputs = []

    class Watched(GraphSAGE):
        def layer_forward(self, layer_index: int, block: Block, h: torch.Tensor) -> torch.Tensor:
            assert [reference() for reference in outputs if reference() is not None] == []
            result = super().layer_forward(layer_index, block, h)
            outputs.extend([weakref.ref(h), weakref.ref(result), weakref.ref(block)])
            return result

    layerwise_inference(Watched(5, 8, 3, num_layers=2), graph.indptr, graph.indices, x, "cpu", max_nodes=10)
    assert len(outputs) >= 3 * 2 * 6


def test_cut_blocks_hold_the_rows_with_every_source_once(graph):
    cutter = RowCutter(graph.indptr, graph.indices)
    for start, stop in [(0, 9), (50, 60), (3, 4), (0, 60)]:
        block = cutter.cut(start, stop)
        edges = graph.indices[graph.indptr[start] : graph.indptr[stop]].long()
        assert block.dst_ids.tolist() == list(range(start, stop))
        assert torch.equal(block.src_ids[block.indices.long()], edges)
        assert torch.equal(block.in_degrees(), graph.in_degrees()[start:stop])
        assert sorted(block.src_ids.tolist()) == sorted({*range(start, stop), *edges.tolist()})


def test_every_module_is_left_in_its_mode_also_after_an_error(graph, x):
    model = GraphSAGE(5, 8, 3, num_layers=2)
    model.layers[1].eval()
    modes = [module.training for module in model.modules()]
    layerwise_inference(model, graph.indptr, graph.indices, x, "cpu")
    assert [module.training for module in model.modules()] == modes
    with pytest.raises(RuntimeError):
        layerwise_inference(model, graph.indptr, graph.indices, x[:, :4], "cpu")
    assert [module.training for module in model.modules()] == modes


def test_memory_mapped_features_are_read(graph, x, tmp_path):
    np.save(tmp_path / "features.npy", x.numpy())
    mapped = torch.from_numpy(np.load(tmp_path / "features.npy", mmap_mode="c"))
    model = GraphSAGE(5, 8, 3, num_layers=2)
    arguments = (graph.indptr, graph.indices)
    assert torch.equal(
        layerwise_inference(model, *arguments, mapped, "cpu"), layerwise_inference(model, *arguments, x, "cpu")
    )


def test_input_that_does_not_fit_is_refused(graph, x):
    model = GraphSAGE(5, 8, 3, num_layers=1)
    with pytest.raises(BettyError, match="features of 59 nodes for a graph of 60"):
        layerwise_inference(model, graph.indptr, graph.indices, x[:59], "cpu")
    with pytest.raises(BettyError, match="at least 1"):
        layerwise_inference(model, graph.indptr, graph.indices, x, "cpu", max_nodes=0)


LOGITS = torch.tensor([[0.9, 0.1], [0.2, 0.8], [0.6, 0.4], [0.3, 0.7], [0.5, 0.4]])
LABELS = torch.tensor([0, 1, 1, -1, 1])
NONE = torch.empty(0, dtype=torch.int64)


def test_accuracy_leaves_out_nodes_without_a_label():
    assert accuracy(LOGITS, LABELS, torch.arange(5)) == 2 / 4
    assert accuracy(LOGITS, LABELS, torch.tensor([1, 3])) == 1.0


def test_there_is_no_score_without_labelled_nodes():
    assert accuracy(LOGITS, LABELS, NONE) is None
    assert accuracy(LOGITS, LABELS, torch.tensor([3])) is None
    assert roc_auc(LOGITS, LABELS, NONE) is None
    assert roc_auc(LOGITS, LABELS, torch.tensor([1, 2, 4])) is None


def test_roc_auc_is_the_share_of_pairs_in_order():
    generator = torch.Generator().manual_seed(3)
    logits = torch.randn(200, 2, generator=generator).round(decimals=1)
    labels = torch.randint(-1, 2, (200,), generator=generator)
    ids = torch.arange(20, 200)
    margins = logits[:, 1] - logits[:, 0]
    positive, negative = (margins[ids][labels[ids] == label] for label in (1, 0))
    pairs = positive[:, None] - negative[None, :]
    expected = ((pairs > 0).double() + 0.5 * (pairs == 0).double()).mean().item()
    assert roc_auc(logits, labels, ids) == pytest.approx(expected)


def test_roc_auc_of_three_classes_is_refused():
    with pytest.raises(BettyError, match="2 classes"):
        roc_auc(torch.zeros(4, 3), torch.zeros(4, dtype=torch.int64), torch.arange(4))


@pytest.mark.parametrize("evaluator_name", [None, "ogbn-arxiv"])
def test_evaluate_scores_the_splits(evaluator_name):
    scores = evaluate(LOGITS, LABELS, torch.tensor([0, 1]), torch.tensor([2, 3]), NONE, evaluator_name)
    assert scores == Scores(train_acc=1.0, val_acc=0.0, test_acc=None)


@pytest.mark.parametrize("name", ["ogbn-nothing", "ogbn-proteins"])
def test_an_ogb_name_without_accuracy_is_refused(name):
    with pytest.raises(BettyError, match=name):
        evaluate(LOGITS, LABELS, NONE, NONE, NONE, name)


def test_ogb_is_imported_without_a_connection():
    program = """
import socket, threading

def refuse(*arguments):
    raise AssertionError("a connection was opened")

socket.socket.connect = socket.create_connection = socket.getaddrinfo = refuse
from betty.ogb_compat import import_ogb
import_ogb("ogb.nodeproppred").Evaluator("ogbn-arxiv")
assert threading.active_count() == 1, threading.enumerate()
"""
    finished = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, env={"PYTHONPATH": ":".join(sys.path)}
    )
    assert (finished.returncode, finished.stdout, finished.stderr) == (0, "", "")
