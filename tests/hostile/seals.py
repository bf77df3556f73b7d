"""Seals as Betty makes them, for files that are forged with the right one."""

from __future__ import annotations

import json
from typing import Any

from betty.envelope import METADATA_KEY, SEAL, digest_of

METADATA = "__metadata__"


def sealed(document: dict[str, Any]) -> dict[str, Any]:
    """A JSON object with the seal for what else is in it."""
    content = {name: value for name, value in document.items() if name != SEAL}
    return {**content, SEAL: digest_of(content)}


def sealed_head(header: dict[str, Any]) -> dict[str, Any] | None:
    """What the header of a file of tensors tells of them, if it carries a seal."""
    text = header.get(METADATA, {}).get(METADATA_KEY)
    return None if text is None else json.loads(text)


def with_head(header: dict[str, Any], head: dict[str, Any]) -> dict[str, Any]:
    """The header with another head, and the seal for it."""
    layout = {name: (entry["dtype"], entry["shape"]) for name, entry in header.items() if name != METADATA}
    seal = digest_of({"layout": layout, **{name: head.get(name) for name in ("checksums", "made_from", "facts")}})
    return {**header, METADATA: {METADATA_KEY: json.dumps({**head, SEAL: seal})}}
