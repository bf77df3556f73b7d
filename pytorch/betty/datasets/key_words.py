"""The words in the name of an array."""

import re


def words_of(key: str) -> list[str]:
    """The words of a key in lower case: ``edge`` and ``weights`` of ``edge_weights`` and of ``edgeWeights``."""
    return [word.lower() for word in re.findall(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+", key)]
