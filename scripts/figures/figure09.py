"""Figure 9: the in-degree distribution of the full batch and of its micro-batches."""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from itertools import cycle
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import StrMethodFormatter
from measurement import read_measurement
from style import LOOKS, WHOLE, new_figure, save, styled
from tables import counted, markdown_table, write_table

from betty.command_line import CommandLineParser, run_command


@dataclass(frozen=True, eq=False)
class Degrees:
    """A distribution of in-degrees.

    Args:
        name: of what.
        degrees: int64 ``[n]``, ascending, those that there are.
        counts: int64 ``[n]``, output nodes of each.
    """

    name: str
    degrees: np.ndarray
    counts: np.ndarray

    @classmethod
    def of(cls, name: str, pairs: list[list[int]]) -> Degrees:
        degrees, counts = np.array(pairs, dtype=np.int64).reshape(-1, 2).T
        return cls(name, degrees, counts)

    @property
    def num_nodes(self) -> int:
        return int(self.counts.sum())

    @property
    def mean(self) -> float:
        return float((self.degrees * self.counts).sum() / self.num_nodes)

    def quantile(self, share: float) -> int:
        """The least in-degree that so large a share of the nodes does not exceed."""
        return int(self.degrees[np.searchsorted(self.counts.cumsum(), share * self.num_nodes)])

    @property
    def shares_at_least(self) -> np.ndarray:
        """The share of nodes that have at least the in-degree, float64 ``[n]``."""
        return self.counts[::-1].cumsum()[::-1] / self.num_nodes

    def in_doubling_bins(self) -> tuple[np.ndarray, np.ndarray]:
        """The bins 1, 2–3, 4–7, …: where they begin, and their nodes."""
        bins = np.floor(np.log2(np.maximum(self.degrees, 1))).astype(np.int64)
        return 2 ** np.arange(bins.max() + 1), np.bincount(bins, weights=self.counts)


def plot(left: Axes, right: Axes, distribution: Degrees, curve: dict[str, object]) -> None:
    """Nodes per bin on the left, the share of nodes of at least an in-degree on the right."""
    starts, counts = distribution.in_doubling_bins()
    left.plot(starts[counts > 0], counts[counts > 0], label=distribution.name, **curve)
    degrees, shares = distribution.degrees, 100 * distribution.shares_at_least
    some = degrees > 0
    right.plot(degrees[some], shares[some], drawstyle="steps-pre", **curve | {"marker": ""})


def draw(full_batch: Degrees, micro_batches: list[Degrees]) -> Figure:
    """Nodes by in-degree on the left, the tail on the right."""
    figure = new_figure(8.5, 3.5)
    left, right = figure.subplots(1, 2)
    plot(left, right, full_batch, WHOLE.curve | {"marker": "", "color": "0.7", "lw": 4})
    for distribution, look in zip(micro_batches, cycle(LOOKS), strict=False):
        plot(left, right, distribution, look.curve)
    for axes in (left, right):
        axes.set_xscale("log", base=2)
        axes.xaxis.set_major_formatter(StrMethodFormatter("{x:,.0f}"))
        axes.set_yscale("log")
        axes.grid(axis="x")
    left.set(xlabel="in-degree, bins of d to 2d − 1", ylabel="output nodes")
    right.set(xlabel="in-degree", ylabel="output nodes of at least that in-degree (%)")
    left.legend()
    return figure


def row(distribution: Degrees) -> list[str]:
    """One row of the table."""
    quantiles = [f"{distribution.quantile(share):,}" for share in (0.5, 0.9, 0.99)]
    largest = f"{int(distribution.degrees[-1]):,}"
    return [distribution.name, f"{distribution.num_nodes:,}", f"{distribution.mean:.2f}", *quantiles, largest]


def show(flags: argparse.Namespace) -> None:
    """Write the picture and the table."""
    measured = read_measurement(flags.folder / "runs" / flags.measurement)
    full_batch = Degrees.of("full batch", measured["full_batch"])
    micro_batches = [
        Degrees.of(f"micro-batch {number}", pairs) for number, pairs in enumerate(measured["micro_batches"], start=1)
    ]
    with styled():
        save(draw(full_batch, micro_batches), flags.folder)
    header = ["batch", "output nodes", "mean in-degree", "median", "90 %", "99 %", "largest"]
    asked = measured["flags"]
    dataset = Path(asked["dataset"]).name.removesuffix(".npz")
    fan_outs = ",".join(map(str, asked["fan_out"]))
    write_table(
        flags.folder,
        markdown_table(header, [row(distribution) for distribution in (full_batch, *micro_batches)]),
        f"In-degrees of the output nodes, {dataset}, fan-outs {fan_outs} (-1: all neighbours), in "
        f"{counted(len(micro_batches), 'micro-batch', 'micro-batches')} by {asked['selection_method']}. 90 %: so many "
        "of the output nodes have at most this in-degree.",
    )


def main(arguments: list[str] | None = None) -> None:
    """Run the command line."""
    parser = CommandLineParser("scripts/figures/figure09.py", "Draw figure 9 from its measurement.")
    parser.add_argument("--folder", type=Path, required=True, help="of the figure, with runs/ in it")
    parser.add_argument("--measurement", required=True, help="its name")
    flags = parser.parse_args(arguments)
    run_command(parser.prog, lambda: show(flags))


if __name__ == "__main__":
    main()
