import pytest
import torch

from betty.models import matrix_products
from betty.models.matrix_products import linear, sigmoid_linear


def matrix(rows: int, columns: int, dtype: torch.dtype, layout: str) -> torch.Tensor:
    values = torch.randn(rows, columns, generator=torch.Generator().manual_seed(rows), dtype=torch.float64).to(dtype)
    if layout == "transposed":
        return values.T.contiguous().T
    if layout == "with gaps":
        return torch.cat([values, values], dim=1)[:, :columns]
    return values


@pytest.mark.parametrize("layout", ["contiguous", "transposed", "with gaps"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("rows", [1, 7, 600])
@pytest.mark.parametrize("has_onednn", [matrix_products.HAS_ONEDNN, False])
def test_products_equal_float64(has_onednn, rows, dtype, layout, monkeypatch):
    monkeypatch.setattr(matrix_products, "HAS_ONEDNN", has_onednn)
    x, weight = matrix(rows, 24, dtype, layout), matrix(40, 24, dtype, layout)
    bias = torch.linspace(-2, 2, 40, dtype=dtype)
    expected = x.double() @ weight.double().T
    tolerance = {"rtol": 1e-5, "atol": 1e-5} if dtype == torch.float32 else {"rtol": 1e-12, "atol": 1e-12}
    torch.testing.assert_close(linear(x, weight).double(), expected, **tolerance)
    expected = torch.sigmoid(expected + bias)
    torch.testing.assert_close(sigmoid_linear(x, weight, bias).double(), expected, **tolerance)
