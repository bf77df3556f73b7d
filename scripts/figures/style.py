"""How figures look: one style, colours that the colour-blind tell apart, hatching and markers for prints in grey."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from matplotlib.ticker import MaxNLocator

from betty.files import whole_file
from betty.memory import parse_size, size_text

# Without a home folder to write to, it warns of its font cache at every start.
logging.getLogger("matplotlib").setLevel(logging.ERROR)

STYLE = {
    "font.size": 9,
    "axes.titlesize": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.axisbelow": True,
    "axes.grid": True,
    "axes.grid.axis": "y",
    "grid.color": "0.9",
    "hatch.linewidth": 0.5,
    "legend.frameon": False,
    "legend.fontsize": 8,
    "pdf.fonttype": 42,
}
DOTS_PER_INCH = 150


@dataclass(frozen=True)
class Look:
    """How one of several things that are compared is drawn: as a bar, or as a line."""

    color: str
    hatch: str
    marker: str
    line: str | tuple[int, tuple[int, ...]]

    @property
    def bar(self) -> dict[str, object]:
        return {"facecolor": self.color, "hatch": self.hatch, "edgecolor": "0.15", "linewidth": 0.5}

    @property
    def curve(self) -> dict[str, object]:
        return {"color": self.color, "marker": self.marker, "linestyle": self.line, "markersize": 4.5}


LOOKS = (
    Look("#0072B2", "", "o", "-"),
    Look("#E69F00", "////", "s", "--"),
    Look("#56B4E9", "....", "^", "-."),
    Look("#D55E00", "\\\\\\\\", "D", ":"),
    Look("#F0E442", "xxx", "v", (0, (6, 1))),
    Look("#009E73", "---", "P", (0, (3, 1, 1, 1, 1, 1))),
    Look("#CC79A7", "ooo", "X", (0, (1, 1))),
    Look("0.75", "+++", "<", (0, (8, 2, 2, 2))),
    Look("white", "", ">", (0, (4, 4))),
    Look("0.4", "", "*", (0, (2, 3))),
)
"""Colours of Okabe and Ito, told apart by the colour-blind, in an order in which neighbours differ in brightness."""

WHOLE = Look("0.85", "", "o", "-")
OUT_OF_MEMORY = Look("#D55E00", "////", "X", ":")
PUBLISHED = Look("0.55", "", "*", (0, (1, 2)))


def looks(names: Sequence[str]) -> dict[str, Look]:
    """A look for each of the names, in their order."""
    return {name: LOOKS[position % len(LOOKS)] for position, name in enumerate(names)}


def legend_patch(look: Look, label: str) -> Patch:
    """A bar's look, for a legend."""
    return Patch(label=label, **look.bar)


def new_figure(width: float, height: float) -> Figure:
    """An empty figure, in inches, in the style that is set; see :func:`styled`."""
    return Figure(figsize=(width, height), layout="constrained")


def styled() -> AbstractContextManager[None]:
    """A context in which everything drawn has the common style."""
    return matplotlib.rc_context(STYLE)


def save(figure: Figure, folder: Path) -> None:
    """Write ``figure.png`` and ``figure.pdf``, each whole or not at all; the same figure gives the same bytes."""
    with whole_file(folder / "figure.png") as file:
        figure.savefig(file, format="png", dpi=DOTS_PER_INCH)
    with whole_file(folder / "figure.pdf") as file:
        figure.savefig(file, format="pdf", metadata={"CreationDate": None})


@dataclass(frozen=True)
class SizeUnit:
    """A unit for an axis of sizes."""

    name: str
    num_bytes: int

    def __call__(self, size: float) -> float:
        return size / self.num_bytes


def size_unit(sizes: Sequence[float]) -> SizeUnit:
    """The unit that fits the largest of some sizes in bytes."""
    name = size_text(max(sizes, default=1)).split()[1]
    return SizeUnit(name, parse_size(f"1{name}"))


def grouped_positions(num_groups: int, num_members: int, width: float = 0.8) -> list[np.ndarray]:
    """Where the bars of each member stand, in groups around 0, 1, …

    Returns:
        One array ``[num_groups]`` per member.
    """
    offsets = (np.arange(num_members) - (num_members - 1) / 2) * width / num_members
    return [np.arange(num_groups) + offset for offset in offsets]


def label_bars(axes: Axes, xs: Sequence[float], tops: Sequence[float], texts: Sequence[str]) -> None:
    """Words above bars, with room for them; lines that cross them pass behind."""
    place = {"xytext": (0, 2), "textcoords": "offset points", "ha": "center", "va": "bottom"}
    background = {"facecolor": "white", "edgecolor": "none", "pad": 0.5}
    for x, top, text in zip(xs, tops, texts, strict=True):
        if text:
            axes.annotate(text, (x, top), fontsize=7, bbox=background, zorder=3, **place)
    axes.set_ylim(0, max(1.12 * max(tops), axes.get_ylim()[1]))


def epoch_axis(axes: Axes, label: str) -> None:
    """Whole epochs to the right, a quantity with its unit upwards."""
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.set(xlabel="epoch", ylabel=label)
