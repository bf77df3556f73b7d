"""Following the tensors that operations make until they are gone."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from betty.errors import BettyError

UNKNOWN_WORKSPACES = ("aten.mkldnn_rnn_layer", "aten._cudnn_rnn", "aten.miopen_rnn")

# Autograd writes in place where it made the tensor itself, but not into tensors of a subclass, as fake ones are.
_IN_PLACE_IN_BACKWARD = {torch.ops.aten.index_put.default: torch.ops.aten.index_put_.default}


class LiveBytes(TorchDispatchMode):
    """Sums the bytes of the tensors that a training step inside of it makes and that are still alive.

    Views share the storage of what they are views of and count with it, once. Works with fake tensors, whose
    storages have a size though nothing in them. What is in other tensors may come out wrong.

    Args:
        known: tensors that were there before and do not count; they must stay alive.

    Raises:
        BettyError: inside, an operation keeps a workspace of a size that fake tensors do not tell.

    Attributes:
        in_backward: whether what is made from now on is made by the backward pass; to be set when that begins.
        at_peak: bytes made by the forward and by the backward pass, when their sum was highest.
    """

    def __init__(self, known: Iterable[Tensor]) -> None:
        super().__init__()
        self.in_backward = False
        self.at_peak = (0, 0)
        self._alive = [0, 0]
        self._storages = {tensor.untyped_storage()._cdata for tensor in known}

    def __torch_dispatch__(
        self, operation: Callable[..., Any], types: Any, args: tuple = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if self.in_backward:
            operation = _IN_PLACE_IN_BACKWARD.get(operation, operation)
        if str(operation).rsplit(".", 1)[0] in UNKNOWN_WORKSPACES:
            raise BettyError(f"the memory that {operation} keeps for the backward pass is known to its kernel only")
        results = operation(*args, **(kwargs or {}))
        for result in tree_leaves(results):
            if isinstance(result, Tensor):
                self._follow(result.untyped_storage())
        # What the operation read is still alive here, as it is in a kernel.
        self.at_peak = max(self.at_peak, (self._alive[0], self._alive[1]), key=sum)
        return results

    def _follow(self, storage: torch.UntypedStorage) -> None:
        if storage._cdata in self._storages:
            return
        self._storages.add(storage._cdata)
        self._alive[self.in_backward] += storage.nbytes()
        weakref.finalize(storage, self._forget, storage._cdata, self.in_backward, storage.nbytes()).atexit = False

    def _forget(self, storage: int, of_backward: bool, num_bytes: int) -> None:
        self._storages.remove(storage)
        self._alive[of_backward] -= num_bytes


def storage_bytes(tensors: Iterable[Tensor]) -> int:
    """Bytes of the tensors' storages, each of which counts once."""
    storages = [tensor.untyped_storage() for tensor in tensors]
    return sum({storage._cdata: storage.nbytes() for storage in storages}.values())
