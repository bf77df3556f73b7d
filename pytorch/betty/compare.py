"""``python -m betty.compare``: finished runs side by side, as a Markdown table."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from betty.command_line import CommandLineParser, run_command
from betty.files import read_json

MODULE = "betty.compare"


def main(arguments: list[str] | None = None) -> None:
    """Run the command line."""
    parser = CommandLineParser(MODULE, "Print the summaries of finished runs as a Markdown table.")
    parser.add_argument("folders", nargs="+", type=Path, metavar="FOLDER", help="the --output folder of a run")
    flags = parser.parse_args(arguments)
    run_command(parser.prog, lambda: print(comparison(flags.folders)))


def comparison(folders: Sequence[Path]) -> str:
    """A Markdown table with a row per run.

    Raises:
        BettyError: a folder holds no finished run.
    """
    header = ["run", "micro-batches", "redundancy", "final loss", "test accuracy", "epoch (s)"]
    rows = [header, ["---"] * len(header), *(_row(folder) for folder in folders)]
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def _row(folder: Path) -> list[str]:
    summary = read_json(folder / "summary.json")
    redundancy = summary["redundancy"]
    return [
        folder.name,
        f"{summary['num_micro_batches']:g}",
        "" if redundancy is None else f"{redundancy:.3f}",
        _spread(summary["final_loss"]),
        _spread(summary["test_acc"]),
        f"{summary['epoch_s']:.2f}",
    ]


def _spread(value: dict[str, Any] | None) -> str:
    return "" if value is None else f"{value['mean']:.4f} ± {value['std']:.4f}"


if __name__ == "__main__":
    main()
