"""Tables of a figure, ready for the README."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from runs import Run, Spread

from betty.command_line import CommandLineParser
from betty.files import whole_file
from betty.memory import size_text


def add_run_flags(parser: CommandLineParser) -> None:
    parser.add_argument("--folder", type=Path, required=True, help="of the figure, with runs/ in it")
    parser.add_argument("--runs", nargs="+", required=True, metavar="RUN", help="their names, in their order")


def markdown_table(header: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """A table as it stands in the README."""
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join(f"| {' | '.join(map(str, line))} |" for line in lines)


def write_table(folder: Path, *paragraphs: str) -> None:
    """Write ``table.md``, whole or not at all, and print it."""
    text = "\n\n".join(paragraphs) + "\n"
    with whole_file(folder / "table.md") as file:
        file.write(text.encode())
    print(text)


def size_or_nothing(size: float | None) -> str:
    return "" if size is None else size_text(size)


def number_or_nothing(value: float | None, digits: int) -> str:
    return "" if value is None else f"{value:.{digits}f}"


def spread_text(spread: Spread, num_values: int, digits: int, factor: float = 1.0) -> str:
    """Mean ± standard deviation; of a single value the value alone."""
    mean = f"{factor * spread.mean:.{digits}f}"
    return mean if num_values == 1 else f"{mean} ± {factor * spread.std:.{digits}f}"


def counted(number: int, one: str, many: str | None = None) -> str:
    """``"1 layer"``, ``"2 layers"``."""
    return f"{number} {one if number == 1 else many or one + 's'}"


def describe(run: Run) -> str:
    """What a run trained, in words: model, sizes, fan-outs, data set."""
    layers = counted(int(run.flag("num_layers")), "layer")
    return f"{run.dataset}, {layers}, {run.flag('num_hidden')} hidden channels, fan-outs {run.flag('fan_out')}"


def machine(run: Run) -> str:
    """Where a run was made."""
    environment = run.environment
    return f"{environment['device']} ({environment['device_name']}), PyTorch {environment['torch']}"
