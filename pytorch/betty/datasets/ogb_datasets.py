"""Node classification data sets of the Open Graph Benchmark: ``ogbn-arxiv``, ``ogbn-products``, ``ogbn-papers100M``.

OGB downloads an archive, Betty reads the raw files in it. OGB's own processed files are pickles that current PyTorch
refuses to load; they are neither written nor read. Betty keeps a form of its own in ``<root>/<name>/``
(:mod:`betty.datasets.cache`), and the next load maps that into memory. The raw files are not needed any more then.
Download, unpacking and conversion happen under the lock on that folder: of two processes only one does them.

Edges are made undirected, as is usual for all three. Labels that are missing (NaN: most nodes of ``ogbn-papers100M``)
are -1. Nothing is asked on the terminal, and OGB's check for updates over the network is left out.

Converting takes about 60 GiB of memory and 90 GB of disk for ``ogbn-papers100M`` beside its archive; its features
never are in memory as a whole.
"""

import logging
import shutil
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from betty.datasets.cache import load_or_make, write_cache
from betty.datasets.damage import one_line
from betty.datasets.dataset import Dataset
from betty.datasets.graph import undirected_csc
from betty.datasets.ogb_raw_files import read_binary, read_csv, read_split
from betty.errors import BettyError
from betty.ogb_compat import import_ogb

logger = logging.getLogger(__name__)

ARCHIVE_FOLDER_URL = "http://snap.stanford.edu/ogb/data/nodeproppred"


@dataclass(frozen=True)
class Source:
    """How OGB publishes a data set.

    Args:
        archive_name: the archive without ``.zip``, and the folder in it.
        num_classes: number of classes.
        split_name: of the folder with the official split.
        is_binary: raw files are ``.npz`` and not ``.csv.gz``.
    """

    archive_name: str
    num_classes: int
    split_name: str
    is_binary: bool = False

    @property
    def edge_file(self) -> str:
        return "data.npz" if self.is_binary else "edge.csv.gz"


SOURCES = {
    "ogbn-arxiv": Source("arxiv", 40, "time"),
    "ogbn-products": Source("products", 47, "sales_ranking"),
    "ogbn-papers100M": Source("papers100M-bin", 172, "time", is_binary=True),
}


def load_ogb(name: str, root: Path) -> Dataset:
    """Load a data set, from Betty's own files if they are there, else from OGB's raw files.

    Args:
        name: a key of :data:`SOURCES`.
        root: the data root; raw files are in ``<root>/ogbn_arxiv/`` (and the like), as OGB has them.

    Raises:
        BettyError: the raw files are not there and cannot be downloaded, or are damaged.
    """
    folder, made_from = root / name, {"ogb": name}

    def make() -> None:
        source = SOURCES[name]
        raw = _raw_files(name, source, root)
        read = read_binary if source.is_binary else read_csv
        graph = read(raw / "raw")
        write_cache(
            folder,
            made_from,
            undirected_csc(graph.first_ends, graph.second_ends, graph.num_nodes),
            graph.labels,
            read_split(raw / "split" / source.split_name),
            source.num_classes,
            graph.feature_chunks,
        )

    return load_or_make(folder, made_from, make, name, evaluator_name=name)


def _raw_files(name: str, source: Source, root: Path) -> Path:
    """The folder with ``raw/`` and ``split/``, downloaded and unpacked if it is not there."""
    folder = root / name.replace("-", "_")
    if (folder / "raw" / source.edge_file).exists():
        return folder
    if folder.exists():
        raise BettyError(f"{folder} is there, but raw/{source.edge_file} is not in it; delete it and try again")
    with _fresh_folder(root / f"{folder.name}.partial") as workplace:
        archive = root / f"{source.archive_name}.zip"
        if not archive.exists():
            archive = _download(source, root, workplace)
        logger.info("unpacking %s", archive)
        _unpack(archive, workplace, source.archive_name)
        (workplace / source.archive_name).rename(folder)
    return folder


def _unpack(archive: Path, workplace: Path, folder_name: str) -> None:
    wrong = f"{archive} is not the whole archive of OGB's {folder_name}"
    try:
        with zipfile.ZipFile(archive) as file:
            file.extractall(workplace)
    # A full disk is not the archive's fault.
    except OSError:
        raise
    # Encryption, unknown compression and damage each end in another one.
    except Exception as error:
        raise BettyError(
            f"{wrong} ({type(error).__name__}: {one_line(error)}); delete it and download it again"
        ) from error
    if not (workplace / folder_name).is_dir():
        raise BettyError(f"{wrong} (there is no folder {folder_name} in it); delete it and download it again")


@contextmanager
def _fresh_folder(path: Path) -> Iterator[Path]:
    """A folder for what is not whole yet; what a killed process left in it is removed, as is all of it at the end."""
    shutil.rmtree(path, ignore_errors=True)
    path.mkdir(parents=True)
    try:
        yield path
    finally:
        shutil.rmtree(path)


def _download(source: Source, root: Path, workplace: Path) -> Path:
    url = f"{ARCHIVE_FOLDER_URL}/{source.archive_name}.zip"
    logger.info("downloading %s", url)
    try:
        return Path(import_ogb("ogb.utils.url").download_url(url, str(workplace), log=False))
    # OGB turns what breaks a download off into a RuntimeError.
    except (OSError, RuntimeError) as error:
        raise BettyError(
            f"cannot download {source.archive_name}.zip ({error}); get it from {url} or any copy of the Open Graph "
            f"Benchmark, put it into {root} and try again"
        ) from None
