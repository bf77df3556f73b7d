"""The Markdown of the figures' document as HTML: headings, paragraphs, tables, lists, code, pictures, links."""

from __future__ import annotations

import html
import re
from collections.abc import Iterator

STYLE = """
body { font: 16px/1.5 system-ui, sans-serif; max-width: 72rem; margin: 2rem auto; padding: 0 1rem; color: #111; }
img { max-width: 100%; }
table { border-collapse: collapse; font-size: 0.8rem; display: block; overflow-x: auto; margin: 1rem 0; }
th, td { padding: 0.25rem 0.6rem; border-bottom: 1px solid #ccc; text-align: right; white-space: nowrap; }
th { border-bottom: 2px solid #666; }
th:first-child, td:first-child { text-align: left; }
pre { background: #f4f4f4; padding: 0.6rem; overflow-x: auto; }
"""


def html_page(title: str, markdown: str) -> str:
    """A page that needs no other file."""
    body = "\n".join(_blocks(re.sub(r"<!--.*?-->", "", markdown, flags=re.DOTALL)))
    return (
        f'<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n<title>{html.escape(title)}</title>\n'
        f"<style>{STYLE}</style>\n</head>\n<body>\n{body}\n</body>\n</html>\n"
    )


def _blocks(markdown: str) -> Iterator[str]:
    """Each block of the text, which empty lines and fences of code part."""
    for position, fenced in enumerate(re.split(r"^```\w*\n(.*?)^```$", markdown, flags=re.DOTALL | re.MULTILINE)):
        if position % 2:
            yield f"<pre><code>{html.escape(fenced)}</code></pre>"
        else:
            yield from (_block(block.strip("\n")) for block in re.split(r"\n\s*\n", fenced) if block.strip())


def _block(block: str) -> str:
    lines = block.splitlines()
    if heading := re.fullmatch(r"(#+) (.*)", block):
        level = len(heading[1])
        return f"<h{level}>{_inline(heading[2])}</h{level}>"
    if lines[0].startswith("|"):
        return _table(lines)
    if lines[0].startswith("- "):
        items = re.split(r"^- ", block, flags=re.MULTILINE)[1:]
        return "<ul>" + "".join(f"<li>{_inline(item)}</li>" for item in items) + "</ul>"
    return f"<p>{_inline(block)}</p>"


def _table(lines: list[str]) -> str:
    header, _, *rows = ([_inline(cell.strip()) for cell in line.strip("|").split("|")] for line in lines)
    head = "".join(f"<th>{cell}</th>" for cell in header)
    body = "\n".join("<tr>" + "".join(f"<td>{cell}</td>" for cell in row) + "</tr>" for row in rows)
    return f"<table>\n<tr>{head}</tr>\n{body}\n</table>"


def _inline(text: str) -> str:
    """Pictures, links and code inside of a block; everything else as it is written."""
    text = html.escape(text.strip(), quote=True)
    text = re.sub(r"!\[([^\]]*)\]\(([^)]*)\)", r'<img src="\2" alt="\1">', text)
    text = re.sub(r"\[([^\]]*)\]\(([^)]*)\)", r'<a href="\2">\1</a>', text)
    return re.sub(r"`([^`]*)`", r"<code>\1</code>", text)
