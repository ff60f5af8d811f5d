"""What an evaluation is drawn as: lines over lengths, and accuracy by depth and length.

`Lengths` is a quantity against the test length, one line per method, both scales logarithmic by
default. A dashed line marks the length a model was trained at, a dotted one a level to compare
with. With `bands`, intervals or the spread over seeds are shaded below the lines. A method that
cannot read a length has no point there. Lines differ in colour and in marker (and in dashes once
colours repeat), so they can be told apart in grey too.

`Depths` shows where in how long a text something is still found: lengths across, depths down from
the beginning of the text (0%) to its end (100%), accuracy from 0 to 1 as colour and as a number in
each cell. A grey cell with "-" is a length that the model cannot read.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from jaxtyping import Float
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, FuncFormatter, LogLocator, MaxNLocator, NullLocator

from headscape.errors import InputError
from headscape.plots.panel import Box
from headscape.plots.style import INK, RULE, blank, context
from headscape.plots.view import View, axes_list

# Okabe and Ito's colour-blind-safe palette without its yellow, which is too light on white.
_COLOURS: Final = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000")
_CELL_WIDTH, _CELL_HEIGHT, _LEFT, _TOP, _BOTTOM, _RIGHT = 0.62, 0.34, 0.75, 0.4, 0.55, 0.75
"""Inches, of `Depths`."""
_MARKERS: Final = ("o", "s", "^", "D", "v", "P", "X", "<", ">", "h", "*", "p")


@dataclass(frozen=True, kw_only=True)
class Line:
    """One method."""

    label: str
    lengths: Sequence[float]
    values: Sequence[float]
    low: Sequence[float] = ()
    """Lower edge of its band; empty for none."""
    high: Sequence[float] = ()


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class Lengths(View):
    """Lines over lengths."""

    lines: Sequence[Line]
    label: str = "Perplexity"
    """What is shown, with its protocol."""
    across: str = "Test length (tokens)"
    """What runs along the bottom."""
    trained: Sequence[int] = ()
    """Training lengths, each marked by a dashed line."""
    trained_word: str = "trained at"
    """The words before each of them."""
    reference: tuple[str, float] | None = None
    """Name and value of a level to compare with, marked by a dotted line."""
    doubling: bool = True
    """Whether lengths that double are equally far apart."""
    logarithmic: bool = True
    """Whether the axis of values is logarithmic."""
    limits: tuple[float, float] | None = None
    """Range of the axis of values; by default that of the values."""
    bands: bool = False
    """Whether the lines' bands are drawn too."""

    def draw(self) -> Figure:
        """Return the drawn plot; its marks have the ids `trained` and `reference`."""
        with context():
            figure = blank(6.4, 3.6)
            axes = figure.add_axes((0.1, 0.14, 0.62, 0.74 if self.heading else 0.8))
            self._paint(axes)
            axes.set_title(self.heading or "")
            figure.legend(loc="center left", bbox_to_anchor=(0.74, 0.55))
            return figure

    def draw_on(self, axes: Axes) -> None:
        """Draw into axes of your own, beside lines that are there."""
        (chosen,) = axes_list(axes, 1)
        self._paint(chosen)
        chosen.legend()

    def _paint(self, axes: Axes) -> None:
        # Lines that an earlier plot drew into the same axes.
        there = [line for line in axes.lines if line.get_gid() == "line"]
        every = {float(length) for line in self.lines for length in line.lengths}
        if not every:
            raise InputError("there is no length to plot: give at least one evaluation.")
        every |= {float(x) for line in there for x in np.asarray(line.get_xdata())}
        for number, line in enumerate(self.lines):
            _draw_line(axes, len(there) + number, line, bands=self.bands)
        for length in self.trained:
            mark = axes.axvline(length, color=INK, linewidth=0.8, linestyle=(0, (4, 3)))
            mark.set_gid("trained")
            axes.annotate(
                f"{self.trained_word} {length:,}", (length, 0.99),
                xycoords=("data", "axes fraction"), xytext=(3, 0),
                textcoords="offset points", va="top", fontsize=7,
            )  # fmt: skip
        if self.reference is not None:
            name, value = self.reference
            level = axes.axhline(value, color=INK, linewidth=0.8, linestyle=":", label=name)
            level.set_gid("reference")
        axes.set_xlabel(self.across)
        axes.set_ylabel(self.label)
        if self.doubling:
            _doubling(axes, sorted(every))
        if self.logarithmic:
            _logarithmic(axes)
        if self.limits is not None:
            axes.set_ylim(*self.limits)
        axes.grid(color=RULE, linewidth=0.5)
        axes.spines[["top", "right"]].set_visible(False)


def _draw_line(axes: Axes, number: int, line: Line, *, bands: bool) -> None:
    colour, marker = _COLOURS[number % len(_COLOURS)], _MARKERS[number % len(_MARKERS)]
    order = np.argsort(line.lengths)
    lengths, values = np.asarray(line.lengths)[order], np.asarray(line.values)[order]
    style = "-" if number < len(_COLOURS) else (0, (5, 1.5))
    axes.plot(
        lengths, values, color=colour, marker=marker, markersize=4, linewidth=1.2,
        linestyle=style, label=line.label, gid="line",
    )  # fmt: skip
    if bands and len(line.low):
        low, high = np.asarray(line.low)[order], np.asarray(line.high)[order]
        axes.fill_between(lengths, low, high, color=colour, alpha=0.2, linewidth=0, zorder=1)


def _doubling(axes: Axes, lengths: list[float]) -> None:
    """Label the lengths that occur, or powers of two where they are many."""
    axes.set_xscale("log", base=2)
    few = len(lengths) <= 10
    axes.xaxis.set_major_locator(FixedLocator(lengths) if few else LogLocator(base=2, numticks=10))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))


def _logarithmic(axes: Axes) -> None:
    axes.set_yscale("log")
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,g}"))
    axes.yaxis.set_minor_formatter(FuncFormatter(_minor))
    axes.tick_params(axis="y", which="minor", labelsize=7)
    low, high = axes.get_ylim()
    if high < 10 * low:
        # Within a decade powers of ten, 2 and 5 may all be missing.
        axes.yaxis.set_major_locator(MaxNLocator(nbins=6))
        axes.yaxis.set_minor_locator(NullLocator())


def _minor(value: float, _: int) -> str:
    """Label 2 and 5 between powers of ten."""
    lead = value / 10 ** np.floor(np.log10(value) + 1e-9)
    return f"{value:,g}" if round(lead) in (2, 5) else ""


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class Depths(View):
    """One model's heat map."""

    accuracy: Float[np.ndarray, "depths lengths"]
    """NaN where there is no number."""
    depths: Sequence[float]
    """Shares of the text, 0 to 1."""
    lengths: Sequence[int]

    def draw(self) -> Figure:
        """Return the drawn map; its axes have the id `depths`."""
        width, height = _CELL_WIDTH * len(self.lengths), _CELL_HEIGHT * len(self.depths)
        with context():
            figure = blank(_LEFT + width + _RIGHT, _TOP + height + _BOTTOM)
            box = Box(left=_LEFT, top=_TOP, width=width, height=height)
            axes = box.axes(figure, "depths")
            axes.set_facecolor(RULE)
            image = axes.imshow(self.accuracy, vmin=0, vmax=1, cmap="viridis", aspect="auto")
            for row, column in np.ndindex(*self.accuracy.shape):
                value = self.accuracy[row, column]
                ink = "white" if value <= 0.6 else INK
                text = "-" if np.isnan(value) else f"{value:.2f}"
                axes.text(column, row, text, ha="center", va="center", color=ink)
            axes.set_xticks(range(len(self.lengths)), [f"{length:,}" for length in self.lengths])
            axes.set_yticks(range(len(self.depths)), [f"{depth:.0%}" for depth in self.depths])
            axes.set_xlabel("Length")
            axes.set_ylabel("Depth")
            axes.set_title(self.heading or "")
            figure.colorbar(image, cax=box.bar().axes(figure, "colorbar"))
            return figure
