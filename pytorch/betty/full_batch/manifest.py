"""The manifest of a folder of full batches: what they are made from, and every file's size and checksum."""

from __future__ import annotations

import dataclasses
import hashlib
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from betty.errors import BettyError
from betty.files import read_json, write_json
from betty.full_batch.sampling import ALL_NEIGHBORS, count_batches

FORMAT_VERSION = 1
FILE_NAME = "manifest.json"


class _DamagedError(Exception):
    """A manifest is not what :func:`write_manifest` writes."""


@dataclass(frozen=True)
class Recipe:
    """What determines the full batches of a folder.

    Args:
        dataset: name of the data set.
        graph: fingerprint of its graph.
        output_ids: fingerprint of the output nodes, see :func:`tensor_fingerprint`.
        num_outputs: how many output nodes an epoch has.
        fan_outs: neighbours sampled per layer, input layer first.
        seed: of the sampling.
        batch_size: output nodes of a full batch; None for all.
    """

    dataset: str
    graph: str
    output_ids: str
    num_outputs: int
    fan_outs: tuple[int, ...]
    seed: int
    batch_size: int | None

    @classmethod
    def of(
        cls,
        dataset: str,
        graph_fingerprint: str,
        output_ids: Tensor,
        fan_outs: Sequence[int],
        seed: int,
        batch_size: int | None = None,
    ) -> Recipe:
        """The recipe for full batches of ``output_ids``, int64 ``[num_outputs]``."""
        fingerprint = tensor_fingerprint(output_ids)
        return cls(dataset, graph_fingerprint, fingerprint, output_ids.numel(), tuple(fan_outs), seed, batch_size)

    @property
    def num_batches(self) -> int:
        """Full batches of an epoch."""
        return count_batches(self.num_outputs, self.batch_size)

    def folder(self, root: Path) -> Path:
        """Where under ``root`` these full batches are."""
        name = f"fan-out-{'-'.join('all' if n == ALL_NEIGHBORS else str(n) for n in self.fan_outs)}_seed-{self.seed}"
        if self.batch_size is not None:
            name += f"_batch-size-{self.batch_size}"
        return root / re.sub(r"[^\w-]", "_", self.dataset) / name

    def command(self, num_epochs: int) -> str:
        """The command that makes these full batches, but for the flags that tell where things are."""
        flags = f"--fan-out {','.join(map(str, self.fan_outs))} --seed {self.seed} --num-epochs {num_epochs}"
        if self.batch_size is not None:
            flags += f" --batch-size {self.batch_size}"
        return f"python -m betty.full_batch {flags} with your --dataset, --data-root and --full-batch-root"


def tensor_fingerprint(tensor: Tensor) -> str:
    """SHA-256 of the bytes of a tensor in host memory, in hexadecimal."""
    return hashlib.sha256(tensor.contiguous().numpy()).hexdigest()


@dataclass(frozen=True)
class StoredFile:
    """What the manifest tells of one file.

    Args:
        epoch: counted from 0.
        batch: position in the epoch.
        bytes: size of the file.
        sha256: checksum of the file.
        input_nodes: sources of the first block.
        output_nodes: destinations of the last block.
        edges: of every block, input layer first.
    """

    epoch: int
    batch: int
    bytes: int
    sha256: str
    input_nodes: int
    output_nodes: int
    edges: tuple[int, ...]

    @property
    def name(self) -> str:
        return f"epoch-{self.epoch:04d}_batch-{self.batch:04d}.safetensors"


def write_manifest(folder: Path, recipe: Recipe, files: Sequence[StoredFile]) -> None:
    """Write the manifest of a folder, whole or not at all."""
    content = {
        "format_version": FORMAT_VERSION,
        **dataclasses.asdict(recipe),
        "files": [dataclasses.asdict(file) for file in files],
    }
    write_json(folder / FILE_NAME, content)


def read_manifest(folder: Path, recipe: Recipe) -> dict[tuple[int, int], StoredFile]:
    """What the manifest of a folder names, by epoch and batch; nothing where there is no manifest.

    Raises:
        BettyError: the manifest is damaged, of a newer format, or of full batches of another recipe.
    """
    path = folder / FILE_NAME
    if not os.path.exists(path):
        return {}
    content = read_json(path)
    again = f"delete the folder {folder} and make it again"
    try:
        version = _field(content, "format_version", int)
        if version > FORMAT_VERSION:
            raise BettyError(
                f"{path} has format version {version}, newer than {FORMAT_VERSION}; update Betty or {again}"
            )
        if version < FORMAT_VERSION:
            raise _DamagedError(f"its format version is {version}")
        found = _parse_recipe(content)
        files = [_parse_file(file) for file in _field(content, "files", list)]
    except _DamagedError as error:
        raise BettyError(f"{path} is damaged: {error}; {again}") from None
    _require_same(path, found, recipe)
    return {(file.epoch, file.batch): file for file in files}


def _require_same(path: Path, found: Recipe, expected: Recipe) -> None:
    for field in dataclasses.fields(Recipe):
        stored, wanted = getattr(found, field.name), getattr(expected, field.name)
        if stored != wanted:
            raise BettyError(
                f"{path} is of other full batches: {field.name} is {stored}, not {wanted}; "
                f"delete the folder {path.parent} and make it again, or choose another --full-batch-root"
            )


def _parse_recipe(content: Any) -> Recipe:
    return Recipe(
        dataset=_field(content, "dataset", str),
        graph=_field(content, "graph", str),
        output_ids=_field(content, "output_ids", str),
        num_outputs=_field(content, "num_outputs", int),
        fan_outs=tuple(_field(content, "fan_outs", list)),
        seed=_field(content, "seed", int),
        batch_size=_field(content, "batch_size", int, type(None)),
    )


def _parse_file(content: Any) -> StoredFile:
    numbers = {name: _field(content, name, int) for name in ("epoch", "batch", "bytes", "input_nodes", "output_nodes")}
    return StoredFile(**numbers, sha256=_field(content, "sha256", str), edges=tuple(_field(content, "edges", list)))


def _field(content: Any, name: str, *types: type) -> Any:
    if not isinstance(content, dict) or name not in content:
        raise _DamagedError(f"{name} is missing")
    value = content[name]
    if type(value) not in types:
        raise _DamagedError(f"{name} cannot be {value!r}")
    return value
