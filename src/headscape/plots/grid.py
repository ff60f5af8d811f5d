"""Maps in rows and columns, a panel and a colour bar each; `Grid` is the heads of one layer.

Query positions run down with 0 at the top, key positions across; invisible entries are blank. The
grid is laid out as in the appendix of the CABLE paper (EMNLP 2025): twelve heads make four rows of
three, titled "Head 1" to "Head 12", each with its own range. Positions are written at the left and
the lower edge of the grid, the quantity at the last colour bar of a row.

Without a given width every cell is a whole number of pixels; above 644 tokens a pixel is the mean
of some of them.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from jaxtyping import Float, Int64
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from headscape.captures.capture_file import Capture
from headscape.captures.labels import head_titles, position_label, token_texts
from headscape.errors import InputError
from headscape.plots.colour import Scale, check_limits, limits, scales
from headscape.plots.figure_layout import Layout
from headscape.plots.panel import draw_bar, draw_map, make_room, pixel_step
from headscape.plots.style import readable, text_width, whole_pixels
from headscape.plots.view import Panelled, View, axes_list, select

_PANEL: Final = 2.3
_LEAST_TOKEN: Final = 0.08
"""Inches of a panel that a token's label needs."""
_TOKEN_FONT: Final = 6.0


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class Coloured(View):
    """A view whose panels each have a colour range of their own unless they share one."""

    width: float | None = None
    """Width of the figure in inches; by default panels have a fixed size."""
    shared_scale: bool = False
    """One range for all panels instead of one each."""
    limits: tuple[float, float] | None = None
    """Lowest and highest value with a colour of its own, for all panels; by default what occurs."""
    cmap: str | None = None
    """A matplotlib colour map in place of the chosen one."""
    weights: bool = False
    """Whether these are attention weights, which are coloured by their logarithm."""
    label: str | None = None
    """The quantity, as colour bars name it."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_limits(self.limits)

    def _scales(
        self, panels: Iterable[np.ndarray], ranges: Sequence[tuple[float, float]] | None = None
    ) -> list[Scale]:
        """Return a scale per panel; `ranges` replaces the lowest and highest values of each."""
        found = list(ranges or map(limits, panels))
        if self.weights:
            return [Scale.of_weights(self.cmap, self.limits)] * len(found)
        if self.limits is not None:
            found = [self.limits] * len(found)
        elif self.shared_scale:
            found = [(min(low for low, _ in found), max(high for _, high in found))] * len(found)
        return scales(found, self.cmap)


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class Maps(Coloured, Panelled):
    """Maps of one size."""

    maps: Float[np.ndarray, "_ t s"]
    edges: Int64[np.ndarray, " edges"] | None = None
    """Cell boundaries of reduced maps."""
    ranges: tuple[tuple[float, float], ...] | None = None
    """Lowest and highest value per panel, for figures that are to be compared."""
    pieces: tuple[str, ...] | None = None
    """Tokens to write at the axes in place of positions; refused where they are too many."""

    def scales(self) -> list[Scale]:
        """Return the colour scale of every panel."""
        return self._scales(self.maps, self.ranges)

    def draw(self) -> Figure:
        """Return the drawn panels; axes have the ids `panel-1`, `colorbar-1` and so on."""
        step, side = (None, _PANEL) if self.width else pixel_step(self.maps.shape[-1], _PANEL)
        words = self._words(side)
        room = max((text_width(word, _TOKEN_FONT) for word in words), default=0.0)
        layout = self.layout(
            len(self.maps),
            panel=side,
            left=whole_pixels(0.62 + room),
            right=0.95,
            top=0.32,
            bottom=whole_pixels(0.5 + room),
            across=0.8,
            down=0.38,
        )
        figure = layout.draw(lambda layout: self._paint(layout, step))
        self._check_room(_inches(figure.axes[0]))
        return figure

    def draw_on(self, axes: Any) -> None:
        """Draw into axes of your own, one for each panel, with a colour bar beside each."""
        chosen = axes_list(axes, len(self.maps))
        panels = zip(chosen, self.maps, self.titles, self.scales(), strict=True)
        for ax, values, title, scale in panels:
            self._check_room(_inches(ax))
            ax.set_title(title)
            image = draw_map(ax, values, scale, self.edges)
            ax.set_aspect("equal")
            ax.set_ylabel(position_label("Query", self.unit))
            ax.set_xlabel(position_label("Key", self.unit))
            self._name_tokens(ax, self._words(_inches(ax)), first=True, last=True)
            draw_bar(ax.figure, image, scale, None, self.label)
            make_room(ax)

    def _paint(self, layout: Layout, step: int | None) -> Figure:
        figure = layout.figure()
        words = self._words(layout.panel)
        panels = zip(self.maps, self.titles, self.scales(), strict=True)
        for index, (values, title, scale) in enumerate(panels):
            box = layout.box(index)
            axes = box.axes(figure, f"panel-{index + 1}")
            axes.set_title(layout.title(title), pad=layout.font / 2)
            image = draw_map(axes, values, scale, self.edges, step)
            label = self.label if layout.ends_row(index) else None
            draw_bar(figure, image, scale, box.bar().axes(figure, f"colorbar-{index + 1}"), label)
            first, last = layout.outer(index)
            if first:
                axes.set_ylabel(position_label("Query", self.unit))
            if last:
                axes.set_xlabel(position_label("Key", self.unit))
            # All panels have the same positions.
            axes.tick_params(labelleft=first, labelbottom=last)
            self._name_tokens(axes, words, first=first, last=last)
        return figure

    def _check_room(self, side: float) -> None:
        """Refuse tokens that do not fit at a panel of this side."""
        if self.pieces is None or self._words(side):
            return
        if self.edges is not None:
            raise InputError("a reduced capture shows cells of several tokens: leave tokens out.")
        room = int(side / _LEAST_TOKEN)
        raise InputError(
            f"{len(self.pieces)} tokens do not fit at the axes of a panel of {side:.1f} inches, "
            f"which has room for {room}: leave tokens out, or draw fewer columns at a larger width."
        )

    def _words(self, side: float) -> list[str]:
        """Return the tokens' labels; none if a panel of this side has no room for them."""
        if self.pieces is None or self.edges is not None:
            return []
        fit = side >= _LEAST_TOKEN * len(self.pieces)
        return [readable(piece) for piece in self.pieces] if fit else []

    def _name_tokens(self, axes: Axes, words: list[str], *, first: bool, last: bool) -> None:
        if not words:
            return
        shown: dict[str, Any] = {"fontsize": _TOKEN_FONT, "parse_math": False}
        axes.set_yticks(range(len(words)), words if first else [""] * len(words), **shown)
        axes.set_xticks(range(len(words)), words if last else [""] * len(words), **shown)
        axes.tick_params(axis="x", labelrotation=90)


def _inches(axes: Axes) -> float:
    """Return the shorter side of axes in inches."""
    box, dpi = axes.get_window_extent(), axes.get_figure(root=True).dpi  # type: ignore[union-attr]
    return float(min(box.width, box.height)) / dpi


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
        *,
        tokens: bool = False,
        **options: Any,
    ) -> "Grid":
        """Return the grid of one captured layer.

        Args:
            capture: What to draw.
            quantity: As in `Capture.grid`.
            layer: Counted from 0; -1 is the last captured layer.
            heads: Counted from 0; by default all captured heads.
            tokens: Write the tokens at the axes.
            **options: The other arguments of `Capture.grid`.
        """
        chosen = select("grid", capture, quantity, layer, heads)
        return cls(
            maps=capture.drawn(chosen.quantity, chosen.layer, chosen.heads),
            titles=head_titles(chosen.heads),
            edges=capture.drawn_edges,
            weights=chosen.quantity == "weights",
            pieces=token_texts(capture) if tokens else None,
            **chosen.named | options,
        )
