"""Parts on disk, so that what was partitioned once need not be again."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
from torch import Tensor

from betty.envelope import SealedTensors, digest_of, write_sealed
from betty.errors import BettyError
from betty.files import locked

logger = logging.getLogger(__name__)

FORMAT_VERSION = 2
"""To be raised when the same key stands for other values, so that stored ones are made again."""


class StoredTensors:
    """A folder of integer tensors, each in a file of its own under a key that tells everything it depends on.

    Files are in Betty's envelope, made from their keys. A file that is damaged counts as not there, which is
    logged; what cannot be written is logged too and made again another time: nothing is lost but time.

    Args:
        folder: made when the first tensor is stored.
        common: a part of every key.
    """

    def __init__(self, folder: Path, common: Mapping[str, object]) -> None:
        self.folder = folder
        self._common = common

    def load(self, name: str, key: Mapping[str, object]) -> Tensor | None:
        """The tensor stored under a key, or ``None``.

        Args:
            name: what the file's name starts with.
            key: what JSON can hold.
        """
        made_from, path = self._key(name, key)
        try:
            if not path.exists():
                return None
            # Not a view of the file, which could be cut short later.
            return SealedTensors(path, made_from)["values"].clone()
        except (OSError, BettyError) as error:
            logger.warning("%s cannot be used (%s) and is made again", path, error)
            return None

    def save(self, name: str, key: Mapping[str, object], tensor: Tensor) -> None:
        """Store a tensor under a key."""
        made_from, path = self._key(name, key)
        try:
            with locked(self.folder):
                write_sealed(path, {"values": tensor}, made_from)
        except OSError as error:
            logger.warning("%s cannot be written (%s); it has to be made again", path, error.strerror or error)

    def _key(self, name: str, key: Mapping[str, object]) -> tuple[dict[str, object], Path]:
        made_from = {"format_version": FORMAT_VERSION, **self._common, **key}
        return made_from, self.folder / f"{name}_{digest_of(made_from)[:16]}.safetensors"


def part_of_output(parts: Sequence[Tensor]) -> Tensor:
    """The part of every output node, int32 ``[num_outputs]``, from parts that hold each of them once."""
    part_of = torch.empty(sum(part.numel() for part in parts), dtype=torch.int32)
    for number, part in enumerate(parts):
        part_of[part] = number
    return part_of
