"""Parts on disk, so that what was partitioned once need not be again."""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from betty.files import locked, whole_file
from betty.full_batch.manifest import tensor_fingerprint

logger = logging.getLogger(__name__)

FORMAT_VERSION = 1
"""To be raised when the same key stands for other values, so that stored ones are made again."""


class StoredTensors:
    """A folder of integer tensors, each in a file of its own under a key that tells everything it depends on.

    A file's metadata hold the key and a checksum of the tensor. A file that is damaged counts as not there, which is
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
        text, path = self._key(name, key)
        try:
            if not path.exists():
                return None
            with safe_open(path, framework="pt", device="cpu") as content:
                metadata = content.metadata() or {}
                # Not a view of the file, which could be cut short later.
                tensor = content.get_tensor("values").clone()
        except (OSError, SafetensorError) as error:
            logger.warning("%s cannot be read (%s) and is made again", path, error)
            return None
        if metadata.get("key") != text or metadata.get("sha256") != tensor_fingerprint(tensor):
            logger.warning("%s is damaged and is made again", path)
            return None
        return tensor

    def save(self, name: str, key: Mapping[str, object], tensor: Tensor) -> None:
        """Store a tensor under a key."""
        text, path = self._key(name, key)
        content = save({"values": tensor}, metadata={"key": text, "sha256": tensor_fingerprint(tensor)})
        try:
            with locked(self.folder), whole_file(path) as partial:
                partial.write_bytes(content)
        except OSError as error:
            logger.warning("%s cannot be written (%s); it has to be made again", path, error.strerror or error)

    def _key(self, name: str, key: Mapping[str, object]) -> tuple[str, Path]:
        text = json.dumps({"format_version": FORMAT_VERSION, **self._common, **key}, sort_keys=True)
        digest = hashlib.sha256(text.encode()).hexdigest()[:16]
        return text, self.folder / f"{name}_{digest}.safetensors"


def part_of_output(parts: Sequence[Tensor]) -> Tensor:
    """The part of every output node, int32 ``[num_outputs]``, from parts that hold each of them once."""
    part_of = torch.empty(sum(part.numel() for part in parts), dtype=torch.int32)
    for number, part in enumerate(parts):
        part_of[part] = number
    return part_of
