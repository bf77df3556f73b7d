"""What a stage hands to the next one: a row per node, and the gradients that come back."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor

from betty.device_loader import Rows
from betty.errors import BettyError
from betty.memory import uncounted
from betty.micro_batch_train.resting import Offload, RestingPlaces
from betty.models.batch_statistics import BatchStatistics
from betty.models.norms import BatchNorm


class Activations:
    """The results of a stage, a row per output node of it, and the loss's gradient with respect to them.

    A row is written by the one micro-batch of the stage that computes it, and read by all of the next stage that need
    it, each of which adds its share to the row's gradient. What rests outside of the device does not count as memory of
    the device, on the CPU either.

    From CUDA rows are copied in the background, on a stream of their own; :meth:`settle` waits for that.

    Args:
        num_rows: output nodes of the stage, which are the input nodes of the next one.
        offload: where they rest.
        places: makes tensors there.
    """

    def __init__(self, num_rows: int, offload: Offload, places: RestingPlaces) -> None:
        self._num_rows = num_rows
        self._offload = offload
        self._places = places
        self._values: Tensor | None = None
        self._gradient: Tensor | None = None
        self._statistics: BatchStatistics | None = None
        self._copying: _CopyingFromCuda | None = None

    @property
    def offloaded_bytes(self) -> int:
        """Bytes that rest outside of the device."""
        tensors = () if self._offload == "device" else (self._values, self._gradient)
        return sum(tensor.nbytes for tensor in tensors if tensor is not None)

    def values_of(self, positions: Tensor) -> Rows:
        """The rows of some nodes, by their positions among the stage's output nodes."""
        return Rows(self._values, positions)

    def gradient_of(self, positions: Tensor) -> Rows:
        """The gradients of some rows."""
        return Rows(self._gradient, positions)

    def write(self, positions: Tensor, results: Tensor) -> None:
        """Write the rows of some nodes, which may have been written before.

        Args:
            positions: int64 ``[num_positions]``, in host memory.
            results: ``[num_positions, channels]``, on the device.
        """
        if self._values is None:
            self._values = self._zeros(results.shape[1], results.dtype)
        self._put(self._values.index_copy_, self._values.device, positions, results.detach())

    def begin_gradient(self) -> None:
        """Make room for the gradient: zeros so far."""
        self._gradient = self._zeros(self._values.shape[1], self._values.dtype)

    def add_gradient(self, positions: Tensor, gradient: Tensor) -> None:
        """Add to the gradient of some rows.

        Args:
            positions: int64 ``[num_positions]``, distinct, in host memory.
            gradient: ``[num_positions, channels]``, on the device.
        """
        self._put(self._gradient.index_add_, self._gradient.device, positions, gradient)

    def settle(self) -> None:
        """Wait until what was written and added is there.

        Raises:
            BettyError: it could not be copied.
        """
        if self._copying is not None:
            self._copying.wait()

    def take_statistics(self, norm: BatchNorm) -> None:
        """Let the rows, all of which are there, be normalized by their own mean and variance where they are read."""
        self._statistics = BatchStatistics(norm, self._values, updates_running=True)

    def normalize_(self, rows: Tensor) -> None:
        """Normalize some of the rows, on the device, where statistics were taken."""
        if self._statistics is not None:
            self._statistics.normalize_(rows)

    def end_gradient(self) -> None:
        """Take notice that the gradient is complete; where rows were normalized, it becomes that of the rows before."""
        self.settle()
        if self._statistics is not None:
            with self._counting():
                self._statistics.backward_(self._values, self._gradient)

    def let_go_of_values(self) -> None:
        """Free the rows, which nobody reads any more."""
        with self._counting():
            self._values = None

    def let_go_of_gradient(self) -> None:
        """Free the gradient."""
        with self._counting():
            self._gradient = None

    def _zeros(self, channels: int, dtype: torch.dtype) -> Tensor:
        with self._counting():
            return self._places.zeros(self._offload, self._num_rows, channels, dtype)

    def _counting(self) -> AbstractContextManager[None]:
        return nullcontext() if self._offload == "device" else uncounted()

    def _put(
        self, put: Callable[[int, Tensor, Tensor], Tensor], where: torch.device, positions: Tensor, rows: Tensor
    ) -> None:
        if where == rows.device:
            with self._counting():
                put(0, positions.to(where), rows)
            return
        self._copying = self._copying or _CopyingFromCuda(rows.device)
        self._copying.begin(put, positions, rows)


class _CopyingFromCuda:
    """Copies rows from a CUDA device to the host beside what the device computes, one after the other."""

    def __init__(self, device: torch.device) -> None:
        self._stream = torch.cuda.Stream(device)
        self._background = ThreadPoolExecutor(max_workers=1, thread_name_prefix="copying-back")
        self._pending: Future[None] | None = None

    def begin(self, put: Callable[[int, Tensor, Tensor], Tensor], positions: Tensor, rows: Tensor) -> None:
        self.wait()
        computed = torch.cuda.current_stream(rows.device).record_event()

        def copy() -> None:
            on_host = torch.empty(rows.shape, dtype=rows.dtype, pin_memory=True)
            with torch.cuda.stream(self._stream):
                self._stream.wait_event(computed)
                on_host.copy_(rows, non_blocking=True)
                rows.record_stream(self._stream)
            self._stream.synchronize()
            put(0, positions, on_host)

        self._pending = self._background.submit(copy)

    def wait(self) -> None:
        pending, self._pending = self._pending, None
        if pending is None:
            return
        try:
            pending.result()
        # Not to be taken for a shortage of the micro-batch that is computed meanwhile.
        except (RuntimeError, MemoryError) as error:
            raise BettyError(f"results could not be copied to host memory: {error}") from error
