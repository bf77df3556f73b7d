"""What Betty's command lines share: flags, their types, logging, and errors in one line."""

import argparse
import logging
import math
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NoReturn

import torch

from betty.errors import BettyError
from betty.explanation import explain
from betty.memory.sizes import parse_size


class _HelpFormatter(argparse.ArgumentDefaultsHelpFormatter):
    """Tells the default of a flag that has one: nothing of switches and of flags that may be left out."""

    def _get_help_string(self, action: argparse.Action) -> str | None:
        return action.help if action.default in (None, False) else super()._get_help_string(action)


class CommandLineParser(argparse.ArgumentParser):
    """Prints a default beside each flag, and a wrong flag as one line."""

    def __init__(self, module: str, description: str) -> None:
        super().__init__(
            prog=f"python -m {module}",
            description=description,
            formatter_class=_HelpFormatter,
            allow_abbrev=False,
        )

    def parse_args(self, arguments: Sequence[str] | None = None) -> argparse.Namespace:
        # argparse takes "-1,-1" for a flag, where it takes "-1" for a number.
        words = list(sys.argv[1:] if arguments is None else arguments)
        for position in range(len(words) - 1, 0, -1):
            if words[position - 1] == "--fan-out" and words[position].startswith("-1"):
                words[position - 1 : position + 1] = [f"--fan-out={words[position]}"]
        if not all(map(_is_utf8, words)):
            self.error("a flag or a path is not in UTF-8, as JSON and safetensors need it; rename the file or folder")
        return super().parse_args(words)

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: error: {message} (see --help)\n")


def _is_utf8(word: str) -> bool:
    try:
        word.encode()
    except UnicodeEncodeError:
        return False
    return True


def run_command(prog: str, command: Callable[[], None]) -> None:
    """Run a command; what the user can put right ends it as one line on the error stream and exit code 2."""
    try:
        command()
    except Exception as error:
        message = explain(error)
        if message is None:
            raise
        print(f"{prog}: error: {message}", file=sys.stderr)
        sys.exit(2)


def set_up_logging(quiet: bool) -> None:
    """Send the log to the error stream: its messages, or with ``quiet`` only warnings."""
    logging.basicConfig(level=logging.WARNING if quiet else logging.INFO, format="%(message)s", force=True)


LARGEST_INT = 2**31 - 1


def fan_outs(text: str) -> list[int]:
    """``"10,25"`` as ``[10, 25]``; ``-1`` takes all neighbours."""
    return [-1 if part.strip() == "-1" else _fan_out(part, text) for part in text.split(",")]


def _fan_out(part: str, text: str) -> int:
    try:
        return positive_int(part)
    except argparse.ArgumentTypeError:
        raise argparse.ArgumentTypeError(
            f"{text!r} is not a list of whole numbers like 10,25; each is at least 1, or -1 for all neighbours"
        ) from None


def positive_int(text: str) -> int:
    value = non_negative_int(text)
    if value == 0:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number above 0")
    return value


def non_negative_int(text: str) -> int:
    value = int(text) if text.strip().isascii() and text.strip().isdigit() and len(text) < 12 else -1
    if not 0 <= value <= LARGEST_INT:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number from 0 to {LARGEST_INT}")
    return value


def probability(text: str) -> float:
    value = non_negative_float(text)
    if value >= 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of at least 0 and below 1")
    return value


def non_negative_float(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    # PyTorch's optimizers compute in float32, which ends at 3e38.
    if not 0 <= value <= 1e30:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number from 0 to 1e30")
    return value


def positive_float(text: str) -> float:
    value = non_negative_float(text)
    if value == 0:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number above 0")
    return value


AUTO = "auto"


def memory_size(text: str) -> int | str:
    """``"20GiB"``, ``"512MB"`` or ``"4096"`` in bytes; ``"auto"`` as it is, for what the device has."""
    if text.strip().lower() == AUTO:
        return AUTO
    try:
        return parse_size(text)
    except BettyError as error:
        raise argparse.ArgumentTypeError(f"{error}, or auto") from None


def folder(text: str) -> Path:
    if not text:
        raise argparse.ArgumentTypeError("an empty name is no folder; for the current one say .")
    path = Path(text)
    for place in (path, *path.parents):
        if os.path.exists(place) and not os.path.isdir(place):
            raise argparse.ArgumentTypeError(f"{place} is a file; choose another folder")
    return path


def device(text: str) -> torch.device:
    """``"auto"``, ``"cpu"``, ``"cuda"``, ``"cuda:1"``, …, where this machine has it."""
    if text == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        chosen = torch.device(text)
        torch.empty(0, device=chosen)
    except (RuntimeError, AssertionError, NotImplementedError, ImportError):
        chosen = None
    if chosen is None or chosen.type == "meta":
        raise argparse.ArgumentTypeError(f"this machine has no device {text!r}; try cpu")
    return chosen


def add_dataset_flags(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("data set")
    group.add_argument("--dataset", default="synthetic-arxiv", help="name of a data set, or path of an .npz graph")
    group.add_argument("--data-root", type=folder, default=Path("data"), help="folder for data sets")
    group.add_argument("--average-degree", type=positive_float, help="of a synthetic data set, instead of its own")
    group.add_argument("--split", type=non_negative_int, default=0, help="of an .npz graph with several splits")
    group.add_argument(
        "--directed",
        action=argparse.BooleanOptionalAction,
        default=None,
        help="whether edges of an .npz graph keep their directions; as the file says if not given",
    )


def add_sampling_flags(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("full batches")
    group.add_argument(
        "--fan-out",
        type=fan_outs,
        default="10,25",
        metavar="N,N,…",
        help="neighbours sampled per layer, input layer first; -1 takes all",
    )
    group.add_argument(
        "--batch-size",
        type=positive_int,
        default=None,
        help="output nodes of a full batch; all training nodes if not given",
    )


def add_store_flags(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("stored full batches")
    group.add_argument(
        "--full-batch-root", type=folder, default=Path("betty_dataset"), help="folder of stored full batches"
    )


def add_run_flags(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("run")
    group.add_argument("--num-epochs", type=positive_int, default=5, help="epochs")
    group.add_argument("--seed", type=non_negative_int, default=1236, help="seed of everything random")
    group.add_argument("--quiet", action="store_true", help="no progress bars, no tables, only warnings")
