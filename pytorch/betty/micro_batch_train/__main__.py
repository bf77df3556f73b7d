"""``python -m betty.micro_batch_train``: train by micro-batches."""

from __future__ import annotations

import argparse

from betty.command_line import add_store_flags, non_negative_int, positive_int, run_command
from betty.datasets import Dataset, graph_fingerprint
from betty.device_loader import DeviceLoader
from betty.full_batch import FullBatchSource, Recipe, SampledFullBatches, StoredFullBatches
from betty.micro_batch_train.graph_partitioner import METHODS
from betty.micro_batch_train.trainer import MicroBatchTrainer, Partitioning
from betty.training import TrainEpoch
from betty.training_command_line import parse_training_flags, run_training, training_parser

MODULE = "betty.micro_batch_train"


def main(arguments: list[str] | None = None) -> None:
    """Run the command line."""
    parser = training_parser(
        MODULE, "Train a graph neural network by micro-batches, with the result of the whole batch."
    )
    group = parser.add_argument_group("micro-batches")
    group.add_argument("--num-batch", type=positive_int, default=4, help="micro-batches of a full batch")
    group.add_argument("--selection-method", choices=METHODS, default="REG", help="partitioning of a full batch")
    group.add_argument(
        "--num-re-partition",
        type=non_negative_int,
        default=0,
        help="how often to split the micro-batch with the most input nodes in two",
    )
    group.add_argument("--re-partition-method", choices=METHODS, default="REG", help="partitioning for that")
    add_store_flags(parser)
    group.add_argument(
        "--load-full-batch",
        action="store_true",
        help="train on the full batches that python -m betty.full_batch stored, instead of sampling them",
    )
    flags = parse_training_flags(parser, arguments)
    run_command(parser.prog, lambda: run_training(flags, lambda *parts: make_trainer(flags, *parts)))


def make_trainer(flags: argparse.Namespace, dataset: Dataset, device_loader: DeviceLoader) -> TrainEpoch:
    partitioning = Partitioning(
        flags.selection_method, flags.num_batch, flags.num_re_partition, flags.re_partition_method
    )
    return MicroBatchTrainer(full_batches(flags, dataset), partitioning, device_loader, flags.seed).train_epoch


def full_batches(flags: argparse.Namespace, dataset: Dataset) -> FullBatchSource:
    sampling = (dataset.train_ids, flags.fan_out, flags.seed, flags.batch_size)
    if not flags.load_full_batch:
        return SampledFullBatches(dataset.graph, *sampling)
    stored = StoredFullBatches(
        flags.full_batch_root, Recipe.of(dataset.name, graph_fingerprint(dataset.graph), *sampling)
    )
    stored.require_epochs(flags.num_epochs)
    return stored


if __name__ == "__main__":
    main()
