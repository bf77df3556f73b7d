"""``python -m betty.mini_batch_train``: train by mini-batches, the baseline."""

from __future__ import annotations

import argparse

from betty.command_line import run_command
from betty.datasets import Dataset
from betty.device_loader import DeviceLoader
from betty.full_batch import SampledFullBatches
from betty.mini_batch_train.trainer import MiniBatchTrainer
from betty.training import Trainer
from betty.training_command_line import parse_training_flags, run_training, training_parser

MODULE = "betty.mini_batch_train"


def main(arguments: list[str] | None = None) -> None:
    """Run the command line."""
    parser = training_parser(MODULE, "Train a graph neural network by mini-batches, each with a step of its own.")
    flags = parse_training_flags(parser, arguments)
    run_command(parser.prog, lambda: run_training(flags, lambda *parts: make_trainer(flags, *parts)))


def make_trainer(flags: argparse.Namespace, dataset: Dataset, device_loader: DeviceLoader) -> Trainer:
    mini_batches = SampledFullBatches(dataset.graph, dataset.train_ids, flags.fan_out, flags.seed, flags.batch_size)
    return MiniBatchTrainer(mini_batches, device_loader, flags.seed)
