import pytest
import torch
from torch import nn

from betty.models.linear import Linear
from betty.models.matrix_products import HAS_ONEDNN, goes_to_onednn


def copy_of(layer: nn.Linear, make: type[nn.Linear], dtype: torch.dtype) -> nn.Linear:
    copy = make(layer.in_features, layer.out_features, bias=layer.bias is not None, dtype=dtype)
    copy.load_state_dict(layer.state_dict())
    return copy


def result_and_gradients(layer: nn.Linear, x: torch.Tensor, weights: torch.Tensor) -> list[torch.Tensor]:
    x = x.to(layer.weight.dtype).requires_grad_()
    result = layer(x)
    return [result, *torch.autograd.grad(result, [x, *layer.parameters()], weights.to(result.dtype))]


@pytest.mark.parametrize(
    ("dtype", "tolerance"), [(torch.float32, 1e-5), (torch.float64, 1e-12), (torch.bfloat16, 0.05)]
)
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("num_rows", [0, 1, 300])
@pytest.mark.parametrize("strided", [False, True])
def test_result_and_gradients_are_those_of_pytorchs_in_float64(dtype, tolerance, bias, num_rows, strided):
    generator = torch.Generator().manual_seed(0)
    layer = Linear(24, 7, bias=bias)
    x = torch.randn(num_rows, 24, generator=generator)
    weights = torch.randn(7, num_rows, generator=generator).T if strided else torch.randn(num_rows, 7)
    found = result_and_gradients(copy_of(layer, Linear, dtype), x, weights)
    expected = result_and_gradients(copy_of(layer, nn.Linear, torch.float64), x, weights)
    for one, other in zip(found, expected, strict=True):
        assert one.dtype == dtype
        scale = float(other.detach().abs().max()) if other.numel() else 1.0
        torch.testing.assert_close(one.double(), other, rtol=0, atol=tolerance * max(scale, 1))


def test_float32_on_the_cpu_goes_to_onednn_and_gradients_that_nobody_wants_are_not_computed():
    layer, x = Linear(24, 7), torch.randn(5, 24)
    assert goes_to_onednn(x, layer.weight) == HAS_ONEDNN
    layer(x).sum().backward()
    assert x.grad is None
    torch.testing.assert_close(layer.bias.grad, torch.full((7,), 5.0))
    torch.testing.assert_close(layer.weight.grad, x.sum(0).expand(7, 24))


def test_hooks_and_autocast_work_as_on_pytorchs():
    layer, seen = Linear(24, 7), []
    layer.register_forward_hook(lambda module, inputs, result: seen.append(result.shape))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert layer(torch.randn(5, 24)).dtype == torch.bfloat16
    assert layer(torch.randn(5, 24)).dtype == torch.float32
    assert seen == [(5, 7), (5, 7)]
