"""One map in one panel: queries down, keys across, a colour bar at the right.

Colour-bar ticks follow matplotlib's own rule with at most nine intervals, which is what it allows
itself on a tall bar: with it all sixty ranges printed in Figures 11 to 15 of the CABLE paper
(EMNLP 2025) can show exactly their printed labels. Small panels have fewer ticks.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil, floor, log10
from typing import Final

import matplotlib as mpl
import numpy as np
from jaxtyping import Float, Int64
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colorbar import Colorbar
from matplotlib.colors import Normalize
from matplotlib.figure import Figure, SubFigure
from matplotlib.font_manager import FontProperties
from matplotlib.image import AxesImage
from matplotlib.ticker import FuncFormatter, MaxNLocator, NullFormatter, NullLocator

from headscape.captures.pooling import CellReducer
from headscape.plots.colour import Scale, number, with_range
from headscape.plots.style import DPI, INK, text_width

_STEPS: Final = [1, 2, 2.5, 5, 10]


@dataclass(frozen=True, kw_only=True)
class Box:
    """A place for a panel on a figure, in inches from the top left corner."""

    left: float
    top: float
    width: float
    height: float

    def axes(self, figure: Figure, gid: str) -> Axes:
        """Return new axes over the place, with an id for SVG and tests."""
        wide, high = (float(side) for side in figure.get_size_inches())
        bottom = 1 - (self.top + self.height) / high
        axes = figure.add_axes((self.left / wide, bottom, self.width / wide, self.height / high))
        axes.set_gid(gid)
        return axes

    def bar(self) -> "Box":
        """Return the place of a colour bar, right of this one and as tall."""
        pad = min(max(0.03 * self.width, 0.03), 0.07)
        width = min(max(0.05 * self.width, 0.06), 0.11)
        left = self.left + self.width + pad
        return Box(left=left, top=self.top, width=width, height=self.height)


def pixel_step(cells: int, side: float) -> tuple[int, float]:
    """Return how many cells a side share one drawn cell, and the panel's side in inches.

    The side is near the one given, and every drawn cell is a whole number of pixels at DPI. Cells
    share one where they are more than 1.4 times the pixels, by a number that divides them if a
    small one does.
    """
    pixels = side * DPI
    least = ceil(cells / (1.4 * pixels))
    step = next((n for n in range(least, 2 * least + 1) if cells % n == 0), least)
    drawn = ceil(cells / step)
    return step, max(1, round(pixels / drawn)) * drawn / DPI


def cell_means(values: Float[np.ndarray, "t s"], step: int) -> Float[np.ndarray, "r c"]:
    """Return the mean of the finite values of every `step` x `step` entries; NaN where none is."""
    if step == 1:
        return values
    edges = [np.append(np.arange(0, size, step), size) for size in values.shape]
    cells = CellReducer(edges[0], edges[1])
    cells.add(slice(0, len(values)), values[None])
    means: np.ndarray = cells.result()["mean"][0]
    return means


def draw_map(
    axes: Axes,
    values: Float[np.ndarray, "t s"],
    scale: Scale,
    edges: Int64[np.ndarray, " edges"] | None = None,
    step: int | None = None,
) -> AxesImage:
    """Draw a map, or with `edges` a reduced one, on axes that count tokens.

    With `step`, every `step` x `step` entries are drawn as one cell of whole pixels.
    """
    rows, columns = values.shape
    bottom, right = (rows, columns) if edges is None else (edges[-1], edges[-1])
    if step is not None and step > 1:
        values = cell_means(values, step)
        if edges is None:
            bottom, right = (step * cells for cells in values.shape)
    image = axes.imshow(
        np.ma.masked_invalid(values),
        cmap=scale.colormap,
        norm=scale.norm,
        extent=(-0.5, right - 0.5, bottom - 0.5, -0.5),
        aspect="auto",
        interpolation="auto" if step is None else "nearest",
    )
    intervals = _room(axes, letters=2.8, most=6)
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_locator(MaxNLocator(nbins=intervals, steps=_STEPS, integer=True))
    return image


def draw_bar(
    figure: Figure | SubFigure,
    image: AxesImage,
    scale: Scale,
    axes: Axes | None,
    label: str | None = None,
    values: Float[np.ndarray, "..."] | None = None,
) -> Colorbar:
    """Draw the colour bar of `image`, from the scale's low to its high, named by `label`.

    It has an arrow at an end that `values` lie beyond; by default, those of the image. Without
    `axes` it stands right of the image's, as tall as the image.
    """
    if values is None:
        values = np.ma.filled(image.get_array(), np.nan)  # type: ignore[arg-type]
    extend = scale.beyond(values)
    if axes is None:
        axes = image.axes.inset_axes((1.03, 0, 0.05, 1))
    bar = figure.colorbar(image, extend=extend, cax=axes)
    if scale.kind == "single":
        bar.set_ticks([scale.low], labels=[number(scale.low)])
    elif scale.kind == "logarithmic":
        # matplotlib writes powers as formulas, which are off here.
        bar.formatter = FuncFormatter(lambda value, _: f"{value:g}")
        bar.minorformatter = NullFormatter()
    elif scale.kind == "symlog":
        bar.set_ticks(_powers(scale, _room(axes, letters=2.2, most=9)))
        bar.formatter = FuncFormatter(lambda value, _: number(value))
        bar.minorlocator = NullLocator()
        _mark_zero(axes, 0.0, scale)
    else:
        # Equal steps on the bar are equal steps of value, on both slopes of a diverging scale too.
        axes.set_yscale("linear")
        bar.locator = MaxNLocator(nbins=_room(axes, letters=2.2, most=9), steps=_STEPS)
        axes.set_ylim(scale.low, scale.high)
        bar.update_ticks()
        if scale.low < 0 < scale.high:
            _mark_zero(axes, 0.0, scale)
    _finish(bar, [label])
    return bar


def make_room(axes: Axes) -> None:
    """Shrink a user's axes until bar and labels are in the figure and clear of other axes' places.

    A layout engine does so by itself.
    """
    figure = axes.figure
    assert figure is not None
    if figure.get_layout_engine() is not None:
        return
    to_figure = figure.transSubfigure.inverted()
    right = axes.get_position(original=True).x1
    left = max((end for end in _ends(figure, axes) if end <= axes.get_position().x0), default=0.0)
    # Square cells use a part of their place, so that a step may have to be taken again.
    for _ in range(10):
        box, drawn = axes.get_position(original=True), axes.get_tightbbox()
        assert drawn is not None
        drawn = drawn.transformed(to_figure)
        sides = [max(side, 0.0) for side in (left - drawn.x0, -drawn.y0, drawn.x1 - right)]
        if max(sides) < 1e-4 or sides[0] + sides[2] > box.width / 2 or sides[1] > box.height / 2:
            break
        x, y, beyond = sides
        axes.set_position((box.x0 + x, box.y0 + y, box.width - x - beyond, box.height - y))
        # matplotlib takes axes of a given position out of `bbox_inches="tight"`.
        axes.set_in_layout(True)


def _ends(figure: Figure | SubFigure, axes: Axes) -> list[float]:
    """Return where the places of a figure's other axes end, whose bars may end there too."""
    grid = [other.get_subplotspec() for other in figure.axes if other is not axes]
    return [place.get_position(figure).x1 for place in grid if place is not None]  # type: ignore[arg-type]


def draw_relative_bar(
    figure: Figure, every: Sequence[Scale], axes: Axes, each: str, label: str | None = None
) -> Colorbar:
    """Draw the bar of panels that each have a range of their own: from lowest to highest."""
    scale = with_range(every)
    mappable = ScalarMappable(Normalize(0, 1), scale.colormap)
    bar = figure.colorbar(mappable, cax=axes)
    if scale.kind == "diverging":
        bar.set_ticks([0, 0.5, 1], labels=["lowest", "0", "highest"])
        _mark_zero(axes, 0.5, scale)
    elif scale.kind == "single":
        bar.set_ticks([0.5], labels=["one value"])
    else:
        bar.set_ticks([0, 1], labels=["lowest", "highest"])
    _finish(bar, [label and f"{label}, in each {each}", f"in each {each}"])
    return bar


def _powers(scale: Scale, intervals: int) -> list[float]:
    """Return powers of ten of both signs and 0, as many as there is room for."""
    highest = floor(log10(scale.high))
    every = max(1, ceil(6 / intervals))
    powers = [10.0**n for n in range(highest, highest - 3, -every)]
    return [*(-power for power in powers), 0.0, *reversed(powers)]


def _mark_zero(axes: Axes, at: float, scale: Scale) -> None:
    """Draw a line across the bar, in ink or white, whichever stands out."""
    red, green, blue, _ = scale.colormap(float(scale.norm(0.0)))
    dark = 0.3 * red + 0.6 * green + 0.1 * blue < 0.5
    line = axes.axhline(at, color="white" if dark else INK, linewidth=1)
    line.set_gid("zero")


def _finish(bar: Colorbar, labels: Sequence[str | None]) -> None:
    """Name the bar by the first label that is not longer than the bar, and draw it plainly."""
    figure = bar.ax.get_figure(root=True)
    assert figure is not None
    room = bar.ax.get_position().height * figure.get_figheight() + 0.1
    points = FontProperties(size=mpl.rcParams["axes.labelsize"]).get_size_in_points()
    fitting = (label for label in labels if label and text_width(label, points) <= room)
    bar.set_label(next(fitting, ""))
    # One small picture instead of 256 rectangles, between which SVG viewers leave white hairlines.
    for strip in bar.ax.collections:
        strip.set_rasterized(True)
    bar.outline.set_linewidth(0.6)


def _room(axes: Axes, *, letters: float, most: int) -> int:
    """Return how many tick intervals fit along the axes' height, at least 2."""
    figure = axes.get_figure(root=True)
    assert figure is not None
    points = axes.get_position().height * figure.get_figheight() * 72
    return min(max(int(points / (letters * mpl.rcParams["font.size"])), 2), most)
