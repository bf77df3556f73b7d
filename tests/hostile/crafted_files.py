"""Files that somebody wrote to do harm: JSON and headers of tensors, of any depth, size and type."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from copy import deepcopy
from typing import Any

from betty.envelope import SEAL
from tests.hostile.outcome import Outcome
from tests.hostile.readers import Case, cases
from tests.hostile.scene import Scene
from tests.hostile.seals import sealed, sealed_head, with_head

DIGITS = "@digits@"
"""Stands for a number that Python refuses to write."""

VALUES = (None, True, -5, 10**9, 10**30, 1e308, -0.5, float("nan"), "x", "", [], {}, ["x"], [[[1]]], {"x": 1}, DIGITS)

DOCUMENTS = {
    "nothing": b"",
    "200,000 brackets": b"[" * 200_000,
    "200,000 braces": b'{"a":' * 200_000,
    "closed brackets": b"[" * 200_000 + b"]" * 200_000,
    "5,000 digits": b"9" * 5_000,
    "not UTF-8": b'{"\xff\xfe": 1}',
    "UTF-16": '{"a": 1}'.encode("utf-16"),
    "zeros": bytes(1_000),
    "not a number": b"NaN",
    "null": b"null",
    "a list": b"[1, 2, 3]",
    "an object": b"{}",
    "a string": b'"x"',
    "a key twice": b'{"flags": 1, "flags": {}}',
    "a surrogate": b'{"\\ud800": "\\ud800"}',
    "twenty megabytes": b"[" + b"0," * 10_000_000 + b"0]",
}


def crafted_json(scene: Scene, number: int, seed: int) -> Iterator[Outcome]:
    """Whole documents, and values of other types somewhere in one, with the old seal or with one that is right."""
    chance = random.Random(seed)
    readers = cases(scene, lambda name: name.endswith((".json", ".jsonl")))
    documents = [(case, name) for case in readers for name in DOCUMENTS]
    chance.shuffle(documents)
    for trial in range(number):
        if trial % 2 == 0 and documents:
            case, name = documents.pop()
            yield case.with_content(DOCUMENTS[name], name)
        else:
            yield _changed_json(chance.choice(readers), chance)


def _changed_json(case: Case, chance: random.Random) -> Outcome:
    lines = case.content.decode().splitlines() if case.file.suffix == ".jsonl" else [case.content.decode()]
    position = chance.randrange(len(lines))
    before = json.loads(lines[position])
    document, change = changed(before, chance)
    is_forged = SEAL in before and SEAL in document and chance.random() < 0.5
    if is_forged:
        document, change = sealed(document), f"{change}, and the seal fits"
    lines[position] = text_of(document)
    return case.with_content("".join(f"{line}\n" for line in lines).encode(), change, is_forged)


def crafted_headers(scene: Scene, number: int, seed: int) -> Iterator[Outcome]:
    """The same in the headers of files of tensors: dtypes, shapes, offsets, metadata; also with a seal that fits."""
    chance = random.Random(seed)
    readers = cases(scene, lambda name: name.endswith(".safetensors"))
    for trial in range(number):
        case = chance.choice(readers)
        size = int.from_bytes(case.content[:8], "little")
        body = case.content[8 + size :]
        header = json.loads(case.content[8 : 8 + size])
        kind = trial % 4
        head = sealed_head(header)
        if kind == 0 and head is not None:
            head, change = changed(head, chance)
            forged = text_of(with_head(header, head)).encode()
            yield case.with_content(with_header(forged, body), f"header: {change}, and the seal fits", is_forged=True)
        elif kind == 1:
            name = chance.choice(sorted(DOCUMENTS))
            yield case.with_content(with_header(DOCUMENTS[name], body), f"header: {name}")
        elif kind == 2:
            document, change = changed(header, chance)
            yield case.with_content(with_header(text_of(document).encode(), body), f"header: {change}")
        else:
            yield case.with_content(*_other_meaning(header, body, chance))


def _other_meaning(header: dict[str, Any], body: bytes, chance: random.Random) -> tuple[bytes, str]:
    """A header that is in order, but says something else of the same bytes."""
    name = chance.choice(sorted(header.keys() - {"__metadata__"}))
    tensor = header[name]
    match chance.randrange(5):
        case 0:
            tensor["dtype"] = ("F" if tensor["dtype"].startswith("I") else "I") + tensor["dtype"][1:]
            change = f"{name} is {tensor['dtype']}"
        case 1:
            tensor["shape"].insert(0, 1)
            change = f"{name} has the shape {tensor['shape']}"
        case 2:
            header[f"{name}x"] = header.pop(name)
            change = f"{name} is {name}x"
        case 3:
            header.pop("__metadata__", None)
            change = "no metadata"
        case _:
            return (1 << 63).to_bytes(8, "little") + body, "header of 2^63 bytes"
    return with_header(json.dumps(header).encode(), body), f"header: {change}"


def with_header(header: bytes, body: bytes) -> bytes:
    return len(header).to_bytes(8, "little") + header + body


def changed(document: Any, chance: random.Random) -> tuple[Any, str]:
    """A document with another value somewhere or without one; and what was changed."""
    document = deepcopy(document)
    place, key = chance.choice(list(places(document)))
    if chance.random() < 0.2:
        del place[key]
        return document, f"without {key!r}"
    place[key] = deepcopy(chance.choice(VALUES))
    return document, f"{key!r} is {str(place[key])[:20]}"


def places(document: Any) -> Iterator[tuple[Any, Any]]:
    """Every container with every key or position in it."""
    pairs = document.items() if isinstance(document, dict) else enumerate(document)
    for key, value in list(pairs):
        yield document, key
        if isinstance(value, dict | list):
            yield from places(value)


def text_of(document: Any) -> str:
    return json.dumps(document).replace(f'"{DIGITS}"', "9" * 5_000)
