"""What the two trainers' command lines share: their flags, and a command from start to summary."""

from __future__ import annotations

import argparse
import logging
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import nn

from betty import command_line as types
from betty.command_line import CommandLineParser, add_dataset_flags, add_run_flags, add_sampling_flags
from betty.datasets import Dataset, load_dataset
from betty.device_loader import DeviceLoader
from betty.models import AGGREGATORS, DROPOUT_MODES, GAT, MLP, GraphSAGE
from betty.models.norms import NORMS
from betty.report import plot_run, summarize, summary_table
from betty.run_folder import IfExists, RunFolder
from betty.training import Schedule, Trainer, WithPeakMemory, fit

logger = logging.getLogger(__name__)

MODELS = ("sage", "gat", "mlp")


def training_parser(module: str, description: str) -> CommandLineParser:
    """A parser with all flags that both trainers know."""
    parser = CommandLineParser(module, description)
    add_dataset_flags(parser)
    add_sampling_flags(parser)
    add_model_flags(parser)
    add_run_flags(parser)
    run = parser.add_argument_group("training")
    run.add_argument("--num-runs", type=types.positive_int, default=1, help="runs, which differ in weights and dropout")
    run.add_argument("--lr", type=types.non_negative_float, default=0.003, help="learning rate of Adam")
    run.add_argument("--weight-decay", type=types.non_negative_float, default=5e-4, help="weight decay of Adam")
    run.add_argument("--device", type=types.device, default="auto", help="auto, cpu, cuda, cuda:1, …")
    run.add_argument("--eval", action="store_true", help="evaluate on all nodes, with full neighbourhoods")
    run.add_argument("--eval-every", type=types.positive_int, default=5, help="epochs between evaluations")
    run.add_argument("--log-every", type=types.positive_int, default=1, help="epochs between lines of the log")
    run.add_argument("--measure-memory", action="store_true", help="record the peak memory on the CPU too")
    run.add_argument(
        "--output", type=types.folder, default=Path("results") / module.split(".")[-1], help="folder of the run"
    )
    existing = run.add_mutually_exclusive_group()
    existing.add_argument("--resume", action="store_true", help="go on with the run in the output folder")
    existing.add_argument("--overwrite", action="store_true", help="replace the run in the output folder")
    return parser


def add_model_flags(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("model")
    group.add_argument("--model", choices=MODELS, default="sage", help="GraphSAGE, GAT, or a network on features alone")
    group.add_argument("--aggre", choices=AGGREGATORS, default="mean", help="aggregator of GraphSAGE")
    group.add_argument("--num-heads", type=types.positive_int, default=4, help="attention heads of GAT")
    group.add_argument(
        "--attention-dropout", type=types.probability, default=0.0, help="probability of GAT's dropout of attention"
    )
    group.add_argument("--norm", choices=NORMS, default="none", help="normalisation between layers")
    group.add_argument("--residual", action="store_true", help="add to a layer's result what goes into it")
    group.add_argument("--num-layers", type=types.positive_int, default=2, help="layers; one fan-out each")
    group.add_argument("--num-hidden", type=types.positive_int, default=64, help="hidden channels, of GAT per head")
    group.add_argument("--dropout", type=types.probability, default=0.5, help="probability of dropout")
    group.add_argument(
        "--dropout-mode",
        choices=DROPOUT_MODES,
        default="exact",
        help="the same masks in every micro-batch, or PyTorch's, which differ",
    )


def parse_training_flags(parser: CommandLineParser, arguments: list[str] | None) -> argparse.Namespace:
    """Parse, and check what one flag says of another."""
    flags = parser.parse_args(arguments)
    if len(flags.fan_out) != flags.num_layers:
        parser.error(f"--num-layers {flags.num_layers} needs as many fan-outs, --fan-out has {len(flags.fan_out)}")
    if flags.model != "gat" and flags.attention_dropout:
        parser.error(f"--attention-dropout is of --model gat, not of {flags.model}")
    if flags.model == "mlp" and flags.residual:
        parser.error("--residual is of --model sage and gat, not of mlp")
    return flags


def run_training(
    flags: argparse.Namespace,
    make_trainer: Callable[[Dataset, DeviceLoader], Trainer],
    memory_budget: Callable[[], int | None] = lambda: None,
) -> None:
    """Load, train, evaluate, and write everything that a run writes.

    Args:
        flags: of :func:`training_parser`, and the trainer's own.
        make_trainer: of a data set and a device loader.
        memory_budget: tells, with the data set in memory, the bytes that evaluation may take on the device.
    """
    types.set_up_logging(flags.quiet)
    folder = RunFolder(flags.output, printable(flags), if_exists(flags))
    dataset = load_flagged_dataset(flags)
    logger.info("%s: training on %s nodes, on %s", dataset.name, f"{dataset.train_ids.numel():,}", flags.device)
    trainer = make_trainer(dataset, DeviceLoader(dataset.unchecked_features, dataset.labels, flags.device))
    if flags.measure_memory or flags.device.type == "cuda":  # where it is free
        trainer = WithPeakMemory(trainer, flags.device)
    epochs = fit(
        partial(new_model, flags, dataset),
        partial(torch.optim.Adam, lr=flags.lr, weight_decay=flags.weight_decay),
        trainer,
        dataset,
        Schedule(
            flags.num_epochs, flags.num_runs, flags.eval_every if flags.eval else None, flags.log_every, flags.seed
        ),
        folder,
        flags.device,
        memory_budget(),
    )
    summary = summarize(epochs)
    plot_run(folder.plot, epochs, folder.batches)
    folder.write_summary(summary)
    logger.info("\n%s\n\nwritten to %s", summary_table(summary), folder.path)


def load_flagged_dataset(flags: argparse.Namespace) -> Dataset:
    return load_dataset(
        flags.dataset,
        flags.data_root,
        average_degree=flags.average_degree,
        split=flags.split,
        directed=flags.directed,
    )


def new_model(flags: argparse.Namespace, dataset: Dataset) -> nn.Module:
    sizes = (dataset.num_features, flags.num_hidden, dataset.num_classes, flags.num_layers)
    between = {"norm": flags.norm, "dropout": flags.dropout, "dropout_mode": flags.dropout_mode}
    if flags.model == "mlp":
        return MLP(*sizes, **between)
    if flags.model == "gat":
        attention = {"num_heads": flags.num_heads, "attention_dropout": flags.attention_dropout}
        return GAT(*sizes, **attention, residual=flags.residual, **between)
    return GraphSAGE(*sizes, aggre=flags.aggre, residual=flags.residual, **between)


def if_exists(flags: argparse.Namespace) -> IfExists:
    if flags.resume:
        return "resume"
    return "overwrite" if flags.overwrite else "refuse"


def printable(flags: argparse.Namespace) -> dict[str, Any]:
    """All flags in JSON's types, for ``config.json``."""
    return {
        name: str(value) if isinstance(value, Path | torch.device) else value for name, value in vars(flags).items()
    }
