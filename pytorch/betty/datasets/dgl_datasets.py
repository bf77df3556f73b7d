"""Data sets that DGL knows: ``karate``, ``cora``, ``citeseer``, ``pubmed`` and ``reddit``.

``karate`` is part of NetworkX and needs no download; it has no features, so each node gets a one-hot vector of its id,
and no split, so it gets a random one by seed. The others are downloaded by DGL into the data root as ``<file>.zip`` and
unpacked beside it; a zip file that was put there by hand serves as well. They come with the split they are known by,
and edges are made undirected as for every other data set.

The raw files of ``cora``, ``citeseer`` and ``pubmed`` are Python pickles: their authors published them so, and DGL's
own loader unpickles what it has downloaded. That happens on the first load only. What Betty keeps, in
``<root>/<name>/``, is not pickled (:mod:`betty.datasets.cache`), and DGL's processed files are neither written nor
read. Both steps happen under the lock on that folder: of two processes only one downloads.
"""

from __future__ import annotations

import contextlib
import io
import logging
from pathlib import Path

import torch
from torch import Tensor

from betty.datasets.cache import load_or_make, write_cache
from betty.datasets.damage import blamed_on
from betty.datasets.dataset import Dataset, checked, require_finite
from betty.datasets.graph import build_graph, undirected_csc
from betty.datasets.splits import random_split, random_split_origin, split_from_masks
from betty.dgl_compat import dgl
from betty.errors import BettyError
from betty.files import whole_file

logger = logging.getLogger(__name__)

ARCHIVES = {"cora": "cora_v2", "citeseer": "citeseer", "pubmed": "pubmed", "reddit": "reddit"}
"""What DGL calls a data set's archive, without ``.zip``; raw files are in a folder that begins with this name."""

DOWNLOADED_NAMES = tuple(ARCHIVES)


class _RawFilesOnly:
    """Mixed into a loader of DGL's: no processed files, and a download that fails in one line."""

    def has_cache(self) -> bool:
        return False

    def save(self) -> None:
        """Betty keeps the data set in a form of its own."""

    def download(self) -> None:
        archive = Path(self.raw_dir) / f"{self.name}.zip"
        try:
            if not archive.exists():
                with whole_file(archive) as partial:
                    dgl.data.utils.download(self.url, path=str(partial))
        # OSError holds what the network does; DGL has a RuntimeError for every other answer of the server.
        except (OSError, RuntimeError):
            raise BettyError(
                f"cannot download {archive.name} ({self.url}, or any copy of DGL's data set {self.name}); "
                f"put the file into {self.raw_dir} and try again"
            ) from None
        dgl.data.utils.extract_archive(str(archive), self.raw_path)


class _OwnFolder:
    """Mixed into DGL's karate club, which else makes a folder in the user's home and leaves it empty."""

    def __init__(self, root: Path) -> None:
        dgl.data.DGLDataset.__init__(self, name="karate_club", raw_dir=str(root))


def _mixed(mixin: type, loader: type) -> type:
    return type(loader.__name__, (mixin, loader), {})


def load_karate(root: Path, seed: int) -> Dataset:
    """Zachary's karate club: 34 nodes, 2 classes, one-hot features, a split by seed."""
    club = _mixed(_OwnFolder, dgl.data.KarateClubDataset)(root)
    labels = club[0].ndata["label"]
    first_ends, second_ends = (ends.numpy() for ends in club[0].edges())
    origin = random_split_origin(seed)
    logger.info("karate: there is no split; nodes are divided %s", origin)
    dataset = Dataset(
        name="karate",
        graph=build_graph(*undirected_csc(first_ends, second_ends, labels.numel())),
        features=torch.eye(labels.numel()),
        labels=labels,
        num_classes=club.num_classes,
        split_origin=origin,
        **random_split(labels, seed)._asdict(),
    )
    return checked(dataset, "karate")


def load_downloaded(name: str, root: Path) -> Dataset:
    """One of :data:`DOWNLOADED_NAMES`, with the split it is known by.

    Args:
        name: of the data set.
        root: the data root; raw files and Betty's own are in it.

    Raises:
        BettyError: the raw files are not there and cannot be downloaded, or are damaged.
    """
    folder, made_from = root / name, {"dgl": name}

    def make() -> None:
        graph, num_classes = _load_raw(name, root)
        features: Tensor = graph.ndata["feat"]
        require_finite(features, name)
        first_ends, second_ends = (ends.numpy() for ends in graph.edges())
        write_cache(
            folder,
            made_from,
            undirected_csc(first_ends, second_ends, graph.num_nodes()),
            graph.ndata["label"].long(),
            split_from_masks(*(graph.ndata[f"{part}_mask"].numpy() for part in ("train", "val", "test"))),
            num_classes,
            [features.numpy()],
        )

    return load_or_make(folder, made_from, make, name)


def _load_raw(name: str, root: Path) -> tuple[dgl.DGLGraph, int]:
    advice = f"delete what begins with {ARCHIVES[name]} in {root} and try again"
    # DGL tells of its steps on the standard output, which is for results.
    with (
        blamed_on(f"{root / ARCHIVES[name]}.zip, or what was unpacked from it,", advice),
        contextlib.redirect_stdout(io.StringIO()),
    ):
        if name == "reddit":
            loader = _mixed(_RawFilesOnly, dgl.data.RedditDataset)(raw_dir=str(root), verbose=False)
        else:
            citations = _mixed(_RawFilesOnly, dgl.data.CitationGraphDataset)
            loader = citations(name, raw_dir=str(root), verbose=False)
    return loader[0], loader.num_classes
