from types import SimpleNamespace

import pytest
import torch
from torch.nn.functional import cross_entropy, elu

from betty import GAT, BettyError, Block, FullBatch
from betty.dgl_compat import dgl
from betty.evaluation import layerwise_inference
from betty.training_command_line import new_model, training_parser
from tests.random_blocks import random_block, random_full_batch


@pytest.fixture(scope="module")
def batch() -> FullBatch:
    return random_full_batch([80, 30, 12], max_degree=6, seed=4)


@pytest.fixture(scope="module")
def x() -> torch.Tensor:
    return torch.randn(80, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(5))


def test_heads_are_concatenated_between_layers_and_averaged_at_the_end(batch, x):
    model = GAT(5, 7, 3, num_layers=2, num_heads=4, dropout=0).double()
    first = dgl.nn.GATConv(5, 7, 4, allow_zero_in_degree=True).double()
    second = dgl.nn.GATConv(28, 3, 4, allow_zero_in_degree=True).double()
    first.load_state_dict(model.layers[0].state_dict())
    second.load_state_dict(model.layers[1].state_dict())
    hidden = elu(first(batch.blocks[0].to_dgl(), x).flatten(1))
    expected = second(batch.blocks[1].to_dgl(), hidden).mean(1)
    torch.testing.assert_close(model(batch.blocks, x), expected, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("num_classes", [3, 7], ids=["last residual projected", "last residual as it is"])
def test_residual_connections_equal_a_stack_of_dgls_layers(num_classes):
    """The input layer has none, as in DGL's example."""
    batch = random_full_batch([80, 50, 30, 12], max_degree=6, seed=4)
    x = torch.randn(80, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(5))
    model = GAT(5, 7, num_classes, num_layers=3, num_heads=4, dropout=0, residual=True).double()
    stack = [
        dgl.nn.GATConv(5, 7, 4, allow_zero_in_degree=True, activation=elu),
        dgl.nn.GATConv(28, 7, 4, residual=True, allow_zero_in_degree=True, activation=elu),
        dgl.nn.GATConv(28, num_classes, 4, residual=True, allow_zero_in_degree=True),
    ]
    h = x
    for layer, reference, block in zip(model.layers, stack, batch.blocks, strict=True):
        reference.double().load_state_dict(layer.state_dict(), strict=True)
        h = reference(block.to_dgl(), h.flatten(1))
    result, expected = model(batch.blocks, x), h.mean(1)
    torch.testing.assert_close(result, expected, rtol=1e-10, atol=1e-12)

    result.square().sum().backward()
    expected.square().sum().backward()
    for layer, reference in zip(model.layers, stack, strict=True):
        for found, wanted in zip(layer.parameters(), reference.parameters(), strict=True):
            torch.testing.assert_close(found.grad, wanted.grad, rtol=1e-10, atol=1e-12)


def test_a_single_layer_has_a_residual_connection():
    assert GAT(5, 7, 3, num_layers=1, residual=True).layers[0].residual
    assert not GAT(5, 7, 3, num_layers=1).layers[0].residual


@pytest.mark.parametrize("num_heads", [1, 3])
def test_forward_is_the_layers_one_after_the_other(batch, x, num_heads):
    model = GAT(5, 7, 3, num_layers=2, num_heads=num_heads).double().eval()
    assert model.widths == (5, 7 * num_heads, 3)
    h = x
    for layer_index, block in enumerate(batch.blocks):
        h = model.layer_forward(layer_index, block, h)
        assert h.shape == (block.num_dst, model.widths[layer_index + 1])
    assert torch.equal(model(batch.blocks, x), h)


def test_one_layer_averages_its_heads(batch):
    model = GAT(5, 7, 3, num_layers=1, num_heads=4)
    assert model.widths == (5, 3)
    assert model(batch.blocks[1:], torch.randn(30, 5)).shape == (12, 3)


@pytest.mark.parametrize("residual", [False, True], ids=["plain", "residual"])
def test_layerwise_inference_equals_the_model_on_the_whole_graph(residual):
    block = random_block(60, 60, max_degree=6, seed=11)
    graph = Block(block.indptr, block.indices, torch.arange(60))
    features = torch.randn(60, 5, generator=torch.Generator().manual_seed(12))
    model = GAT(5, 8, 3, num_layers=3, attention_dropout=0.5, residual=residual)
    logits = layerwise_inference(model, graph.indptr, graph.indices, features, "cpu", max_edges=20)
    torch.testing.assert_close(logits, model.eval()([graph] * 3, features).detach(), rtol=1e-4, atol=1e-4)


def test_training_lowers_the_loss(batch):
    torch.manual_seed(0)
    features, labels = torch.randn(80, 5), torch.randint(0, 3, (12,))
    model = GAT(5, 8, 3, num_layers=2, dropout=0)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.05)
    losses = []
    for _ in range(20):
        optimizer.zero_grad()
        loss = cross_entropy(model(batch.blocks, features), labels)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < 0.5 * losses[0]


def model_of_flags(*flags: str) -> GAT:
    parser = training_parser("betty.micro_batch_train", "")
    dataset = SimpleNamespace(num_features=5, num_classes=7)
    model = new_model(parser.parse_args(["--model", "gat", *flags]), dataset)
    assert isinstance(model, GAT)
    return model


def test_command_line_makes_a_model_of_as_many_heads():
    model = model_of_flags("--num-heads", "3", "--num-hidden", "8", "--dropout", "0.25", "--dropout-mode", "torch")
    assert model.widths == (5, 24, 7)
    assert [layer.num_heads for layer in model.layers] == [3, 3]
    assert [(type(dropout).__name__, dropout.probability) for dropout in model.dropouts] == [("TorchDropout", 0.25)]


def test_command_line_sets_attention_dropout_and_residual_connections():
    for flags, probability, residuals in [
        ([], 0.0, [False, False]),
        (["--attention-dropout", "0.25", "--residual"], 0.25, [False, True]),
    ]:
        layers = model_of_flags(*flags).layers
        assert [layer.attn_drop.probability for layer in layers] == [probability, probability]
        assert [layer.residual for layer in layers] == residuals


@pytest.mark.parametrize(
    "wrong", [{"num_layers": 0}, {"dropout": 1.0}, {"attention_dropout": 1.0}, {"num_heads": 0}, {"dropout_mode": "no"}]
)
def test_settings_out_of_range_are_refused(wrong):
    with pytest.raises(BettyError):
        GAT(**{"in_feats": 5, "num_hidden": 7, "num_classes": 3, "num_layers": 2, **wrong})
