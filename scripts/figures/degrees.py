"""Measures what figure 9 needs: in-degrees of the output nodes of a full batch and of its micro-batches."""

from __future__ import annotations

import argparse

from measurement import measuring_parser, write_measurement

from betty import Block, partition, sample_full_batch, split
from betty.command_line import positive_int, run_command
from betty.micro_batch_train import METHODS
from betty.training_command_line import load_flagged_dataset


def counted_degrees(block: Block) -> list[list[int]]:
    """How many destination nodes have each in-degree that there is: pairs of degree and number, ascending."""
    degrees, counts = block.in_degrees().unique(return_counts=True)
    return [list(pair) for pair in zip(degrees.tolist(), counts.tolist(), strict=True)]


def measure(flags: argparse.Namespace) -> None:
    """Of the first epoch's full batch."""
    dataset = load_flagged_dataset(flags)
    full_batch = sample_full_batch(dataset.graph, dataset.train_ids, flags.fan_out, seed=flags.seed)
    micro_batches = split(full_batch, partition(full_batch, flags.num_batch, flags.selection_method, flags.seed))
    content = {
        "full_batch": counted_degrees(full_batch.blocks[-1]),
        "micro_batches": [counted_degrees(micro_batch.blocks[-1]) for micro_batch in micro_batches],
    }
    write_measurement(flags, content)


def main(arguments: list[str] | None = None) -> None:
    """Run the command line."""
    parser = measuring_parser("scripts/figures/degrees.py", __doc__)
    parser.add_argument("--num-batch", type=positive_int, required=True, help="micro-batches")
    parser.add_argument("--selection-method", choices=METHODS, required=True, help="partitioning")
    flags = parser.parse_args(arguments)
    run_command(parser.prog, lambda: measure(flags))


if __name__ == "__main__":
    main()
