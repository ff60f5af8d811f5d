"""One map in one panel: queries down, keys across, a colour bar at the right.

Colour-bar ticks follow matplotlib's own rule with at most nine intervals, which is what it allows
itself on a tall bar: with it all sixty ranges printed in Figures 11 to 15 of the CABLE paper
(EMNLP 2025) can show exactly their printed labels. Small panels have fewer ticks.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import matplotlib as mpl
import numpy as np
from jaxtyping import Float, Int64
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colorbar import Colorbar
from matplotlib.colors import Normalize
from matplotlib.figure import Figure
from matplotlib.image import AxesImage
from matplotlib.ticker import MaxNLocator

from headscape.plots.colour import Scale, number, with_range
from headscape.plots.style import INK

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


def draw_map(
    axes: Axes,
    values: Float[np.ndarray, "t s"],
    scale: Scale,
    edges: Int64[np.ndarray, " edges"] | None = None,
) -> AxesImage:
    """Draw a map, or with `edges` a reduced one, on axes that count tokens."""
    rows, columns = values.shape
    bottom, right = (rows, columns) if edges is None else (edges[-1], edges[-1])
    image = axes.imshow(
        np.ma.masked_invalid(values),
        cmap=scale.colormap,
        norm=scale.norm,
        extent=(-0.5, right - 0.5, bottom - 0.5, -0.5),
        aspect="auto",
    )
    intervals = _room(axes, letters=2.8, most=6)
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_locator(MaxNLocator(nbins=intervals, steps=_STEPS, integer=True))
    return image


def draw_bar(figure: Figure, image: AxesImage, scale: Scale, axes: Axes) -> Colorbar:
    """Draw the colour bar of `image` on `axes`, from the scale's low to its high."""
    bar = figure.colorbar(image, cax=axes)
    if scale.kind == "single":
        bar.set_ticks([scale.low], labels=[number(scale.low)])
    elif scale.kind != "logarithmic":
        # Equal steps on the bar are equal steps of value, on both slopes of a diverging scale too.
        axes.set_yscale("linear")
        bar.locator = MaxNLocator(nbins=_room(axes, letters=2.2, most=9), steps=_STEPS)
        axes.set_ylim(scale.low, scale.high)
        bar.update_ticks()
        if scale.low < 0 < scale.high:
            _mark_zero(axes, 0.0, scale)
    _finish(bar)
    return bar


def draw_relative_bar(figure: Figure, every: Sequence[Scale], axes: Axes, each: str) -> Colorbar:
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
    bar.set_label(f"in each {each}")
    _finish(bar)
    return bar


def _mark_zero(axes: Axes, at: float, scale: Scale) -> None:
    """Draw a line across the bar, in ink or white, whichever stands out."""
    red, green, blue, _ = scale.colormap(float(scale.norm(0.0)))
    dark = 0.3 * red + 0.6 * green + 0.1 * blue < 0.5
    line = axes.axhline(at, color="white" if dark else INK, linewidth=1)
    line.set_gid("zero")


def _finish(bar: Colorbar) -> None:
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
