"""What is stored comes back bit for bit, or is refused: no flipped bit and no mix-up passes."""

import hashlib
import json
import os
import random
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
import xxhash
from safetensors.torch import load_file, save_file

from betty import BettyError
from betty.envelope import (
    DamagedError,
    OtherOriginError,
    Rows,
    SealedTensors,
    digest_of,
    read_sealed_json,
    tensor_digest,
    write_sealed,
    write_sealed_json,
)

ORIGIN = {"seed": 1, "degree": 2.5, "split": [2, 1], "name": "ü"}
FACTS = {"epoch": 3}
TENSORS = {
    "scalar": torch.tensor(2.0),
    "counts": torch.arange(5, dtype=torch.int32),
    "none": torch.empty(0, dtype=torch.int64),
    "wide": torch.arange(6, dtype=torch.float64).reshape(2, 3),
    "flags": torch.tensor([True, False, True]),
}


@pytest.fixture
def stored(tmp_path: Path) -> Path:
    path = tmp_path / "sealed.safetensors"
    write_sealed(path, TENSORS, ORIGIN, FACTS)
    return path


def read(path: Path) -> dict[str, torch.Tensor]:
    sealed = SealedTensors(path, ORIGIN)
    return {name: sealed[name] for name in sealed.unchecked}


def test_tensors_and_facts_come_back(stored: Path) -> None:
    found = read(stored)
    assert found.keys() == TENSORS.keys()
    for name, tensor in TENSORS.items():
        assert torch.equal(found[name], tensor)
        assert (found[name].dtype, found[name].shape) == (tensor.dtype, tensor.shape)
    assert SealedTensors(stored, ORIGIN).facts(dict[str, int]) == FACTS


def test_others_can_load_them_with_safetensors_alone(stored: Path) -> None:
    assert torch.equal(load_file(stored)["wide"], TENSORS["wide"])


def test_rows_in_chunks_are_the_matrix_they_make(tmp_path: Path) -> None:
    matrix = np.random.default_rng(0).standard_normal((5, 3)).astype(np.float32)
    write_sealed(tmp_path / "rows", {"x": Rows(5, iter([matrix[:2], matrix[2:3], matrix[3:]]))}, {})
    assert SealedTensors(tmp_path / "rows", {})["x"].numpy().tobytes() == matrix.tobytes()


@pytest.mark.parametrize("num_rows", [2, 4])
def test_other_than_the_announced_rows_are_refused_and_nothing_is_left(tmp_path: Path, num_rows: int) -> None:
    with pytest.raises(BettyError, match=f"3 rows of node features for {num_rows} nodes"):
        write_sealed(tmp_path / "rows", {"x": Rows(num_rows, [np.zeros((3, 1), dtype=np.float32)])}, {})
    assert list(tmp_path.iterdir()) == []


def test_equal_content_is_stored_as_equal_bytes(stored: Path) -> None:
    before = stored.read_bytes()
    stored.unlink()
    write_sealed(stored, dict(reversed(TENSORS.items())), dict(reversed(ORIGIN.items())), FACTS)
    assert stored.read_bytes() == before


def test_any_flipped_bit_is_refused(stored: Path) -> None:
    intact, numbers = stored.read_bytes(), random.Random(0)
    for _ in range(600):
        flipped = bytearray(intact)
        flipped[numbers.randrange(len(flipped))] ^= 1 << numbers.randrange(8)
        stored.write_bytes(flipped)
        with pytest.raises(DamagedError, match=r"sealed\.safetensors"):
            read(stored)


@pytest.mark.parametrize("length", [0, 1, 7, 8, 100, -1])
def test_a_cut_file_is_refused(stored: Path, length: int) -> None:
    stored.write_bytes(stored.read_bytes()[:length])
    with pytest.raises(DamagedError, match=r"sealed\.safetensors is damaged"):
        read(stored)


def change_header(path: Path, change: Callable[[dict], None]) -> None:
    content = path.read_bytes()
    length = int.from_bytes(content[:8], "little")
    header = json.loads(content[8 : 8 + length])
    change(header)
    changed = json.dumps(header).encode()
    path.write_bytes(len(changed).to_bytes(8, "little") + changed + content[8 + length :])


@pytest.mark.parametrize(
    "change",
    [
        pytest.param(lambda header: header["counts"].update(dtype="F32"), id="dtype"),
        pytest.param(lambda header: header["wide"].update(shape=[3, 2]), id="shape"),
        pytest.param(lambda header: header.update(other=header.pop("counts")), id="name"),
        pytest.param(lambda header: header.pop("none"), id="a tensor less"),
        pytest.param(lambda header: header.pop("__metadata__"), id="no metadata"),
        pytest.param(lambda header: header["__metadata__"].update(betty="[" * 200_000), id="brackets"),
        pytest.param(lambda header: header["__metadata__"].update(betty="{}"), id="an empty head"),
        pytest.param(
            lambda header: header["__metadata__"].update(betty='{"checksums": ["x"]}'), id="a head of other types"
        ),
    ],
)
def test_a_changed_header_is_refused_in_one_line(stored: Path, change: Callable[[dict], None]) -> None:
    change_header(stored, change)
    with pytest.raises(DamagedError) as refused:
        read(stored)
    assert "\n" not in str(refused.value)


def test_a_file_of_somebody_else_is_refused(tmp_path: Path) -> None:
    save_file(TENSORS, tmp_path / "theirs")
    with pytest.raises(DamagedError):
        read(tmp_path / "theirs")


@pytest.mark.parametrize("other", [{**ORIGIN, "seed": 2}, {}, {**ORIGIN, "more": None}])
def test_another_origin_is_refused_and_told(stored: Path, other: dict) -> None:
    with pytest.raises(OtherOriginError) as refused:
        SealedTensors(stored, other)
    assert refused.value.found == ORIGIN


def test_the_order_of_the_keys_of_an_origin_does_not_matter(stored: Path) -> None:
    assert SealedTensors(stored, dict(reversed(ORIGIN.items()))).unchecked


def test_facts_of_another_form_are_refused(stored: Path) -> None:
    with pytest.raises(DamagedError, match="Expected `str`"):
        SealedTensors(stored, ORIGIN).facts(dict[str, str])


def test_a_tensor_that_is_not_there_is_refused(stored: Path) -> None:
    with pytest.raises(DamagedError, match="there is no more in it"):
        SealedTensors(stored, ORIGIN)["more"]


def test_writing_into_a_tensor_does_not_reach_the_file(stored: Path) -> None:
    read(stored)["wide"].zero_()
    assert torch.equal(read(stored)["wide"], TENSORS["wide"])


def test_digests_are_xxh3_of_bytes_and_sha256_of_sorted_json() -> None:
    assert tensor_digest(TENSORS["wide"].T) == xxhash.xxh3_128(TENSORS["wide"].T.numpy().tobytes()).hexdigest()
    single = torch.zeros(1, dtype=torch.int64).expand(1).as_strided((1,), (0,))
    assert tensor_digest(single) == xxhash.xxh3_128(bytes(8)).hexdigest()
    text = json.dumps({"a": [1, None], "b": 0.5}, sort_keys=True, separators=(",", ":"))
    assert digest_of({"b": 0.5, "a": (1, None)}) == hashlib.sha256(text.encode()).hexdigest()


def test_sealed_json_comes_back(tmp_path: Path) -> None:
    content = {"lr": 1e-3, "none": None, "ü": ["ö", 1, 2.5], "deep": {"a": {"b": True}}}
    write_sealed_json(tmp_path / "file.json", content)
    assert read_sealed_json(tmp_path / "file.json") == content
    assert json.loads((tmp_path / "file.json").read_text()).keys() == content.keys() | {"seal"}


def test_any_flipped_bit_of_sealed_json_is_refused_or_changes_nothing(tmp_path: Path) -> None:
    path, content, refused = tmp_path / "file.json", {"lr": 0.125, "sizes": [10, 25], "name": "arxiv"}, 0
    write_sealed_json(path, content)
    intact = path.read_bytes()
    for position in range(8 * len(intact)):
        flipped = bytearray(intact)
        flipped[position // 8] ^= 1 << position % 8
        path.write_bytes(flipped)
        try:
            assert read_sealed_json(path) == content
        except BettyError:
            refused += 1
    # The others are in white space.
    assert refused > 4 * len(intact)


def test_a_pipe_in_the_place_of_a_file_is_refused_and_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(DamagedError, match="pipe is not a regular file"):
        read(tmp_path / "pipe")
