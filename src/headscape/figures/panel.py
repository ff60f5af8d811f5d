"""One map in one panel: queries down, keys across, a colour bar at the right.

Colour-bar ticks come from matplotlib's own rule with at most nine intervals, which is what it
allows itself on a bar tall enough: with it all sixty ranges printed in Figures 11 to 15 of the
CABLE paper (EMNLP 2025) can show exactly their printed labels. Centred scales show only the part of
the bar that occurs, so their labels follow the same rule.
"""

from dataclasses import dataclass
from typing import Final

import numpy as np
from jaxtyping import Float, Int64
from matplotlib.axes import Axes
from matplotlib.colorbar import Colorbar
from matplotlib.figure import Figure
from matplotlib.image import AxesImage
from matplotlib.ticker import MaxNLocator

from headscape.figures.style import Scale

_STEPS: Final = [1, 2, 2.5, 5, 10]
_BAR_PAD: Final = 0.07
_BAR_WIDTH: Final = 0.11


@dataclass(frozen=True, kw_only=True)
class Box:
    """A place for a panel on a figure, in inches from the top left corner."""

    left: float
    top: float
    width: float
    height: float

    def axes(self, figure: Figure) -> Axes:
        """Axes over the place."""
        wide, high = (float(side) for side in figure.get_size_inches())
        bottom = 1 - (self.top + self.height) / high
        return figure.add_axes((self.left / wide, bottom, self.width / wide, self.height / high))

    def bar(self) -> "Box":
        """A place for a colour bar, right of this one and as tall."""
        left = self.left + self.width + _BAR_PAD
        return Box(left=left, top=self.top, width=_BAR_WIDTH, height=self.height)


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
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_locator(MaxNLocator(nbins=6, steps=_STEPS, integer=True))
    return image


def draw_bar(figure: Figure, image: AxesImage, scale: Scale, axes: Axes) -> Colorbar:
    """Draw the colour bar of `image` on `axes`, from the scale's low to its high."""
    bar = figure.colorbar(image, cax=axes)
    if not scale.logarithmic:
        bar.locator = MaxNLocator(nbins=9, steps=_STEPS)
        axes.set_ylim(scale.low, scale.high)
        bar.update_ticks()
    # One small picture instead of 256 rectangles, between which SVG viewers leave white hairlines.
    for strip in axes.collections:
        strip.set_rasterized(True)
    bar.outline.set_linewidth(0.6)
    return bar
