import pytest
import torch

from betty import BettyError
from betty.dgl_compat import dgl
from betty.models import AGGREGATORS, MLP, GraphSAGE
from tests.random_blocks import random_full_batch


@pytest.fixture(scope="module")
def batch():
    return random_full_batch([80, 30, 12], max_degree=6, seed=4)


@pytest.fixture(scope="module")
def x():
    return torch.randn(80, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(5))


def test_two_layers_equal_two_dgl_layers(batch, x):
    model = GraphSAGE(5, 7, 3, num_layers=2, dropout=0).double()
    first = dgl.nn.SAGEConv(5, 7, "mean", activation=torch.relu).double()
    second = dgl.nn.SAGEConv(7, 3, "mean").double()
    first.load_state_dict(model.layers[0].state_dict())
    second.load_state_dict(model.layers[1].state_dict())
    expected = second(batch.blocks[1].to_dgl(), first(batch.blocks[0].to_dgl(), x))
    torch.testing.assert_close(model(batch.blocks, x), expected, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("aggre", AGGREGATORS)
def test_forward_is_the_layers_one_after_the_other(batch, x, aggre):
    model = GraphSAGE(5, 7, 3, num_layers=2, aggre=aggre).double().eval()
    h = x
    for layer_index, block in enumerate(batch.blocks):
        h = model.layer_forward(layer_index, block, h)
        assert h.shape == (block.num_dst, model.widths[layer_index + 1])
    assert torch.equal(model(batch.blocks, x), h)


def test_dropout_falls_on_hidden_states_only(batch, x):
    torch.manual_seed(0)
    model = GraphSAGE(5, 400, 400, num_layers=2, aggre="gcn", dropout=0.75).double()
    with torch.no_grad():
        model.layers[0].bias.fill_(100)
    hidden = model.layer_forward(0, batch.blocks[0], x)
    logits = model.layer_forward(1, batch.blocks[1], hidden)
    assert (hidden == 0).double().mean() == pytest.approx(0.75, abs=0.02)
    assert (logits == 0).sum() == 0


def test_mlp_equals_linear_layers_on_the_output_nodes(batch, x):
    model = MLP(5, 7, 3, num_layers=2, dropout=0).double()
    expected = model.layers[1].weight @ torch.relu(model.layers[0].weight @ x[:12].T + model.layers[0].bias[:, None])
    torch.testing.assert_close(model(batch.blocks, x), expected.T + model.layers[1].bias)


def test_mlp_does_not_see_neighbours(batch, x):
    model = MLP(5, 7, 3, num_layers=2, dropout=0).double()
    elsewhere = x.clone()
    elsewhere[12:] = 1e6
    assert torch.equal(model(batch.blocks, x), model(batch.blocks, elsewhere))


@pytest.mark.parametrize("make", [GraphSAGE, MLP])
def test_one_layer_goes_from_features_to_classes(make, batch):
    model = make(5, 7, 3, num_layers=1)
    assert model.widths == (5, 3)
    assert model(batch.blocks[1:], torch.randn(30, 5)).shape == (12, 3)


@pytest.mark.parametrize("make", [GraphSAGE, MLP])
def test_blocks_that_do_not_fit_the_layers_are_refused(make, batch, x):
    model = make(5, 7, 3, num_layers=3).double()
    with pytest.raises(BettyError, match="2 blocks for a model of 3 layers"):
        model(batch.blocks, x)


def test_features_of_other_nodes_are_refused(batch, x):
    model = GraphSAGE(5, 7, 3, num_layers=2).double()
    with pytest.raises(BettyError, match="features of 79 nodes for a block with 80 sources"):
        model(batch.blocks, x[:79])


@pytest.mark.parametrize(
    "wrong",
    [{"num_layers": 0}, {"dropout": 1.0}, {"dropout": -0.1}, {"aggre": "median"}, {"dropout_mode": "none"}],
)
def test_settings_out_of_range_are_refused(wrong):
    with pytest.raises(BettyError):
        GraphSAGE(**{"in_feats": 5, "num_hidden": 7, "num_classes": 3, "num_layers": 2, **wrong})
