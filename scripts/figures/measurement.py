"""What the measuring scripts share: flags, and the file that they write."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from betty import BettyError
from betty.command_line import CommandLineParser, add_dataset_flags, add_run_flags, add_sampling_flags, positive_int
from betty.files import read_json, write_json
from betty.training_command_line import printable

FILE = "measurement.json"


def measuring_parser(program: str, description: str) -> CommandLineParser:
    """A parser with the flags of data sets and full batches."""
    parser = CommandLineParser("", description)
    parser.prog = f"python {program}"
    add_dataset_flags(parser)
    add_sampling_flags(parser)
    add_run_flags(parser)
    parser.add_argument("--output", type=Path, required=True, help="folder of the measurement")
    return parser


def whole_numbers(text: str) -> list[int]:
    """``"1,4,16"`` as ``[1, 4, 16]``."""
    return [positive_int(part) for part in text.split(",")]


def write_measurement(flags: argparse.Namespace, content: dict[str, Any]) -> None:
    """Write ``measurement.json``: the flags and what was measured."""
    write_json(flags.output / FILE, {"flags": printable(flags), **content})


def read_measurement(folder: Path) -> dict[str, Any]:
    """What a measuring script wrote into a folder.

    Raises:
        BettyError: it holds no measurement.
    """
    content = read_json(folder / FILE)
    if not isinstance(content, dict) or "flags" not in content:
        raise BettyError(f"{folder / FILE} is not a measurement; delete it and start the figure's script again")
    return content
