"""Where activations rest between stages: on the device, in host memory, or in a scratch file that is mapped to it."""

from __future__ import annotations

import mmap
import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Literal, get_args

import torch
from torch import Tensor

from betty.errors import BettyError
from betty.memory import size_text

Offload = Literal["device", "host", "disk"]

OFFLOADS: tuple[Offload, ...] = get_args(Offload)
"""From the nearest to the farthest."""

ZeroRows = Callable[[Offload, int, int, torch.dtype], Tensor]
"""Makes zeros ``[num_rows, channels]`` of a dtype in a place."""


class RestingPlaces:
    """Makes tensors in the places where activations rest.

    Those in host memory are not page-locked: micro-batches take rows of them from all over, by way of page-locked
    memory of their own.

    Args:
        device: where the model is.
        scratch_folder: for files; they have no names, so that the system removes them when they are let go, whichever
            way the process ends.
    """

    def __init__(self, device: torch.device, scratch_folder: Path | None = None) -> None:
        self._device = device
        self._folder = scratch_folder or Path(tempfile.gettempdir())

    def zeros(self, offload: Offload, num_rows: int, channels: int, dtype: torch.dtype) -> Tensor:
        """Zeros ``[num_rows, channels]``.

        Raises:
            BettyError: the disk has no room for the file, or none can be made.
        """
        shape = (num_rows, channels)
        if offload == "disk" and num_rows * channels:
            return self._mapped(num_rows * channels * dtype.itemsize, dtype).view(shape)
        return torch.zeros(shape, dtype=dtype, device=self._device if offload == "device" else "cpu")

    def _mapped(self, num_bytes: int, dtype: torch.dtype) -> Tensor:
        try:
            with tempfile.TemporaryFile(dir=_nearest_there_is(self._folder)) as file:
                # With all its blocks: where the disk turns out to be full in a write to mapped memory, the system ends
                # the process.
                os.posix_fallocate(file.fileno(), 0, num_bytes)
                return torch.frombuffer(mmap.mmap(file.fileno(), num_bytes), dtype=dtype)
        except OSError as error:
            raise BettyError(
                f"{self._folder} has no scratch file of {size_text(num_bytes)} for activations to rest in "
                f"({error.strerror or error}); free room there, or allow more --host-memory or another --offload"
            ) from error


def _nearest_there_is(folder: Path) -> Path:
    """A folder, or where it is yet to be made the nearest one above it."""
    return next(path for path in (folder, *folder.absolute().parents) if path.is_dir())
