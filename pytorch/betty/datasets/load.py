"""One door to all data sets."""

from pathlib import Path

from betty.datasets.dataset import Dataset
from betty.datasets.dgl_datasets import DOWNLOADED_NAMES, load_downloaded, load_karate
from betty.datasets.npz import load_npz
from betty.datasets.ogb_datasets import SOURCES, load_ogb
from betty.datasets.synthetic import PREFIX, PRESETS, load_synthetic
from betty.errors import BettyError

SYNTHETIC_NAMES = tuple(PREFIX + preset for preset in PRESETS)
DATASET_NAMES = (*SYNTHETIC_NAMES, "karate", *DOWNLOADED_NAMES, *SOURCES)


def load_dataset(
    name_or_path: str | Path,
    root: Path | str | None = None,
    *,
    seed: int = 0,
    average_degree: float | None = None,
    split: int = 0,
    directed: bool | None = None,
) -> Dataset:
    """Load a data set by its name, or a graph of one's own from a file.

    Args:
        name_or_path: one of :data:`DATASET_NAMES`, or the path of an ``.npz`` file in the form that
            :mod:`betty.datasets.npz` describes.
        root: the folder for what is downloaded or made; ``data`` in the current folder if not given.
        seed: of everything random in a synthetic data set, and of the split where there is no official one.
        average_degree: of synthetic data sets only: the average number of neighbours, in place of the preset's
            (``synthetic-reddit``: 50; Reddit itself has 492).
        split: of ``.npz`` files with several splits only: which one, counted from 0.
        directed: of ``.npz`` files only: whether every edge is kept as given, from source to destination, and no
            reverse edges are added; as the file's key ``directed`` says if not given. All others are undirected.

    Raises:
        BettyError: the name is unknown, the file is missing or malformed, or a download is needed and fails; one
            line says what to do.
    """
    name = str(name_or_path)
    root = Path("data" if root is None else root)
    if average_degree is not None and name not in SYNTHETIC_NAMES:
        raise BettyError(f"an average degree can be chosen for {', '.join(SYNTHETIC_NAMES)}, not for {name}")
    if name.endswith(".npz"):
        return load_npz(Path(name), seed, split, directed)
    if directed:
        raise BettyError(
            f"{name} has no directions of edges; only .npz files keep them: save the edges in one to train on a "
            "directed graph"
        )
    if split != 0:
        raise BettyError(f"{name} has one split, there is no split {split}; only .npz files can have several")
    return _load_named(name, root, seed, average_degree)


def _load_named(name: str, root: Path, seed: int, average_degree: float | None) -> Dataset:
    if name in SYNTHETIC_NAMES:
        return load_synthetic(name.removeprefix(PREFIX), root, seed, average_degree)
    if name == "karate":
        return load_karate(root, seed)
    if name in DOWNLOADED_NAMES:
        return load_downloaded(name, root)
    if name in SOURCES:
        return load_ogb(name, root)
    raise BettyError(
        f"there is no data set {name!r}; known are {', '.join(DATASET_NAMES)}, and the path of an .npz file works too"
    )
