"""Data sets that DGL knows: ``karate``, ``cora``, ``citeseer``, ``pubmed`` and ``reddit``.

``karate`` is part of NetworkX and needs no download; it has no features, so each node gets a one-hot vector of its id,
and no split, so it gets a random one by seed. The others come with the split they are known by, and edges are made
undirected as for every other data set. ``cora``, ``citeseer`` and ``pubmed`` are read from Planetoid's files
(:mod:`betty.datasets.planetoid`) in the data root, in ``<root>/<name>/`` or in ``<root>/<name>/raw/``, where PyTorch
Geometric keeps them; they are never written to. Where there are none, DGL's archive of them is downloaded into the data
root as ``<file>.zip``, as that of ``reddit`` always; a zip file that was put there by hand serves as well.

What Betty keeps, in ``<root>/<name>/``, is not pickled (:mod:`betty.datasets.cache`), and DGL's processed files are
neither written nor read. Both steps happen under the lock on that folder: of two processes only one downloads.
"""

from __future__ import annotations

import contextlib
import io
import logging
from pathlib import Path

import torch

from betty.datasets.cache import load_or_make, write_cache
from betty.datasets.damage import blamed_on
from betty.datasets.dataset import Dataset, checked, require_finite
from betty.datasets.graph import build_graph, undirected_csc
from betty.datasets.planetoid import FILES, PublishedGraph, folder_with_files, read_archive, read_folder
from betty.datasets.splits import random_split, random_split_origin, split_from_masks
from betty.dgl_compat import dgl
from betty.errors import BettyError
from betty.files import whole_file

logger = logging.getLogger(__name__)

ARCHIVES = {"cora": "cora_v2", "citeseer": "citeseer", "pubmed": "pubmed", "reddit": "reddit"}
"""What DGL calls a data set's archive, without ``.zip``; raw files are in a folder that begins with this name."""

DOWNLOADED_NAMES = tuple(ARCHIVES)


class _RawFilesOnly:
    """Mixed into DGL's Reddit: no processed files, and a download that fails in one line."""

    def has_cache(self) -> bool:
        return False

    def save(self) -> None:
        """Betty keeps the data set in a form of its own."""

    def download(self) -> None:
        archive = _archive(self.name, self.url, Path(self.raw_dir))
        dgl.data.utils.extract_archive(str(archive), self.raw_path)


def _archive(archive_name: str, url: str, root: Path, or_else: str = "") -> Path:
    """An archive in the data root, downloaded if it is not there."""
    archive = root / f"{archive_name}.zip"
    try:
        if not archive.exists():
            # DGL tells of its steps on the standard output, which is for results.
            with whole_file(archive) as file, contextlib.redirect_stdout(io.StringIO()):
                dgl.data.utils.download(url, path=file.name)
    # OSError holds what the network does; DGL has a RuntimeError for every other answer of the server.
    except (OSError, RuntimeError):
        raise BettyError(
            f"cannot download {archive.name} ({url}, or any copy of DGL's data set {archive_name}); "
            f"put the file into {root}{or_else} and try again"
        ) from None
    return archive


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
        raw = _read_reddit(root) if name == "reddit" else _read_citations(name, root)
        require_finite(torch.from_numpy(raw.features), name)
        write_cache(
            folder,
            made_from,
            undirected_csc(raw.first_ends, raw.second_ends, raw.labels.numel()),
            raw.labels,
            raw.split,
            raw.num_classes,
            [raw.features],
        )

    return load_or_make(folder, made_from, make, name)


def _read_citations(name: str, root: Path) -> PublishedGraph:
    archive_name = ARCHIVES[name]
    for file_name in dict.fromkeys((name, archive_name)):
        folder = folder_with_files(file_name, _raw_folders(name, root))
        if folder is not None:
            logger.info("reading ind.%s.* in %s", file_name, folder)
            return read_folder(file_name, folder)
    url = dgl.data.utils._get_dgl_url(dgl.data.CitationGraphDataset._urls[archive_name])
    or_else = f", or into {root / name} Planetoid's files ind.{name}.{{{','.join(FILES)}}}"
    return read_archive(archive_name, _archive(archive_name, url, root, or_else))


def _raw_folders(name: str, root: Path) -> list[Path]:
    """Where raw files may lie: as people have them, as PyTorch Geometric keeps them, as DGL unpacks its archive."""
    own = [folder for folder in sorted(root.glob("*")) if folder.name.lower() == name]
    return [root, *own, *(folder / "raw" for folder in own), *sorted(root.glob(f"{ARCHIVES[name]}_*"))]


def _read_reddit(root: Path) -> PublishedGraph:
    advice = f"delete what begins with reddit in {root} and try again"
    with (
        blamed_on(f"{root}/reddit.zip, or what was unpacked from it,", advice),
        contextlib.redirect_stdout(io.StringIO()),
    ):
        loader = _mixed(_RawFilesOnly, dgl.data.RedditDataset)(raw_dir=str(root), verbose=False)
        graph = loader[0]
        return PublishedGraph(
            *(ends.numpy() for ends in graph.edges()),
            graph.ndata["feat"].numpy(),
            graph.ndata["label"].long(),
            split_from_masks(*(graph.ndata[f"{part}_mask"].numpy() for part in ("train", "val", "test"))),
            loader.num_classes,
        )
