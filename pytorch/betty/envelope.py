"""The envelope of all that is stored and read back: checksums that tell that it is what was written, and of what.

Two kinds of files carry it. **JSON** has one key more, ``seal``: SHA-256 of everything else in it. **Tensors** are in a
``safetensors`` file, whose metadata tell what they were made from, facts beside the tensors, a checksum of the bytes of
every tensor, and a seal: SHA-256 of all of that with the dtypes and shapes. So a look at the head of a file tells
whether these can be trusted, and large tensors can be checked when they are first needed, or in the background.

Checksums tell damage and mix-ups, not forgery: whoever can write the file can seal it. Those of tensors are XXH3's of
128 bits, which takes a sixth of the time of SHA-256.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, TypeVar

import msgspec
import numpy as np
import torch
import xxhash
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open
from torch import Tensor

from betty.errors import BettyError
from betty.files import NotOfFormError, parse_json, read_json_bytes, whole_file, write_json

SEAL = "seal"
METADATA_KEY = "betty"
"""The only key of a file's metadata: safetensors' own writer puts several in any order."""

DTYPES = {
    torch.float64: "F64",
    torch.float32: "F32",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.int64: "I64",
    torch.int32: "I32",
    torch.uint8: "U8",
    torch.bool: "BOOL",
}

Form = TypeVar("Form")


class DamagedError(BettyError):
    """A file is not as it was written."""


class OtherOriginError(BettyError):
    """A file is whole, but of something else than what is asked for.

    Args:
        path: of the file.
        found: what it was made from.
    """

    def __init__(self, path: Path, found: Mapping[str, Any]) -> None:
        super().__init__(f"{path} was made from something else")
        self.found = found


def digest_of(content: object) -> str:
    """SHA-256, in hexadecimal, of JSON data, whatever the order of its keys."""
    return hashlib.sha256(msgspec.json.encode(content, order="sorted")).hexdigest()


def tensor_digest(tensor: Tensor) -> str:
    """XXH3 of 128 bits, in hexadecimal, of the bytes of a tensor in host memory."""
    return xxhash.xxh3_128(_bytes_of(tensor)).hexdigest()


def write_sealed_json(path: Path, content: Mapping[str, Any]) -> None:
    """Write a JSON object with its seal, whole or not at all."""
    write_json(path, {**content, SEAL: digest_of(content)})


def read_sealed_json(path: Path) -> dict[str, Any]:
    """What :func:`write_sealed_json` wrote.

    Raises:
        NotOfFormError: it is no JSON object.
        DamagedError: it is another than was written.
        BettyError: it is missing or cannot be read.
    """
    content = parse_json(read_json_bytes(path), path, dict[str, Any])
    if content.pop(SEAL, None) != digest_of(content):
        raise DamagedError(f"{path} is damaged: its checksum is another")
    return content


@dataclass(frozen=True, eq=False)
class Rows:
    """A float32 matrix to be written without ever being in memory as a whole.

    Args:
        num_rows: rows in all.
        chunks: float32 ``[any, num_columns]`` each.
    """

    num_rows: int
    chunks: Iterable[NDArray[np.float32]]


@dataclass(frozen=True)
class _Head:
    """The metadata of a file of tensors.

    Args:
        made_from: whatever decides what is in it.
        facts: what belongs to the tensors and is none.
        checksums: of every tensor's bytes.
        seal: of all that and of dtypes and shapes.
    """

    made_from: dict[str, Any]
    facts: dict[str, Any]
    checksums: dict[str, str]
    seal: str


def write_sealed(
    path: Path,
    tensors: Mapping[str, Tensor | Rows],
    made_from: Mapping[str, Any],
    facts: Mapping[str, Any] | None = None,
) -> None:
    """Write tensors, whole or not at all: the same bytes for the same content.

    Args:
        path: of the file.
        tensors: on any device; of rows one chunk is in memory at a time.
        made_from: whatever decides what is in it, in JSON's types; it has to be given again to read it.
        facts: what belongs to the tensors and is none, in JSON's types.

    Raises:
        BettyError: there are more or fewer rows than announced.
        OSError: it cannot be written.
    """
    entries = {name: _Entry.of(value) for name, value in tensors.items()}
    # The widest first, as safetensors wants it, so that every tensor begins at a multiple of its items' size.
    names = sorted(entries, key=lambda name: (-entries[name].item_size, name))
    entries = {name: entries[name] for name in names}
    unknown = dict.fromkeys(names, "0" * 32)
    with whole_file(path) as file:
        file.write(_header(entries, unknown, made_from, facts or {}))
        checksums = {name: entry.write(file) for name, entry in entries.items()}
        file.seek(0)
        file.write(_header(entries, checksums, made_from, facts or {}))


@dataclass(frozen=True, eq=False)
class _Entry:
    """A tensor on its way to a file."""

    dtype: str
    shape: tuple[int, ...]
    item_size: int
    chunks: Iterator[memoryview]

    @classmethod
    def of(cls, value: Tensor | Rows) -> _Entry:
        if isinstance(value, Tensor):
            return cls(DTYPES[value.dtype], tuple(value.shape), value.element_size(), iter([_bytes_of(value)]))
        chunks = iter(value.chunks)
        first = next(chunks)

        def all_chunks() -> Iterator[memoryview]:
            chunk, count = first, 0
            while chunk is not None:
                count += len(chunk)
                yield memoryview(np.ascontiguousarray(chunk, dtype="<f4")).cast("B")
                chunk = next(chunks, None)
            if count != value.num_rows:
                raise BettyError(f"there are {count} rows of node features for {value.num_rows} nodes")

        return cls("F32", (value.num_rows, first.shape[1]), 4, all_chunks())

    @property
    def num_bytes(self) -> int:
        return int(np.prod(self.shape, dtype=np.int64)) * self.item_size

    def write(self, file: BinaryIO) -> str:
        """Write the bytes, and return their checksum."""
        digest = xxhash.xxh3_128()
        for chunk in self.chunks:
            file.write(chunk)
            digest.update(chunk)
        return digest.hexdigest()


def _bytes_of(tensor: Tensor) -> memoryview:
    dense = tensor.detach().cpu().contiguous()
    # A single item may have any stride, of which PyTorch views only 1 as bytes.
    return memoryview(dense.as_strided((dense.numel(),), (1,)).view(torch.uint8).numpy())


def _header(
    entries: Mapping[str, _Entry], checksums: Mapping[str, str], made_from: Mapping[str, Any], facts: Mapping[str, Any]
) -> bytes:
    layout = {name: (entry.dtype, entry.shape) for name, entry in entries.items()}
    head = _Head(dict(made_from), dict(facts), dict(checksums), _seal(layout, checksums, made_from, facts))
    header: dict[str, Any] = {"__metadata__": {METADATA_KEY: msgspec.json.encode(head, order="sorted").decode()}}
    end = 0
    for name, entry in entries.items():
        start, end = end, end + entry.num_bytes
        header[name] = {"dtype": entry.dtype, "shape": entry.shape, "data_offsets": (start, end)}
    content = msgspec.json.encode(header)
    content += b" " * (-len(content) % 8)
    return len(content).to_bytes(8, "little") + content


def _seal(
    layout: Mapping[str, tuple[str, tuple[int, ...]]],
    checksums: Mapping[str, str],
    made_from: Mapping[str, Any],
    facts: Mapping[str, Any],
) -> str:
    return digest_of({"layout": layout, "checksums": checksums, "made_from": made_from, "facts": facts})


class SealedTensors:
    """What :func:`write_sealed` wrote: its head is checked at once, every tensor when it is asked for.

    Args:
        path: of the file, which has to be there.
        made_from: as it was given to :func:`write_sealed`.

    Raises:
        DamagedError: the head is not as it was written.
        OtherOriginError: it was made from something else.
        OSError: the file cannot be read.
    """

    def __init__(self, path: Path, made_from: Mapping[str, Any]) -> None:
        self.path = path
        if path.exists() and not path.is_file():
            raise DamagedError(f"{path} is not a regular file")
        try:
            # Mapped, copy on write: nobody's mistake reaches the file.
            with safe_open(path, framework="pt", device="cpu") as content:
                head = parse_json((content.metadata() or {}).get(METADATA_KEY, ""), "its head", _Head)
                slices = {name: content.get_slice(name) for name in content.keys()}  # noqa: SIM118
                layout = {name: (part.get_dtype(), tuple(part.get_shape())) for name, part in slices.items()}
                if head.seal != _seal(layout, head.checksums, head.made_from, head.facts):
                    raise DamagedError(f"{path} is damaged: the checksum of its head is another")
                self.unchecked = {name: content.get_tensor(name) for name in slices}
        except (SafetensorError, NotOfFormError) as error:
            raise DamagedError(f"{path} is damaged: {' '.join(str(error).split())}") from error
        if digest_of(head.made_from) != digest_of(made_from):
            raise OtherOriginError(path, head.made_from)
        self.checksums = head.checksums
        self._facts = head.facts

    def facts(self, form: type[Form]) -> Form:
        """What belongs to the tensors and is none, as data of a form.

        Raises:
            DamagedError: it is of another form.
        """
        try:
            return msgspec.convert(self._facts, form)
        except msgspec.ValidationError as error:
            raise DamagedError(f"{self.path} is not as Betty writes it: {error}") from None

    def __getitem__(self, name: str) -> Tensor:
        """A tensor, once all its bytes were read and found to be those that were written.

        Raises:
            DamagedError: they are others, or there is no such tensor.
        """
        if name not in self.unchecked:
            raise DamagedError(f"{self.path} is not as Betty writes it: there is no {name} in it")
        tensor = self.unchecked[name]
        if tensor_digest(tensor) != self.checksums.get(name):
            raise DamagedError(f"{self.path} is damaged: the checksum of its {name} is another")
        return tensor
