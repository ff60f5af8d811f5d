"""Maps in rows and columns, a panel and a colour bar each; `Grid` is the heads of one layer.

Query positions run down with 0 at the top, key positions across; invisible entries are blank. The
grid is laid out as in the appendix of the CABLE paper (EMNLP 2025): twelve heads make four rows of
three, titled "Head 1" to "Head 12", each with its own range.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Float, Int64
from matplotlib.figure import Figure

from headscape.captures.capture_file import Capture
from headscape.captures.labels import head_titles, position_label
from headscape.errors import at_least
from headscape.plots.colour import Scale, limits, scales
from headscape.plots.figure_layout import Layout, shape
from headscape.plots.panel import draw_bar, draw_map
from headscape.plots.view import View, select


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class Coloured(View):
    """A view of panels, each with its own colour range unless they share one."""

    width: float | None = None
    """Width of the figure in inches; by default panels have a fixed size."""
    shared_scale: bool = False
    """One range for all panels instead of one each."""
    colormap: str | None = None
    """A matplotlib colour map in place of the chosen one."""
    weights: bool = False
    """Whether these are attention weights, which are coloured by their logarithm."""

    def _scales(
        self, panels: Iterable[np.ndarray], ranges: Sequence[tuple[float, float]] | None = None
    ) -> list[Scale]:
        """Return a scale per panel; `ranges` replaces the lowest and highest values of each."""
        found = list(ranges or map(limits, panels))
        if self.weights:
            return [Scale.of_weights(self.colormap)] * len(found)
        if self.shared_scale:
            found = [(min(low for low, _ in found), max(high for _, high in found))] * len(found)
        return scales(found, self.colormap)


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


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class Grid(Maps):
    """The heads of one layer, a panel each; shows itself in a notebook.

    Example:
        >>> import headscape as hs
        >>> model = hs.load(hs.GPT2.from_preset("nano", encoding="alibi", vocabulary=257))
        >>> grid = model.capture([5, 6, 7, 8]).grid(heads=[0, 3], columns=2, width=3.3)
        >>> grid.save("figure.pdf").name
        'figure.pdf'
    """

    @classmethod
    def of(
        cls,
        capture: Capture,
        quantity: str | None = None,
        layer: int = -1,
        heads: Sequence[int] | None = None,
        **options: Any,
    ) -> "Grid":
        """Return the grid of one captured layer.

        Args:
            capture: The capture to show.
            quantity: content, bias, final or weights; by default `bias`, or `final` where the
                encoding adds none.
            layer: Counted from 0; -1 is the last captured layer.
            heads: Counted from 0, -1 is the last; by default all captured heads.
            options: Fields of `Maps`, such as `columns`, `width` (inches) and `heading`.
        """
        chosen = select("grid", capture, quantity, layer, heads)
        return cls(
            maps=capture.drawn(chosen.quantity, chosen.layer, chosen.heads),
            titles=head_titles(chosen.heads),
            edges=capture.drawn_edges,
            unit=capture.unit,
            weights=chosen.quantity == "weights",
            **chosen.named | options,
        )
