"""Measures what figure 5 needs besides its runs: in-degrees, and the estimate by part of each number of parts."""

from __future__ import annotations

import argparse
from dataclasses import asdict
from typing import Any

import torch
from degrees import counted_degrees
from measurement import measuring_parser, whole_numbers, write_measurement
from torch import nn

from betty.command_line import device, run_command
from betty.full_batch import SampledFullBatches
from betty.micro_batch_train import METHODS
from betty.micro_batch_train.plan import estimated, model_estimate
from betty.micro_batch_train.planning_ahead import PlannedBatch, PlanningAhead
from betty.micro_batch_train.trainer import Partitioning
from betty.training_command_line import add_model_flags, load_flagged_dataset, new_model, parse_training_flags


def estimate_of(planned: PlannedBatch, model: nn.Module, num_batch: int, device: torch.device) -> dict[str, Any]:
    """The micro-batch that is estimated to take the most, by part, with the next one that is loaded beside it."""
    plan = estimated(planned.full_batch, planned.plan.parts, model_estimate(model, device))
    largest = max(range(len(plan.needs)), key=plan.needs.__getitem__)
    estimate = plan.estimates[largest]
    by_part = asdict(estimate) | {"next_one": plan.needs[largest] - estimate.peak}
    return {"num_batch": num_batch, "by_part": by_part, "peak": plan.peak}


def measure(flags: argparse.Namespace) -> None:
    """Of the last epoch of the runs with the same flags, as the trainer plans it."""
    dataset = load_flagged_dataset(flags)
    source = SampledFullBatches(dataset.graph, dataset.train_ids, flags.fan_out, flags.seed, flags.batch_size)
    model, estimates = new_model(flags, dataset), []
    for num_batch in flags.num_batches:
        planner = Partitioning(flags.selection_method, num_batch, 0, flags.selection_method)
        planning = PlanningAhead(source, planner, flags.device, flags.seed, flags.num_epochs)
        planned = planning.get(model, 0, flags.num_epochs - 1, 0)
        estimates.append(estimate_of(planned, model, num_batch, flags.device))
    in_degrees = counted_degrees(planned.full_batch.blocks[-1])
    write_measurement(flags, {"in_degrees": in_degrees, "estimates": estimates})


def main(arguments: list[str] | None = None) -> None:
    """Run the command line."""
    parser = measuring_parser("scripts/figures/estimates.py", __doc__)
    add_model_flags(parser)
    parser.add_argument("--num-batches", type=whole_numbers, required=True, metavar="N,N,…", help="of micro-batches")
    parser.add_argument("--selection-method", choices=METHODS, required=True, help="partitioning")
    parser.add_argument("--device", type=device, default="auto", help="that the estimate is for")
    flags = parse_training_flags(parser, arguments)
    run_command(parser.prog, lambda: measure(flags))


if __name__ == "__main__":
    main()
