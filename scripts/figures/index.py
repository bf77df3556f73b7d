"""Makes ``index.html``: one page that needs no other file, with all figures and their tables."""

from __future__ import annotations

import argparse
import base64
from pathlib import Path

from document import filled, read_document
from pages import html_page

from betty.command_line import CommandLineParser, run_command
from betty.files import whole_file

MISSING = "This figure is not drawn yet.\n"


def content_of(folder: Path) -> str:
    """A figure's picture, as text that a page can hold, and its table."""
    try:
        picture = base64.b64encode((folder / "figure.png").read_bytes()).decode("ascii")
        table = (folder / "table.md").read_text(encoding="utf-8")
    except FileNotFoundError:
        return MISSING
    return f"\n![{folder.name}](data:image/png;base64,{picture})\n\n{table}\n"


def make_index(flags: argparse.Namespace) -> None:
    """Write the page; figures that were not asked for are shown if they were drawn before."""
    text = filled(read_document(), lambda figure, _: content_of(flags.results / figure))
    with whole_file(flags.results / "index.html") as file:
        file.write(html_page("Betty: the paper's figures", text).encode())
    print(f"all figures with their tables: {flags.results / 'index.html'}")


def main(arguments: list[str] | None = None) -> None:
    """Run the command line."""
    parser = CommandLineParser("scripts/figures/index.py", "Put all figures on one page.")
    parser.add_argument("--results", type=Path, required=True, help="folder with a folder per figure")
    flags = parser.parse_args(arguments)
    run_command(parser.prog, lambda: make_index(flags))


if __name__ == "__main__":
    main()
