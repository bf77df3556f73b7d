import pytest
import torch
from torch import nn

from betty import GAT, GraphSAGE
from betty.cost import Operations, Work, work_of
from betty.cost.work import FRESH_BYTES, KINDS, new_tensor
from betty.models import AGGREGATORS, MLP
from betty.models.linear import Linear
from betty.models.neighbour_reduction import sum_work
from tests.random_blocks import random_block

MODELS = {
    **{name: lambda name=name: GraphSAGE(12, 8, 3, 2, name) for name in AGGREGATORS},
    "GAT": lambda: GAT(12, 2, 3, 2, num_heads=4, attention_dropout=0.2, residual=True),
    "MLP": lambda: MLP(12, 8, 3, 2),
}


def test_work_adds_up_kind_by_kind_and_nothing_is_no_work():
    work = Work(Operations(call=1, sum=2), Operations(gate=3)) + Work(Operations(sum=5), Operations(call=7))
    assert work == Work(Operations(call=1, sum=7), Operations(call=7, gate=3))
    assert work + Work() == work
    assert all(getattr(Work().forward, kind) == getattr(Work().backward, kind) == 0 for kind in KINDS)


def test_pages_are_new_only_where_a_tensor_is_large():
    assert new_tensor(3, 5) == Operations(call=1, stream=15)
    elements = FRESH_BYTES // 4
    assert new_tensor(elements - 1).fresh == 0
    assert new_tensor(elements).fresh == FRESH_BYTES


def test_a_linear_layer_makes_a_product_forward_and_two_backward():
    work = Linear(6, 4).work(10, needs_gradient=True)
    assert work.forward.multiply == 2 * 10 * 6 * 4
    assert work.backward.multiply == 2 * work.forward.multiply
    assert Linear(6, 4).work(10, needs_gradient=False).backward.multiply == work.forward.multiply


def test_sums_gather_every_channel_of_every_edge_and_backward_by_transposed_lists():
    block = random_block(5, 20, 4, seed=0)
    work = sum_work(block, 7, needs_gradient=True)
    assert work.forward.sum == work.backward.sum == 7 * block.num_edges
    assert (work.forward.transpose, work.backward.transpose) == (0, block.num_edges)
    assert work.backward.stream == 7 * 20
    assert sum_work(block, 7, needs_gradient=False).backward == Operations()


def test_products_of_a_mean_layer_are_counted_by_hand_where_it_projects_first_and_where_last():
    block = random_block(5, 20, 4, seed=0)
    narrowing, widening = GraphSAGE(12, 8, 3, 2, "mean"), GraphSAGE(8, 12, 12, 2, "mean")
    assert narrowing.layer_work(0, block).forward.multiply == 2 * (20 + 5) * 12 * 8
    assert widening.layer_work(0, block).forward.multiply == 2 * (5 + 5) * 8 * 12


def test_an_lstm_multiplies_for_every_edge_inputs_and_hidden_states_with_four_gates():
    block = random_block(5, 400, 4, seed=0)
    layer = GraphSAGE(12, 8, 3, 2, "lstm")
    of_linear_layers = 2 * 2 * 5 * 12 * 8
    # The hub has all 400 sources; there are too few edges for each source to be projected once.
    assert layer.layer_work(0, block).forward.multiply == of_linear_layers + 2 * block.num_edges * 2 * 12 * 4 * 12
    assert layer.layer_work(0, block).forward.gate == 12 * block.num_edges


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("layer_index", [0, 1])
def test_every_layer_states_work_that_is_positive_and_grows_with_the_block(name, layer_index):
    torch.manual_seed(0)
    model = MODELS[name]()
    small, large = (model.layer_work(layer_index, random_block(size, 4 * size, 6, seed=0)) for size in (50, 400))
    for less, more in ((small.forward, large.forward), (small.backward, large.backward)):
        amounts = [(getattr(less, kind), getattr(more, kind)) for kind in KINDS]
        assert all(0 <= few <= many for few, many in amounts)
        assert any(0 < few < many for few, many in amounts)


@pytest.mark.parametrize("name", MODELS)
def test_a_layer_whose_input_needs_a_gradient_does_more_backward_and_as_much_forward(name):
    layer, block = MODELS[name]().layers[0], random_block(50, 200, 6, seed=0)
    without, with_gradient = (layer.work(block, needs_gradient=needed) for needed in (False, True))
    assert without.forward == with_gradient.forward
    assert sum(getattr(with_gradient.backward, kind) - getattr(without.backward, kind) for kind in KINDS) > 0


def test_dropout_is_work_only_where_there_is_some():
    block = random_block(5, 20, 4, seed=0)
    with_dropout, without = (GraphSAGE(12, 8, 3, 2, dropout=dropout).layer_work(0, block) for dropout in (0.5, 0.0))
    assert (with_dropout.forward.dropout, without.forward.dropout) == (5 * 8, 0)
    assert GraphSAGE(12, 8, 3, 2, dropout=0.5).layer_work(1, block).forward.dropout == 0


def test_work_of_a_model_that_states_it_is_what_it_states():
    model, block = GraphSAGE(12, 8, 3, 2, "pool"), random_block(5, 20, 4, seed=0)
    assert work_of(model, 1, block, 8, 3) == model.layer_work(1, block)


def test_work_of_any_other_model_is_guessed_from_its_sizes():
    block = random_block(5, 20, 4, seed=0)
    first, second = (work_of(nn.Linear(12, 3), layer_index, block, 12, 3) for layer_index in (0, 1))
    assert first.forward.multiply == first.backward.multiply == 2 * 20 * 12 * 3
    assert first.forward.sum == 12 * block.num_edges
    assert first.backward.sum == 0
    assert second.backward.multiply == 2 * first.backward.multiply
    assert second.backward.sum == second.forward.sum
