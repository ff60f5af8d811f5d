"""Where the panels of a figure lie: rows and columns of equal panels with fixed or measured gaps.

Without a given width panels have a fixed size, so the figure grows with their number and ticks do
not depend on it. With a given width the gaps are measured from the drawn labels, the panels take
what remains, and the text shrinks with them, to no less than 6 points.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from math import ceil, isqrt
from typing import Final

from matplotlib.figure import Figure

from headscape.errors import InputError
from headscape.plots.panel import Box
from headscape.plots.style import (
    DPI,
    FONT,
    PRINT_DPI,
    add_heading,
    blank,
    context,
    whole_pixels,
    wrap,
)

_LEAST_PANEL: Final = 0.45
_MARGIN: Final = 0.03
_SPACE: Final = 0.08


def shape(panels: int) -> tuple[int, int]:
    """Return rows and columns: up to three panels in a row, more as an upright page."""
    if panels <= 3:
        return 1, panels
    widest = isqrt(panels)
    columns = min((widest, max(2, widest - 1)), key=lambda c: (ceil(panels / c) * c - panels, -c))
    return ceil(panels / columns), columns


@dataclass(frozen=True, kw_only=True)
class Layout:
    """Panels in reading order; lengths are in inches."""

    panels: int
    columns: int
    panel: float
    """Width of a panel."""
    ratio: float = 1.0
    """Height of a panel over its width."""
    left: float
    right: float
    top: float
    """Height of the titles above the first row, without heading and legend."""
    bottom: float
    across: float
    """Gap between columns, with the labels in it."""
    down: float
    legend: bool = False
    """Whether a line is kept free for a legend."""
    heading: str | None = None
    font: float = FONT
    """Size of labels in points."""
    width: float | None = None
    """Width of the figure where it was given."""

    @property
    def rows(self) -> int:
        """Rows of panels."""
        return ceil(self.panels / self.columns)

    @property
    def size(self) -> tuple[float, float]:
        """Width and height of the figure."""
        height = self.rows * (self.panel * self.ratio + self.down) - self.down
        return self._across, whole_pixels(self._above + height + self.bottom)

    def box(self, index: int) -> Box:
        """Return the place of a panel."""
        row, column = divmod(index, self.columns)
        height = self.panel * self.ratio
        return Box(
            left=self.left + column * (self.panel + self.across),
            top=self._above + row * (height + self.down),
            width=self.panel,
            height=height,
        )

    def outer(self, index: int) -> tuple[bool, bool]:
        """Return whether a panel is the first of its row and whether it is the last of its column.

        These carry the axis labels.
        """
        return index % self.columns == 0, index + self.columns >= self.panels

    def ends_row(self, index: int) -> bool:
        """Return whether no panel follows in the row; its colour bar carries the label."""
        return (index + 1) % self.columns == 0 or index + 1 == self.panels

    def figure(self) -> Figure:
        """Return an empty figure of this size, with its heading."""
        figure = blank(*self.size, DPI if self.width is None else PRINT_DPI)
        add_heading(figure, self._wrapped(), self.font + 1)
        return figure

    def draw(self, paint: Callable[["Layout"], Figure]) -> Figure:
        """Return the figure that `paint` makes, with measured gaps if a width was given."""
        layout = self
        if self.width is not None:
            layout = self.with_panel((self.width - self.left - self.right) / self.columns * 0.6)
            for _ in range(3):
                with context(layout.font):
                    layout = layout.measured(paint(layout))
        with context(layout.font):
            return paint(layout)

    @property
    def _above(self) -> float:
        lines = (self._wrapped().count("\n") + 1) if self.heading else 0
        heading = 0.06 + lines * (self.font + 1) * 1.35 / 72 if lines else 0
        return whole_pixels(self.top + heading + (1.8 * self.font / 72 if self.legend else 0))

    def title(self, text: str) -> str:
        """Return a panel's title, in several lines if it is longer than a given width allows."""
        return text if self.width is None else wrap(text, self.panel + 0.3, self.font + 1)

    def _wrapped(self) -> str:
        return wrap(self.heading or "", self._across, self.font + 1)

    @property
    def _across(self) -> float:
        across = self.left + self.columns * (self.panel + self.across) - self.across + self.right
        return self.width or across

    def with_panel(self, panel: float) -> "Layout":
        """Return the layout with panels of this width and text to match."""
        panel = max(panel, _LEAST_PANEL)
        return replace(self, panel=panel, font=min(max(5 + 1.5 * panel, 6), FONT))

    def measured(self, figure: Figure) -> "Layout":
        """Return the layout whose gaps are what the labels of `figure` take."""
        assert self.width is not None
        sides = [_overhang(figure, index, self.box(index)) for index in range(self.panels)]
        first = max(side[0] for index, side in enumerate(sides) if self.outer(index)[0])
        inner = max((side[0] for i, side in enumerate(sides) if not self.outer(i)[0]), default=0)
        top = max(side[1] for side in sides)
        right = max(side[2] for i, side in enumerate(sides) if (i + 1) % self.columns == 0)
        beside = max((side[2] for i, side in enumerate(sides) if not self.ends_row(i)), default=0)
        last = max(side[3] for index, side in enumerate(sides) if self.outer(index)[1])
        between = max((side[3] for i, side in enumerate(sides) if not self.outer(i)[1]), default=0)
        across = beside + inner + _SPACE
        room = self.width - first - right - 2 * _MARGIN - (self.columns - 1) * across
        panel = room / self.columns
        if panel < _LEAST_PANEL:
            raise InputError(
                f"{self.columns} columns do not fit into {self.width:g} inches; choose fewer "
                "columns or a larger width."
            )
        gaps = replace(
            self,
            left=first + _MARGIN,
            right=right + _MARGIN,
            top=top + _MARGIN,
            bottom=last + _MARGIN,
            across=across,
            down=between + top + _SPACE,
        )
        return gaps.with_panel(panel)


def _overhang(figure: Figure, index: int, box: Box) -> tuple[float, float, float, float]:
    """Return how far a panel's labels and colour bar reach beyond it: left, top, right, bottom."""
    canvas, height = figure.canvas, figure.get_figheight()
    renderer = canvas.get_renderer()  # type: ignore[attr-defined]
    found = [
        bounds
        for axes in figure.axes
        if axes.get_gid() in {f"panel-{index + 1}", f"colorbar-{index + 1}"}
        if (bounds := axes.get_tightbbox(renderer)) is not None
    ]
    dpi = figure.dpi
    return (
        max(0.0, box.left - min(each.x0 for each in found) / dpi),
        max(0.0, max(each.y1 for each in found) / dpi - (height - box.top)),
        max(0.0, max(each.x1 for each in found) / dpi - box.left - box.width),
        max(0.0, height - box.top - box.height - min(each.y0 for each in found) / dpi),
    )
