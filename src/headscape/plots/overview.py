"""A whole model at a glance: layers down, heads across, one small map each.

Every map has its own range, printed under it, and the bar at the right runs from the lowest to the
highest value of each panel. With `shared_scale` all have one range, which the bar shows. Panels
have no ticks: the grid has them.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from jaxtyping import Float
from matplotlib.figure import Figure

from headscape.captures.capture_file import Capture
from headscape.captures.choice import choose_heads, choose_quantity
from headscape.captures.labels import default_name, method, quantity_words
from headscape.errors import InputError
from headscape.plots.colour import Scale, range_label
from headscape.plots.grid import Coloured
from headscape.plots.panel import Box, draw_bar, draw_map, draw_relative_bar
from headscape.plots.style import (
    DPI,
    PRINT_DPI,
    RANGE_FONT,
    blank,
    context,
    text_width,
    wrap,
)

_PANEL, _LEFT, _TOP, _BOTTOM, _ACROSS, _DOWN = 0.78, 0.72, 0.3, 0.25, 0.1, 0.22
_LEAST_PANEL: Final = 0.3


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class Overview(Coloured):
    """The maps of several layers."""

    layers: tuple[int, ...]
    """Counted from 0."""
    heads: tuple[int, ...]
    """Counted from 0."""
    maps: tuple[Float[np.ndarray, "h _ _"], ...]
    """One [h t s] array per layer."""
    encodings: tuple[str, ...] | None = None
    """The encoding of each layer; None if all layers have the same."""

    @classmethod
    def of(
        cls,
        capture: Capture,
        quantity: str | None = None,
        heads: Sequence[int] | None = None,
        **options: Any,
    ) -> "Overview":
        """Return the overview of all captured layers.

        `heads` count from 0, -1 is the last. `options` are the fields of `Coloured`, and `heading`.
        """
        quantity = choose_quantity(quantity, capture)
        heads = choose_heads(heads, capture.heads)
        shown: dict[str, Any] = {
            "heading": f"{method(capture)}: {quantity_words(quantity)}",
            "stem": default_name("overview", capture, quantity=quantity, heads=heads),
            **options,
        }
        return cls(
            layers=capture.layers,
            encodings=_encodings(capture),
            heads=heads,
            maps=tuple(capture.drawn(quantity, layer, heads) for layer in capture.layers),
            weights=quantity == "weights",
            **shown,
        )

    def scales(self) -> list[Scale]:
        """Return the colour scale of every panel, by layers and then heads."""
        return self._scales(each for layer in self.maps for each in layer)

    def draw(self) -> Figure:
        """Return the drawn overview; axes have ids like `layer-1-head-1`, the bar `colorbar`."""
        rows, columns = len(self.layers), len(self.heads)
        own = not (self.shared_scale or self.weights)
        right = 1.0 if own else 0.8
        panel = self._panel(right)
        small = panel < _PANEL
        every = self.scales()
        ranges = [range_label(each) for layer in self.maps for each in layer] if own else []
        widest = max((text_width(text, RANGE_FONT) for text in ranges), default=0.0)
        second = 0.09 if small or widest > panel else 0.0
        down = _DOWN + second
        width = self.width or _LEFT + columns * (panel + _ACROSS) - _ACROSS + right
        heading = wrap(self.heading or "", width, 9)
        above = _TOP + (0.05 + 0.17 * (heading.count("\n") + 1) if heading else 0)
        whole = Box(
            left=_LEFT,
            top=above,
            width=columns * (panel + _ACROSS) - _ACROSS,
            height=rows * (panel + down) - down,
        )
        with context():
            dpi = DPI if self.width is None else PRINT_DPI
            figure = blank(width, above + whole.height + _BOTTOM + second, dpi)
            if heading:
                y = 1 - 0.06 / figure.get_figheight()
                figure.suptitle(heading, y=y, va="top", fontsize=9)
            for index, scale in enumerate(every):
                row, column = divmod(index, columns)
                layer, head = self.layers[row] + 1, self.heads[column] + 1
                axes = Box(
                    left=_LEFT + column * (panel + _ACROSS),
                    top=above + row * (panel + down),
                    width=panel,
                    height=panel,
                ).axes(figure, f"layer-{layer}-head-{head}")
                image = draw_map(axes, self.maps[row][column], scale)
                axes.set_xticks([])
                axes.set_yticks([])
                if row == 0:
                    short = small and column > 0
                    axes.set_title(str(head) if short else f"Head {head}", pad=4, fontsize=8)
                if column == 0:
                    below = f"\n{self.encodings[row]}" if self.encodings else ""
                    axes.set_ylabel(f"Layer {layer}{below}", rotation=0, ha="right", va="center")
                if own:
                    text = ranges[index].replace(" … ", "\n… ") if second else ranges[index]
                    axes.set_xlabel(text, fontsize=RANGE_FONT, labelpad=2, linespacing=1)
            bar = whole.bar().axes(figure, "colorbar")
            if own:
                draw_relative_bar(figure, every, bar, "panel")
            else:
                draw_bar(figure, image, every[0], bar)
            return figure

    def _panel(self, right: float) -> float:
        """Return the size of a panel in inches."""
        if self.width is None:
            return _PANEL
        columns = len(self.heads)
        panel = (self.width - _LEFT - right + _ACROSS) / columns - _ACROSS
        if panel < _LEAST_PANEL:
            least = _LEFT + columns * (_LEAST_PANEL + _ACROSS) - _ACROSS + right
            raise InputError(
                f"an overview of {columns} heads needs a width of at least {least:.1f} inches, "
                f"got {self.width:g}; choose fewer heads."
            )
        return panel


def _encodings(capture: Capture) -> tuple[str, ...] | None:
    """Return the encoding of every layer, cut to fit left of its maps; None if all are the same."""
    abouts = [capture.about(layer) for layer in capture.layers]
    titles = [str(about["title"]) for about in abouts if "title" in about]
    if len(titles) < len(abouts):
        return None
    return tuple(title if len(title) <= 9 else f"{title[:8]}…" for title in titles)
