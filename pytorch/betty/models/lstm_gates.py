"""What an LSTM's gates are computed from: the features of every edge, or products of them that its source shares."""

from abc import ABC, abstractmethod

import torch
from torch import Tensor

from betty.models.matrix_products import linear, sigmoid_linear


class Gates(ABC):
    """The gates of all edges, in the form in which every nonlinearity is the logistic function.

    Args:
        x: ``[num_src, width]``, what a source contributes.
        weight: ``[4 * channels, inputs]``.
        bias: ``[4 * channels]``, or ``None`` where ``x`` contains it.
    """

    def __init__(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> None:
        self.x = x
        self.weight = weight
        self.bias = bias
        self.channels = weight.shape[0] // 4

    @abstractmethod
    def inputs(self, sources: Tensor, hidden: Tensor) -> Tensor:
        """What the weight is multiplied with.

        Args:
            sources: int64 ``[num_edges]``, source ids.
            hidden: ``[num_edges, channels]``, the hidden states before the edges are read.

        Returns:
            ``[num_edges, inputs]``.
        """

    @abstractmethod
    def values(self, sources: Tensor, inputs: Tensor) -> Tensor:
        """``[num_edges, 4 * channels]``: input gate, forget gate, candidate and output gate."""

    def start_gradients(self, needs_x: bool) -> None:
        """Set ``grad_x``, which stays ``None`` where it is not needed, ``grad_weight`` and ``grad_bias`` to zero."""
        self.grad_x = torch.zeros_like(self.x) if needs_x else None
        # Transposed, as the products that are added up come out.
        self.grad_weight = torch.zeros_like(self.weight.T).T
        self.grad_bias = None if self.bias is None else torch.zeros_like(self.bias)

    def add_gradients(self, sources: Tensor, inputs: Tensor, grad_gates: Tensor) -> None:
        """Add what edges contribute to the gradients.

        Args:
            sources: int64 ``[num_edges]``, source ids.
            inputs: of :meth:`inputs`.
            grad_gates: ``[num_edges, 4 * channels]``, the gradient of the gates before their nonlinearity.
        """
        self.grad_weight += linear(inputs.T, grad_gates.T).T
        if self.grad_bias is not None:
            self.grad_bias += grad_gates.sum(0)
        if self.grad_x is not None:
            _add_rows(self.grad_x, sources, self.grad_rows(grad_gates))

    @abstractmethod
    def grad_rows(self, grad_gates: Tensor) -> Tensor:
        """``[num_edges, width]``, the gradient of every edge's row of ``x``."""


class EdgeGates(Gates):
    """One product for the features and the hidden state of an edge, which lie side by side; ``x`` are the features."""

    def inputs(self, sources: Tensor, hidden: Tensor) -> Tensor:
        return torch.cat([self.x.index_select(0, sources), hidden], dim=1)

    def values(self, sources: Tensor, inputs: Tensor) -> Tensor:
        return sigmoid_linear(inputs, self.weight, self.bias)

    def start_gradients(self, needs_x: bool) -> None:
        super().start_gradients(needs_x)
        self._features_weight = self.weight[:, : self.x.shape[1]].T.contiguous()

    def grad_rows(self, grad_gates: Tensor) -> Tensor:
        return linear(grad_gates, self._features_weight)


class SourceGates(Gates):
    """A product for the hidden state of an edge; ``x`` are the products for the features, a row per source."""

    def inputs(self, sources: Tensor, hidden: Tensor) -> Tensor:
        return hidden

    def values(self, sources: Tensor, inputs: Tensor) -> Tensor:
        return self.x.index_select(0, sources).add_(linear(inputs, self.weight)).sigmoid_()

    def grad_rows(self, grad_gates: Tensor) -> Tensor:
        return grad_gates


def _add_rows(into: Tensor, index: Tensor, rows: Tensor) -> None:
    """``into[index] += rows``, where an index may repeat, in an order that does not change from run to run."""
    if into.is_cuda:
        # index_add_ adds there in the order in which threads happen to come.
        into.index_put_((index,), rows, accumulate=True)
    else:
        into.index_add_(0, index, rows)
