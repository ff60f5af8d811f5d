"""One panel per head, laid out as in the appendix of the CABLE paper (EMNLP 2025).

Twelve heads make four rows of three, titled "Head 1" to "Head 12": query positions down with 0 at
the top, key positions across, a colour bar per panel with its own range, invisible entries blank.
Panels have a fixed size in inches, so the figure grows with the number of heads and the ticks do
not depend on it.
"""

from dataclasses import dataclass
from math import ceil, isqrt
from typing import Any

import numpy as np
from jaxtyping import Float, Int64
from matplotlib.figure import Figure

from headscape.arrays.capture_file import Capture
from headscape.figures.panel import Box, draw_bar, draw_map
from headscape.figures.style import Scale, blank, context, one_meaning

_PANEL, _LEFT, _RIGHT, _TOP, _BOTTOM, _ACROSS, _DOWN = 2.3, 0.62, 0.9, 0.32, 0.5, 1.25, 0.55


def shape(panels: int) -> tuple[int, int]:
    """Rows and columns: up to three panels in a row, more in an upright page with few gaps."""
    if panels <= 3:
        return 1, panels
    widest = isqrt(panels)
    columns = min((widest, max(2, widest - 1)), key=lambda c: (ceil(panels / c) * c - panels, -c))
    return ceil(panels / columns), columns


@dataclass(frozen=True, kw_only=True, eq=False)
class Grid:
    """The maps of one layer, all heads."""

    maps: Float[np.ndarray, "h t s"]
    titles: tuple[str, ...]
    columns: int | None = None
    """Panels in a row; by default an upright page, 3 for 12 heads."""
    edges: Int64[np.ndarray, " edges"] | None = None
    """Cell boundaries of reduced maps."""
    shared_scale: bool = False
    """One range for all panels instead of one each."""
    limits: tuple[tuple[float, float], ...] | None = None
    """A given range per head, for pictures that are to be compared."""
    colormap: str | None = None
    """A matplotlib colour map in place of the chosen one."""
    weights: bool = False
    """Whether these are attention weights, which are coloured by their logarithm."""
    heading: str | None = None
    """A line above the panels."""

    @classmethod
    def of(cls, capture: Capture, layer: int, quantity: str, **options: Any) -> "Grid":
        """The grid of a captured layer; `options` are the fields above."""
        maps = capture.visible(layer, quantity)
        titles = tuple(f"Head {head + 1}" for head in capture.heads)
        weights = quantity == "weights"
        return cls(maps=maps, titles=titles, edges=capture.edges, weights=weights, **options)

    def scales(self) -> list[Scale]:
        """The colour scale of every panel."""
        if self.weights:
            return [Scale.of_weights(self.colormap)] * len(self.maps)
        if self.shared_scale and self.limits is None:
            return [Scale.of(self.maps, self.colormap)] * len(self.maps)
        if self.limits is not None:
            scales = [Scale.between(low, high, self.colormap) for low, high in self.limits]
        else:
            scales = [Scale.of(each, self.colormap) for each in self.maps]
        return scales if self.colormap else one_meaning(scales)

    def draw(self) -> Figure:
        """Draw the grid; axes carry the ids `head-1`, `colorbar-1` and so on."""
        columns = self.columns or shape(len(self.maps))[1]
        rows = ceil(len(self.maps) / columns)
        above = _TOP + (0.3 if self.heading else 0)
        with context():
            figure = blank(
                _LEFT + columns * _PANEL + (columns - 1) * _ACROSS + _RIGHT,
                above + rows * _PANEL + (rows - 1) * _DOWN + _BOTTOM,
            )
            if self.heading:
                height = figure.get_size_inches()[1]
                figure.suptitle(self.heading, y=1 - 0.12 / height, va="top", fontsize=10)
            for index, (values, scale) in enumerate(zip(self.maps, self.scales(), strict=True)):
                row, column = divmod(index, columns)
                box = Box(
                    left=_LEFT + column * (_PANEL + _ACROSS),
                    top=above + row * (_PANEL + _DOWN),
                    width=_PANEL,
                    height=_PANEL,
                )
                axes = box.axes(figure)
                axes.set_gid(f"head-{index + 1}")
                axes.set_title(self.titles[index], pad=4)
                image = draw_map(axes, values, scale, self.edges)
                bar = box.bar().axes(figure)
                bar.set_gid(f"colorbar-{index + 1}")
                draw_bar(figure, image, scale, bar)
                if column == 0:
                    axes.set_ylabel("Query position")
                if index + columns >= len(self.maps):
                    axes.set_xlabel("Key position")
            return figure
