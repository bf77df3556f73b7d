"""``python -m betty.full_batch``: sample full batches and store them."""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from pathlib import Path

from betty.command_line import (
    CommandLineParser,
    add_dataset_flags,
    add_run_flags,
    add_sampling_flags,
    add_store_flags,
    run_command,
    set_up_logging,
)
from betty.datasets import load_dataset
from betty.full_batch.manifest import Recipe, StoredFile
from betty.full_batch.sampling import SampledFullBatches
from betty.full_batch.store import FullBatchWriter
from betty.micro_batch_train.locality_order import stored_order
from betty.progress import progress_bar

logger = logging.getLogger(__name__)

MIB = 1 << 20


def main(argv: Sequence[str] | None = None) -> None:
    """Run the command line."""
    parser = CommandLineParser("betty.full_batch", "Sample full batches and store them for training.")
    add_dataset_flags(parser)
    add_sampling_flags(parser)
    add_store_flags(parser)
    add_run_flags(parser)
    flags = parser.parse_args(argv)
    set_up_logging(flags.quiet)
    run_command(
        parser.prog,
        lambda: store_full_batches(
            dataset_name=flags.dataset,
            data_root=flags.data_root,
            average_degree=flags.average_degree,
            split=flags.split,
            directed=flags.directed,
            fan_outs=flags.fan_out,
            seed=flags.seed,
            batch_size=flags.batch_size,
            num_epochs=flags.num_epochs,
            root=flags.full_batch_root,
        ),
    )


def store_full_batches(
    dataset_name: str,
    data_root: Path,
    average_degree: float | None,
    split: int,
    directed: bool | None,
    fan_outs: Sequence[int],
    seed: int,
    batch_size: int | None,
    num_epochs: int,
    root: Path,
) -> None:
    """Sample and store what is not stored yet of the first epochs of a data set's training nodes, and their order.

    Raises:
        BettyError: the data set cannot be loaded, or the full batches cannot be written.
    """
    dataset = load_dataset(dataset_name, data_root, average_degree=average_degree, split=split, directed=directed)
    source = SampledFullBatches(dataset.graph, dataset.train_ids, fan_outs, seed, batch_size)
    recipe = Recipe.of(dataset.name, dataset.graph_fingerprint, dataset.train_ids, fan_outs, seed, batch_size)
    writer = FullBatchWriter(root, recipe)
    missing = writer.missing(num_epochs)
    started = time.perf_counter()
    written = [
        writer.write(epoch, batch, source.load(epoch, batch))
        for epoch, batch in progress_bar(missing, "full batches", unit="batch")
    ]
    _log_speed(written, time.perf_counter() - started)
    _log_sizes(writer.files, writer.folder)
    stored_order(dataset, recipe, root)


def _log_speed(files: Sequence[StoredFile], seconds: float) -> None:
    if not files:
        logger.info("everything was stored already")
        return
    size = sum(file.bytes for file in files)
    edges = sum(sum(file.edges) for file in files)
    logger.info(
        "wrote %d batches, %.1f MiB, in %.1f s: %.1f MiB/s, %s edges/s",
        len(files),
        size / MIB,
        seconds,
        size / MIB / seconds,
        f"{edges / seconds:,.0f}",
    )


def _log_sizes(files: Sequence[StoredFile], folder: Path) -> None:
    logger.info(
        "%s holds %d batches, %.1f MiB; on average %s input nodes, %s output nodes, %s edges",
        folder,
        len(files),
        sum(file.bytes for file in files) / MIB,
        f"{sum(file.input_nodes for file in files) / len(files):,.0f}",
        f"{sum(file.output_nodes for file in files) / len(files):,.0f}",
        f"{sum(sum(file.edges) for file in files) / len(files):,.0f}",
    )
