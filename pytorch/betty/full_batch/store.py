"""Full batches on disk: a folder of ``safetensors`` files and a JSON manifest that tells what they are.

::

    <root>/<data set>/fan-out-10-25_seed-1236/manifest.json
                                              epoch-0000_batch-0000.safetensors
                                              epoch-0001_batch-0000.safetensors

A file holds ``node_ids`` (int64, global ids of the input nodes) and, for each block, input layer first, ``0.indptr``
(int64) and ``0.indices`` (int32 or int64), ``1.indptr``, … as in :class:`betty.Block`. The sources of every block are
the first of ``node_ids``.

The manifest is written anew after each file. What it does not name is not there; what it names has the size and the
checksum that it tells, or is refused.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from betty.blocks import FullBatch, chain_blocks
from betty.envelope import DamagedError
from betty.errors import BettyError
from betty.files import PARTIAL_SUFFIX, hold_lock, sha256, whole_file
from betty.full_batch.manifest import Recipe, StoredFile, read_manifest, write_manifest
from betty.full_batch.sampling import FullBatchSource, check_position

logger = logging.getLogger(__name__)


class FullBatchWriter:
    """Writes full batches to a folder, each file whole or not at all, and goes on where an earlier run stopped.

    Whatever was interrupted when, the folder ends in the same bytes. The writer has the folder for itself until it is
    gone. Files that are not as the manifest says are made again.

    Args:
        root: folder of all stored full batches.
        recipe: what to store.

    Raises:
        BettyError: the folder holds other full batches, or cannot be written.
    """

    def __init__(self, root: Path, recipe: Recipe) -> None:
        self.folder = recipe.folder(root)
        self._recipe = recipe
        with _writing(self.folder):
            self._lock = hold_lock(self.folder)
            for leftover in self.folder.glob(f"*{PARTIAL_SUFFIX}"):
                leftover.unlink()
            self._files = {position: file for position, file in self._recorded() if _is_whole(self.folder, file)}

    def _recorded(self) -> Iterable[tuple[tuple[int, int], StoredFile]]:
        try:
            return read_manifest(self.folder, self._recipe).items()
        except DamagedError as damage:
            logger.warning("%s; all of it is made again", damage)
            return ()

    @property
    def files(self) -> list[StoredFile]:
        """What is stored, in the order of epochs and batches."""
        return [self._files[position] for position in sorted(self._files)]

    def missing(self, num_epochs: int) -> list[tuple[int, int]]:
        """``(epoch, batch)`` of what is still to be written for as many epochs."""
        positions = [(epoch, batch) for epoch in range(num_epochs) for batch in range(self._recipe.num_batches)]
        return [position for position in positions if position not in self._files]

    def write(self, epoch: int, batch: int, full_batch: FullBatch) -> StoredFile:
        """Store a full batch.

        Raises:
            BettyError: the disk is full, or the folder cannot be written.
        """
        # Not safetensors' save_file: its own temporary file would outlive a kill, and only its owner could read it.
        content = save(_to_tensors(full_batch))
        file = StoredFile(
            epoch=epoch,
            batch=batch,
            bytes=len(content),
            sha256=hashlib.sha256(content).hexdigest(),
            input_nodes=full_batch.input_ids.numel(),
            output_nodes=full_batch.output_ids.numel(),
            edges=tuple(block.num_edges for block in full_batch.blocks),
        )
        with _writing(self.folder):
            with whole_file(self.folder / file.name) as target:
                target.write(content)
            self._files[epoch, batch] = file
            write_manifest(self.folder, self._recipe, self.files)
        return file


class StoredFullBatches:
    """Full batches that :class:`FullBatchWriter` wrote; the file of one is read when it is asked for, and no other.

    Args:
        root: folder of all stored full batches.
        recipe: what is expected there.
        sampled: the same full batches, to take in place of those whose files turn out to be damaged, which is logged;
            without it they are refused.

    Raises:
        BettyError: the manifest is damaged, of a newer format, or of other full batches.
    """

    def __init__(self, root: Path, recipe: Recipe, sampled: FullBatchSource | None = None) -> None:
        self.folder = recipe.folder(root)
        self.num_batches = recipe.num_batches
        self._recipe = recipe
        self._sampled = sampled
        self._files = read_manifest(self.folder, recipe)
        self._verified: set[tuple[int, int]] = set()
        self._damaged: set[tuple[int, int]] = set()

    def require_epochs(self, num_epochs: int) -> None:
        """Make sure, before hours of training, that all full batches of the first epochs are there in their size.

        Raises:
            BettyError: one is not stored, or not in its size and cannot be sampled.
        """
        for epoch in range(num_epochs):
            for batch in range(self.num_batches):
                self._is_intact(self._file(epoch, batch, num_epochs), self._check_size)

    def load(self, epoch: int, batch: int) -> FullBatch:
        """The full batch at position ``batch`` of an epoch, both counted from 0.

        Its tensors are memory-mapped. Before the first use the whole file is read once, for its checksum.

        Raises:
            BettyError: it is not stored, or the file is not as it was written and the full batch cannot be sampled.
        """
        check_position(epoch, batch, self.num_batches)
        file = self._file(epoch, batch, epoch + 1)
        if not self._is_intact(file, self._verify):
            return self._sampled.load(epoch, batch)
        path = self.folder / file.name
        try:
            with safe_open(path, framework="pt", device="cpu") as content:
                return _from_tensors({name: content.get_tensor(name) for name in content.keys()})  # noqa: SIM118
        except SafetensorError as error:
            raise DamagedError(f"{path} was changed after it was checked ({error}); {self._remedy()}") from error

    def _file(self, epoch: int, batch: int, num_epochs: int) -> StoredFile:
        try:
            return self._files[epoch, batch]
        except KeyError:
            command = self._recipe.command(num_epochs)
            message = f"batch {batch} of epoch {epoch} is not stored in {self.folder}; make it with {command}"
            raise BettyError(message) from None

    def _is_intact(self, file: StoredFile, check: Callable[[Path, StoredFile], None]) -> bool:
        """Whether a file passes a check; where it does not, that is said once, or refused if it cannot be sampled."""
        position = (file.epoch, file.batch)
        if position in self._damaged:
            return False
        try:
            check(self.folder / file.name, file)
        except DamagedError as damage:
            if self._sampled is None:
                raise
            logger.warning("%s; until then it is sampled again", damage)
            self._damaged.add(position)
            return False
        return True

    def _check_size(self, path: Path, file: StoredFile) -> None:
        try:
            size = path.stat().st_size
        except OSError as error:
            raise DamagedError(f"{path} cannot be read: {error.strerror}; {self._remedy()}") from error
        if size != file.bytes:
            raise DamagedError(f"{path} has {size} bytes instead of {file.bytes}; {self._remedy()}")

    def _verify(self, path: Path, file: StoredFile) -> None:
        if (file.epoch, file.batch) in self._verified:
            return
        self._check_size(path, file)
        if sha256(path) != file.sha256:
            raise DamagedError(f"{path} is damaged: its checksum is another; {self._remedy()}")
        self._verified.add((file.epoch, file.batch))

    def _remedy(self) -> str:
        last_epoch, _ = max(self._files)
        return f"make it again with {self._recipe.command(last_epoch + 1)}"


def _to_tensors(full_batch: FullBatch) -> dict[str, Tensor]:
    tensors = {"node_ids": full_batch.input_ids}
    for layer, block in enumerate(full_batch.blocks):
        tensors[f"{layer}.indptr"] = block.indptr
        tensors[f"{layer}.indices"] = block.indices
    return tensors


def _from_tensors(tensors: dict[str, Tensor]) -> FullBatch:
    num_layers = (len(tensors) - 1) // 2
    layers = [(tensors[f"{layer}.indptr"], tensors[f"{layer}.indices"]) for layer in range(num_layers)]
    return FullBatch(chain_blocks(layers, tensors["node_ids"]))


def _is_whole(folder: Path, file: StoredFile) -> bool:
    path = folder / file.name
    if not path.is_file():
        return False
    is_whole = path.stat().st_size == file.bytes and sha256(path) == file.sha256
    if not is_whole:
        logger.warning("%s is damaged and is made again", path)
    return is_whole


@contextmanager
def _writing(folder: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        reason = error.strerror or error
        raise BettyError(f"cannot write to {folder}: {reason}; make room there or choose another folder") from error
