"""Maps in rows and columns, a panel and a colour bar each: the base of several views.

Query positions run down with 0 at the top, key positions across; invisible entries are blank.
"""

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float, Int64
from matplotlib.figure import Figure

from headscape.captures.labels import position_label
from headscape.errors import at_least
from headscape.plots.colour import Scale
from headscape.plots.coloured import Coloured
from headscape.plots.figure_layout import Layout, shape
from headscape.plots.panel import draw_bar, draw_map


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class Maps(Coloured):
    """Maps of one size."""

    maps: Float[np.ndarray, "_ t s"]
    titles: tuple[str, ...]
    """One per panel."""
    columns: int | None = None
    """Panels in a row; by default an upright page, 3 for 12 panels."""
    edges: Int64[np.ndarray, " edges"] | None = None
    """Cell boundaries of reduced maps."""
    unit: str = "tokens"
    """What positions count: tokens, or frames of sound."""
    ranges: tuple[tuple[float, float], ...] | None = None
    """Lowest and highest value per panel, for figures that are to be compared."""

    def __post_init__(self) -> None:
        super().__post_init__()
        at_least(1, columns=self.columns)

    def scales(self) -> list[Scale]:
        """Return the colour scale of every panel."""
        return self._scales(self.maps, self.ranges)

    def draw(self) -> Figure:
        """Return the drawn panels; axes have the ids `panel-1`, `colorbar-1` and so on."""
        count = len(self.maps)
        layout = Layout(
            panels=count,
            columns=min(self.columns or shape(count)[1], count),
            panel=2.3,
            left=0.62,
            right=0.9,
            top=0.32,
            bottom=0.5,
            across=1.25,
            down=0.55,
            heading=self.heading,
            width=self.width,
        )
        return layout.draw(self._paint)

    def _paint(self, layout: Layout) -> Figure:
        figure = layout.figure()
        panels = zip(self.maps, self.titles, self.scales(), strict=True)
        for index, (values, title, scale) in enumerate(panels):
            box = layout.box(index)
            axes = box.axes(figure, f"panel-{index + 1}")
            axes.set_title(layout.title(title), pad=layout.font / 2)
            image = draw_map(axes, values, scale, self.edges)
            draw_bar(figure, image, scale, box.bar().axes(figure, f"colorbar-{index + 1}"))
            first, last = layout.outer(index)
            if first:
                axes.set_ylabel(position_label("Query", self.unit))
            if last:
                axes.set_xlabel(position_label("Key", self.unit))
            if layout.width is not None:
                # All panels have the same positions, and a given width has no room to repeat them.
                axes.tick_params(labelleft=first, labelbottom=last)
        return figure
