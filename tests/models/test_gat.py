import copy
from types import SimpleNamespace

import pytest
import torch
from torch.nn.functional import cross_entropy, elu

from betty import GAT, BettyError, Block, FullBatch, dropout_key, partition, split
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


@pytest.mark.parametrize("dropouts", [(0.0, 0.0), (0.5, 0.0), (0.5, 0.5)], ids=["none", "hidden", "hidden, attention"])
@pytest.mark.parametrize("num_parts", [2, 7])
@pytest.mark.parametrize("method", ["random", "REG"])
@pytest.mark.parametrize("num_hidden", [1, 5], ids=["projects first", "sums first"])
def test_accumulated_gradient_is_the_full_batchs(num_hidden, method, num_parts, dropouts):
    full_batch = random_full_batch([120, 60, 30], 6, seed=num_parts)
    generator = torch.Generator().manual_seed(1)
    features = torch.randn(int(full_batch.input_ids.max()) + 1, 6, generator=generator, dtype=torch.float64)
    labels = torch.randint(0, 4, (len(features),), generator=generator)
    torch.manual_seed(0)
    model = GAT(6, num_hidden, 4, 2, num_heads=3, dropout=dropouts[0], attention_dropout=dropouts[1]).double()
    whole = copy.deepcopy(model)

    def backward(model: GAT, batch: FullBatch, weight: float) -> None:
        logits = model(batch.blocks, features[batch.input_ids])
        (cross_entropy(logits, labels[batch.output_ids]) * weight).backward()

    with dropout_key(whole, 3):
        backward(whole, full_batch, 1)
    with dropout_key(model, 3):
        for micro_batch in split(full_batch, partition(full_batch, num_parts, method, seed=0)):
            backward(model, micro_batch, micro_batch.weight)

    for (name, parameter), expected in zip(model.named_parameters(), whole.parameters(), strict=True):
        error = (parameter.grad - expected.grad).norm() / expected.grad.norm()
        assert error <= 1e-10, name


def test_layerwise_inference_equals_the_model_on_the_whole_graph():
    block = random_block(60, 60, max_degree=6, seed=11)
    graph = Block(block.indptr, block.indices, torch.arange(60))
    features = torch.randn(60, 5, generator=torch.Generator().manual_seed(12))
    model = GAT(5, 8, 3, num_layers=3, attention_dropout=0.5)
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


def test_command_line_makes_a_model_of_as_many_heads():
    flags = training_parser("betty.micro_batch_train", "").parse_args(
        ["--model", "gat", "--num-heads", "3", "--num-hidden", "8", "--dropout", "0.25", "--dropout-mode", "torch"]
    )
    dataset = SimpleNamespace(features=torch.empty(0, 5), num_classes=7)
    model = new_model(flags, dataset)
    assert isinstance(model, GAT)
    assert model.widths == (5, 24, 7)
    assert [layer.num_heads for layer in model.layers] == [3, 3]
    assert [(type(dropout).__name__, dropout.probability) for dropout in model.dropouts] == [("TorchDropout", 0.25)]


@pytest.mark.parametrize(
    "wrong", [{"num_layers": 0}, {"dropout": 1.0}, {"attention_dropout": 1.0}, {"num_heads": 0}, {"dropout_mode": "no"}]
)
def test_settings_out_of_range_are_refused(wrong):
    with pytest.raises(BettyError):
        GAT(**{"in_feats": 5, "num_hidden": 7, "num_classes": 3, "num_layers": 2, **wrong})
