"""Norms and residual connections of the models."""

from types import SimpleNamespace

import pytest
import torch
from torch import nn
from torch.nn.functional import elu, relu

from betty import GAT, MLP, BettyError, Block, FullBatch, GraphSAGE
from betty.evaluation import layerwise_inference
from betty.models import AGGREGATORS
from betty.models.layered_model import LayeredModel
from betty.models.node_mixing import mixes_nodes
from betty.models.norms import make_norm
from betty.models.sage_conv import SAGEConv
from betty.training_command_line import new_model, parse_training_flags, training_parser
from tests.random_blocks import random_block, random_full_batch

BATCH = random_full_batch([80, 50, 30, 12], max_degree=6, seed=4)
MODELS = dict.fromkeys(AGGREGATORS, GraphSAGE) | {"gat": GAT, "mlp": MLP}
OF_PYTORCH = {"layer": nn.LayerNorm, "batch": nn.BatchNorm1d}


def features() -> torch.Tensor:
    return torch.randn(80, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(5))


def make_model(kind: str, num_classes: int = 3, **settings: object) -> LayeredModel:
    torch.manual_seed(0)
    if kind in AGGREGATORS:
        settings["aggre"] = kind
    return MODELS[kind](5, 8, num_classes, 3, dropout=0, **settings).double()


@pytest.mark.parametrize("norm", OF_PYTORCH)
@pytest.mark.parametrize("kind", MODELS)
def test_a_model_with_norms_is_its_layers_with_pytorchs_norms_between(kind: str, norm: str) -> None:
    model = make_model(kind, norm=norm)
    norms = [OF_PYTORCH[norm](width).double() for width in model.widths[1:-1]]
    h = features()
    for layer, block, following in zip(model.layers, BATCH.blocks, [*norms, None], strict=True):
        h = layer(block, h)
        if following is not None:
            h = (elu if kind == "gat" else relu)(following(h))
    found = model(BATCH.blocks, features())
    torch.testing.assert_close(found, h, rtol=1e-10, atol=1e-10)

    expected = torch.autograd.grad(h.square().sum(), [*model.layers.parameters()], retain_graph=True)
    h.square().sum().backward(inputs=[weight for each in norms for weight in each.parameters()])
    of_norms = [weight.grad for each in norms for weight in each.parameters()]
    result = torch.autograd.grad(found.square().sum(), [*model.layers.parameters(), *model.norms.parameters()])
    torch.testing.assert_close(result, (*expected, *of_norms), rtol=1e-10, atol=1e-10)
    for each, wanted in zip(model.norms, norms, strict=True):
        torch.testing.assert_close(each.state_dict(), wanted.state_dict(), rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("num_classes", [3, 8], ids=["last projected", "last as it is"])
@pytest.mark.parametrize("kind", AGGREGATORS)
def test_residual_connections_add_what_goes_into_a_layer(kind: str, num_classes: int) -> None:
    model = make_model(kind, num_classes, residual=True)
    plain = [SAGEConv(layer.in_feats, layer.out_feats, kind).double() for layer in model.layers]
    for layer, reference in zip(model.layers, plain, strict=True):
        state = layer.state_dict()
        projection = state.pop("res_fc.weight", None)
        reference.load_state_dict(state)
    assert (projection is None) == (num_classes == 8)

    projection = torch.eye(8).double() if projection is None else projection.requires_grad_()
    h = relu(plain[0](BATCH.blocks[0], features()))
    h = relu(plain[1](BATCH.blocks[1], h) + h[: BATCH.blocks[1].num_dst])
    h = plain[2](BATCH.blocks[2], h) + h[: BATCH.blocks[2].num_dst] @ projection.T
    found = model(BATCH.blocks, features())
    torch.testing.assert_close(found, h, rtol=1e-10, atol=1e-10)

    h.square().sum().backward()
    found.square().sum().backward()
    for layer, reference in zip(model.layers, plain, strict=True):
        for name, wanted in reference.named_parameters():
            torch.testing.assert_close(layer.get_parameter(name).grad, wanted.grad, rtol=1e-10, atol=1e-10)
    if num_classes == 3:
        torch.testing.assert_close(model.layers[2].res_fc.weight.grad, projection.grad, rtol=1e-10, atol=1e-10)


def test_a_single_layer_has_a_residual_connection() -> None:
    assert GraphSAGE(5, 7, 3, num_layers=1, residual=True).layers[0].residual
    assert not GraphSAGE(5, 7, 3, num_layers=1).layers[0].residual


@pytest.mark.parametrize("norm", ["none", "layer", "batch"])
def test_a_layer_is_its_convolution_its_norm_and_its_activation(norm: str) -> None:
    model, block = make_model("mean", norm=norm), BATCH.blocks[0]
    h = model.convolve(0, block, features())
    h = model.activate(0, model.norms[0](h), block.dst_ids)
    assert torch.equal(model.layer_forward(0, block, features()), h)
    last = BATCH.blocks[2]
    hidden = torch.randn(last.num_src, 8, dtype=torch.float64)
    assert torch.equal(model.layer_forward(2, last, hidden), model.convolve(2, last, hidden))


@pytest.mark.parametrize("kind", ["mean", "gat"])
def test_without_a_norm_no_weight_has_another_name(kind: str) -> None:
    model = make_model(kind)
    assert all(name.startswith("layers.") for name in model.state_dict())
    assert len(model.norms) == 2
    assert all(isinstance(norm, nn.Identity) for norm in model.norms)


@pytest.mark.parametrize(("norm", "mixing"), [("none", None), ("layer", None), ("batch", "norms.0 (BatchNorm)")])
def test_only_batch_norm_mixes_nodes(norm: str, mixing: str | None) -> None:
    assert mixes_nodes(make_model("mean", norm=norm), starts_training=True) == mixing


@pytest.mark.parametrize("norm", ["layer", "batch"])
@pytest.mark.parametrize("kind", ["mean", "gcn", "gat"])
def test_layerwise_inference_equals_the_model_on_the_whole_graph(kind: str, norm: str) -> None:
    block = random_block(60, 60, max_degree=6, seed=11)
    graph = Block(block.indptr, block.indices, torch.arange(60))
    x = torch.randn(60, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(12))
    model = make_model(kind, norm=norm, residual=True)
    model([graph] * 3, x)  # for batch norm to remember
    logits = layerwise_inference(model, graph.indptr, graph.indices, x, "cpu", max_edges=20)
    torch.testing.assert_close(logits, model.eval()([graph] * 3, x).detach().float(), rtol=1e-5, atol=1e-5)


def test_batch_norm_of_a_single_node_is_refused_in_one_line() -> None:
    batch = random_full_batch([4, 1, 1], max_degree=3, seed=0)
    model = GraphSAGE(5, 8, 3, 2, norm="batch")
    with pytest.raises(BettyError, match="over a layer's nodes, of which there are 1"):
        model(FullBatch(batch.blocks).blocks, torch.randn(4, 5))


def test_an_unknown_norm_is_refused() -> None:
    with pytest.raises(BettyError, match="unknown norm 'group'; choose one of none, layer, batch"):
        make_norm("group", 3)


@pytest.mark.parametrize("kind", ["sage", "gat"])
def test_the_command_line_sets_norms_and_residual_connections(kind: str) -> None:
    parser = training_parser("betty.micro_batch_train", "")
    dataset = SimpleNamespace(num_features=5, num_classes=7)
    for flags, norm, residuals in [
        ([], "NoNorm", [False, False]),
        (["--norm", "layer", "--residual"], "LayerNorm", [False, True]),
        (["--norm", "batch"], "BatchNorm", [False, False]),
    ]:
        model = new_model(parser.parse_args(["--model", kind, *flags]), dataset)
        assert [type(norm).__name__ for norm in model.norms] == [norm]
        assert [layer.residual for layer in model.layers] == residuals


def test_an_mlp_takes_norms_but_no_residual_connections(capsys: pytest.CaptureFixture[str]) -> None:
    parser = training_parser("betty.micro_batch_train", "")
    flags = ["--model", "mlp", "--dataset", "cora", "--fan-out", "10,25"]
    model = new_model(parser.parse_args([*flags, "--norm", "layer"]), SimpleNamespace(num_features=5, num_classes=7))
    assert isinstance(model.norms[0], nn.LayerNorm)
    with pytest.raises(SystemExit) as stopped:
        parse_training_flags(parser, [*flags, "--residual"])
    assert stopped.value.code == 2
    assert "--residual is of --model sage and gat, not of mlp" in capsys.readouterr().err
