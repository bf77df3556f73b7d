"""``python -m betty.micro_batch_train``: train by micro-batches."""

from __future__ import annotations

import argparse
import logging
from dataclasses import asdict
from functools import cache

from betty.command_line import (
    AUTO,
    add_store_flags,
    memory_size,
    non_negative_int,
    positive_int,
    run_command,
    set_up_logging,
)
from betty.datasets import Dataset
from betty.device_loader import DeviceLoader
from betty.full_batch import FullBatchSource, Recipe, SampledFullBatches, StoredFullBatches
from betty.memory import available_memory, size_text, states_its_memory
from betty.micro_batch_train.graph_partitioner import DEFAULT_METHOD, METHODS
from betty.micro_batch_train.locality_order import stored_order
from betty.micro_batch_train.output_graphs import MAX_SHARING
from betty.micro_batch_train.plan import estimated, model_estimate
from betty.micro_batch_train.plan_report import plan_table, plot_plan
from betty.micro_batch_train.planner import BudgetPartitioning
from betty.micro_batch_train.planning_ahead import Planner, PlanningAhead
from betty.micro_batch_train.stored_parts import StoredTensors
from betty.micro_batch_train.trainer import MicroBatchTrainer, Partitioning
from betty.training import Trainer
from betty.training_command_line import (
    load_flagged_dataset,
    new_model,
    parse_training_flags,
    run_training,
    training_parser,
)

logger = logging.getLogger(__name__)

MODULE = "betty.micro_batch_train"

DEFAULT_NUM_BATCH = 4


def main(arguments: list[str] | None = None) -> None:
    """Run the command line."""
    parser = training_parser(
        MODULE, "Train a graph neural network by micro-batches, with the result of the whole batch."
    )
    group = parser.add_argument_group("micro-batches")
    number = group.add_mutually_exclusive_group()
    # Without a default of its own: the parser takes the default for a flag that is not given, even where it is.
    number.add_argument(
        "--num-batch", type=positive_int, help=f"micro-batches of a full batch (default: {DEFAULT_NUM_BATCH})"
    )
    number.add_argument(
        "--memory-budget",
        type=memory_size,
        metavar="SIZE",
        help="as few micro-batches as fit this: 20GiB, 512MB, or auto for what is free on the device less a margin",
    )
    group.add_argument(
        "--selection-method", choices=METHODS, default=DEFAULT_METHOD, help="partitioning of a full batch"
    )
    group.add_argument(
        "--num-re-partition",
        type=non_negative_int,
        default=0,
        help="how often to split the micro-batch with the most input nodes in two",
    )
    group.add_argument("--re-partition-method", choices=METHODS, default="REG", help="partitioning for that")
    group.add_argument(
        "--reg-max-degree",
        type=positive_int,
        default=MAX_SHARING,
        metavar="N",
        help="output nodes that may share a node for it to count in REG",
    )
    add_store_flags(parser)
    group.add_argument(
        "--load-full-batch",
        action="store_true",
        help="train on the full batches that python -m betty.full_batch stored, instead of sampling them",
    )
    group.add_argument(
        "--plan-only",
        action="store_true",
        help="print the micro-batches of the first full batch and what they are estimated to take, and train nothing",
    )
    flags = parse_training_flags(parser, arguments)
    if flags.memory_budget is None:
        flags.num_batch = flags.num_batch or DEFAULT_NUM_BATCH
    elif flags.num_re_partition:
        parser.error("--num-re-partition goes with --num-batch; --memory-budget splits what is too big as it is")
    if flags.plan_only:
        run_command(parser.prog, lambda: show_plan(flags))
    else:
        run_command(parser.prog, lambda: train(flags))


def train(flags: argparse.Namespace) -> None:
    budget = cache(lambda: memory_budget(flags))

    def make_trainer(dataset: Dataset, device_loader: DeviceLoader) -> Trainer:
        recipe = full_batch_recipe(flags, dataset)
        source, store = full_batches(flags, dataset, recipe)
        planned_by = planner(flags, dataset, recipe, budget())
        return MicroBatchTrainer(source, planned_by, device_loader, flags.seed, flags.num_epochs, store)

    run_training(flags, make_trainer, budget)


def memory_budget(flags: argparse.Namespace) -> int | None:
    """Bytes; what ``auto`` is, is asked of the device now."""
    if flags.memory_budget is None:
        return None
    budget = available_memory(flags.device) if flags.memory_budget == AUTO else flags.memory_budget
    logger.info("as few micro-batches as fit %s of memory", size_text(budget))
    return budget


def planner(flags: argparse.Namespace, dataset: Dataset, recipe: Recipe, budget: int | None) -> Planner:
    leaves_of = None
    if flags.selection_method == "locality":
        leaves_of = stored_order(dataset, recipe, flags.full_batch_root).leaves_of
    if budget is None:
        return Partitioning(
            flags.selection_method,
            flags.num_batch,
            flags.num_re_partition,
            flags.re_partition_method,
            flags.reg_max_degree,
            leaves_of,
        )
    return BudgetPartitioning(flags.selection_method, budget, reg_max_degree=flags.reg_max_degree, leaves_of=leaves_of)


def show_plan(flags: argparse.Namespace) -> None:
    """Print how the first full batch would be trained on, and draw it."""
    set_up_logging(flags.quiet)
    dataset = load_flagged_dataset(flags)
    recipe = full_batch_recipe(flags, dataset)
    source, store = full_batches(flags, dataset, recipe)
    model = new_model(flags, dataset)
    planned_by = planner(flags, dataset, recipe, memory_budget(flags))
    # As in training; a method that partitions every epoch anew need not begin with the next one.
    num_epochs = flags.num_epochs if planned_by.serves_every_epoch else 1
    planned = PlanningAhead(source, planned_by, flags.device, flags.seed, num_epochs, store).get(model, 0, 0, 0)
    plan = planned.plan
    if not plan.estimates:
        estimate = model_estimate(model, flags.device) if states_its_memory(model) else None
        plan = estimated(planned.full_batch, plan.parts, estimate, plan.memory_budget)
    print(plan_table(plan))
    plot_plan(flags.output / "estimate.png", plan)
    logger.info("written to %s", flags.output)


def full_batch_recipe(flags: argparse.Namespace, dataset: Dataset) -> Recipe:
    return Recipe.of(
        dataset.name, dataset.graph_fingerprint, dataset.train_ids, flags.fan_out, flags.seed, flags.batch_size
    )


def full_batches(flags: argparse.Namespace, dataset: Dataset, recipe: Recipe) -> tuple[FullBatchSource, StoredTensors]:
    """The full batches of every epoch, and where their parts are kept."""
    store = StoredTensors(recipe.folder(flags.full_batch_root) / "parts", asdict(recipe))
    sampled = SampledFullBatches(dataset.graph, dataset.train_ids, flags.fan_out, flags.seed, flags.batch_size)
    if not flags.load_full_batch:
        return sampled, store
    stored = StoredFullBatches(flags.full_batch_root, recipe, sampled)
    stored.require_epochs(flags.num_epochs)
    return stored, store
