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

ABOUT_EDGES = re.compile(r"edge.*|adj.*|edata|etypes?|rels?|relations?")


def check_keys(file: NpzFile) -> None:
    """Refuse keys that contradict each other, and those of edges that would be left out; warn of unknown ones.

    Raises:
        BettyError: naming the keys, and what to do about them.
    """
    for what, forms in FORMS:
        given = [next(key for key in form if key in file) for form in forms if any(key in file for key in form)]
        if len(given) > 1:
            raise file.error(f"there are {what} in both {' and '.join(given)}; leave out one of them")
    others = [key for key in file.keys if key not in USED and not is_of_a_split(key)]
    of_edges = [key for key in others if any(ABOUT_EDGES.fullmatch(word) for word in words_of(key))]
    if of_edges:
        raise file.error(
            f"{named(of_edges)}: edges have neither weights nor features nor types in Betty; save the file without "
            f"{_them(of_edges)}, and all edges count the same"
        )
    unknown = [key for key in others if not DESCRIPTIONS.fullmatch(key)]
    if unknown:
        logger.warning("%s: %s: not used; betty.datasets.npz tells which arrays are", file.path, named(unknown))


def _them(keys: Sequence[str]) -> str:
    return "it" if len(keys) == 1 else "them"
