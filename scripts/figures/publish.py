"""Copies pictures and tables into ``docs/figures/``, and the tables as they are into ``docs/figures.md``."""

from __future__ import annotations

import argparse
from pathlib import Path

from document import DOCUMENT, filled, places, read_document

from betty import BettyError
from betty.command_line import CommandLineParser, run_command
from betty.files import whole_file


def copy(source: Path, target: Path) -> None:
    with whole_file(target) as file:
        file.write(source.read_bytes())


def publish(flags: argparse.Namespace) -> None:
    """Publish the figures that are asked for; the places of the others stay as they are.

    Raises:
        BettyError: a figure is not drawn yet, or has no place in the document; nothing is written then.
    """
    text, folder = read_document(), flags.document.parent / "figures"
    for figure in flags.figures:
        if figure not in places(text):
            raise BettyError(f"{DOCUMENT} has no place for {figure}")
        for name in ("figure.png", "table.md"):
            if not (flags.results / figure / name).exists():
                raise BettyError(f"{flags.results / figure / name} does not exist; draw it with scripts/{figure}.sh")

    def content_of(figure: str, before: str) -> str:
        if figure not in flags.figures:
            return before
        table = (flags.results / figure / "table.md").read_text(encoding="utf-8")
        return f"\n![{figure}](figures/{figure}.png)\n\n{table}\n"

    for figure in flags.figures:
        copy(flags.results / figure / "figure.png", folder / f"{figure}.png")
        copy(flags.results / figure / "table.md", folder / f"{figure}.md")
    with whole_file(flags.document) as file:
        file.write(filled(text, content_of).encode())
    print(f"published in {flags.document}: {', '.join(flags.figures)}")


def main(arguments: list[str] | None = None) -> None:
    """Run the command line."""
    parser = CommandLineParser("scripts/figures/publish.py", "Put drawn figures and their tables into the docs.")
    parser.add_argument("--results", type=Path, required=True, help="folder with a folder per figure")
    parser.add_argument("--figures", nargs="+", required=True, metavar="FIGURE", help="like figure02")
    parser.add_argument("--document", type=Path, default=DOCUMENT, help="to write")
    flags = parser.parse_args(arguments)
    run_command(parser.prog, lambda: publish(flags))


if __name__ == "__main__":
    main()
