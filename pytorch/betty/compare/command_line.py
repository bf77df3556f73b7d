"""``python -m betty.compare``: finished runs side by side, as a Markdown table."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from betty.command_line import CommandLineParser, run_command
from betty.errors import BettyError
from betty.report import spread_text
from betty.run_folder import finished_summary

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
    header = ["run", "batches", "redundancy", "final loss", "test accuracy", "epoch (s)"]
    rows = [header, ["---"] * len(header), *(_row(folder) for folder in folders)]
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def _row(folder: Path) -> list[str]:
    try:
        return _cells(folder.absolute().name, finished_summary(folder))
    except (KeyError, TypeError) as error:
        raise BettyError(f"{folder} holds no summary of a run ({type(error).__name__}: {error})") from error


def _cells(name: str, summary: dict[str, Any]) -> list[str]:
    redundancy = summary["redundancy"]
    return [
        name,
        f"{summary['num_micro_batches']:g}",
        "" if redundancy is None else f"{redundancy:.3f}",
        spread_text(summary["final_loss"], summary["num_runs"]),
        spread_text(summary["test_acc"], summary["num_runs"]),
        f"{summary['epoch_s']:.2f}",
    ]
