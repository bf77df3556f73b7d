"""The manifest of a folder of full batches: what they are made from, and every file's size and checksum."""

from __future__ import annotations

import dataclasses
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec
from torch import Tensor

from betty.envelope import DamagedError, read_sealed_json, tensor_digest, write_sealed_json
from betty.errors import BettyError
from betty.files import NotOfFormError
from betty.full_batch.sampling import ALL_NEIGHBORS, count_batches

FORMAT_VERSION = 2
FILE_NAME = "manifest.json"


@dataclass(frozen=True)
class Recipe:
    """What determines the full batches of a folder.

    Args:
        dataset: name of the data set.
        graph: fingerprint of its graph.
        output_ids: fingerprint of the output nodes, see :func:`~betty.envelope.tensor_digest`.
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
        fingerprint = tensor_digest(output_ids)
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


@dataclass(frozen=True)
class _Manifest(Recipe):
    """What is in the file, beside its seal."""

    format_version: int
    files: tuple[StoredFile, ...]


def write_manifest(folder: Path, recipe: Recipe, files: Sequence[StoredFile]) -> None:
    """Write the manifest of a folder, whole or not at all."""
    manifest = _Manifest(**dataclasses.asdict(recipe), format_version=FORMAT_VERSION, files=tuple(files))
    write_sealed_json(folder / FILE_NAME, dataclasses.asdict(manifest))


def read_manifest(folder: Path, recipe: Recipe) -> dict[tuple[int, int], StoredFile]:
    """What the manifest of a folder names, by epoch and batch; nothing where there is no manifest.

    Raises:
        DamagedError: the manifest is not as it was written.
        BettyError: it is of a newer format, or of full batches of another recipe.
    """
    path = folder / FILE_NAME
    if not os.path.exists(path):
        return {}
    again = f"delete the folder {folder} and make it again"
    try:
        content = read_sealed_json(path)
        version = content.get("format_version")
        if isinstance(version, int) and version > FORMAT_VERSION:
            raise BettyError(
                f"{path} has format version {version}, newer than {FORMAT_VERSION}; update Betty or {again}"
            )
        manifest = msgspec.convert(content, _Manifest)
        if manifest.format_version < FORMAT_VERSION:
            raise DamagedError(f"its format version is {manifest.format_version}")
    except (DamagedError, NotOfFormError, msgspec.ValidationError) as error:
        raise DamagedError(f"{path} is damaged ({error}); {again}") from None
    _require_same(path, manifest, recipe)
    return {(file.epoch, file.batch): file for file in manifest.files}


def _require_same(path: Path, found: Recipe, expected: Recipe) -> None:
    for field in dataclasses.fields(Recipe):
        stored, wanted = getattr(found, field.name), getattr(expected, field.name)
        if stored != wanted:
            raise BettyError(
                f"{path} is of other full batches: {field.name} is {stored}, not {wanted}; "
                f"delete the folder {path.parent} and make it again, or choose another --full-batch-root"
            )
