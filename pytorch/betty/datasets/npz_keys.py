"""What becomes of every key of a user's ``.npz`` file: used, known to be of no use, warned of, or refused."""

import logging
import re
from collections.abc import Sequence

from betty.datasets.key_words import words_of
from betty.datasets.npz_file import NpzFile, named
from betty.datasets.npz_split import is_of_a_split

logger = logging.getLogger(__name__)

CSR_KEYS = ("data", "indices", "indptr", "shape")
ADJACENCY = tuple(f"adj_{key}" for key in CSR_KEYS)
ATTRIBUTES = tuple(f"attr_{key}" for key in CSR_KEYS)
DIRECTED = "directed"

FORMS = (
    ("edges", (("edges",), ADJACENCY, ("edge_index",))),
    ("features", (("node_features",), ATTRIBUTES)),
    ("labels", (("node_labels",), ("labels",))),
)
"""What can be given in several forms, in one file by one of them."""

USED = {DIRECTED, *(key for _, forms in FORMS for form in forms for key in form)}

DESCRIPTIONS = re.compile(r"attr_.*|idx_to_.*|(.*_)?(names?|texts?|titles?|urls?|metadata|description)")
"""Keys of published files that tell what nodes, classes and features are called."""

ABOUT_EDGES = re.compile(r"edge.*|adj|adjacency|edata|etypes?|rels?|relations?")


def check_keys(file: NpzFile, num_nodes: int) -> None:
    """Refuse keys that contradict each other, and those of edges that would be left out; warn of unknown ones.

    An unknown array that has as many rows as there are edges, and not nodes, is one of edges too.

    Raises:
        BettyError: naming the keys, and what to do about them; or an unknown one is no array.
    """
    for what, forms in FORMS:
        given = [next(key for key in form if key in file) for form in forms if any(key in file for key in form)]
        if len(given) > 1:
            raise file.error(f"there are {what} in both {' and '.join(given)}; leave out one of them")
    others = [key for key in file.keys if key not in USED and not is_of_a_split(key)]
    unknown = [key for key in others if not DESCRIPTIONS.fullmatch(key)]
    num_edges = _num_edges(file)
    by_rows = [key for key in unknown if 0 < _num_rows(file, key) == num_edges != num_nodes]
    of_edges = [key for key in others if key in by_rows or _is_about_edges(key)]
    if of_edges:
        raise file.error(
            f"{named(of_edges)}: edges have neither weights nor features nor types in Betty; save the file without "
            f"{_them(of_edges)}, and all edges count the same"
        )
    if unknown:
        logger.warning("%s: %s: not used; betty.datasets.npz tells which arrays are", file.path, named(unknown))


def _is_about_edges(key: str) -> bool:
    return any(ABOUT_EDGES.fullmatch(word) for word in words_of(key))


def _num_edges(file: NpzFile) -> int:
    key = next((key for key in ("edges", "adj_indices") if key in file), None)
    return _num_rows(file, key) if key else 0


def _num_rows(file: NpzFile, key: str) -> int:
    """0 of what has no rows."""
    return next(iter(file.form(key)[1]), 0)


def _them(keys: Sequence[str]) -> str:
    return "it" if len(keys) == 1 else "them"
