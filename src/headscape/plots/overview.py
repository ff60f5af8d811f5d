"""A whole model at a glance: layers down, heads across, one small map each.

Every map has its own range, printed under it, and the bar at the right runs from the lowest to the
highest value of each panel. With `shared_scale` all have one range, which the bar shows. Panels
have no ticks: the grid has them. A model of many layers is a sheet: its layers go on in a further
block at the right, so that the figure is about as wide as it is high. Above 150 maps they are
smaller and their ranges are not printed.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil
from typing import Any, Final

import numpy as np
from jaxtyping import Float
from matplotlib.figure import Figure

from headscape.captures.capture_file import Capture
from headscape.captures.choice import choose_heads, choose_quantity
from headscape.captures.labels import default_name, method, quantity_words
from headscape.errors import InputError
from headscape.io.terminal import SlowBar
from headscape.plots.colour import Scale, limits, range_label
from headscape.plots.grid import Coloured
from headscape.plots.panel import Box, cell_means, draw_bar, draw_map, draw_relative_bar, pixel_step
from headscape.plots.style import (
    DPI,
    PRINT_DPI,
    RANGE_FONT,
    add_heading,
    blank,
    context,
    text_width,
    whole_pixels,
    wrap,
)

_PANEL, _SMALL_PANEL, _LEFT, _TOP, _BOTTOM, _ACROSS, _DOWN = 0.78, 0.4, 0.72, 0.3, 0.25, 0.1, 0.22
_LEAST_PANEL: Final = 0.3
MANY: Final = 150
"""Maps above which they are small and have no printed range."""


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class Overview(Coloured):
    """The maps of several layers."""

    layers: tuple[int, ...]
    """Counted from 0."""
    heads: tuple[int, ...]
    """Counted from 0."""
    maps: tuple[Float[np.ndarray, "h _ _"], ...]
    """One [h t s] array per layer, reduced to the cells that are drawn."""
    ranges: tuple[tuple[float, float], ...]
    """Lowest and highest value of each head, by layers and then heads."""
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

        Args:
            capture: What to draw.
            quantity: As in `Capture.overview`.
            heads: Counted from 0; by default all captured heads.
            **options: The other arguments of `Capture.overview`.
        """
        quantity = choose_quantity(quantity, capture)
        heads = choose_heads(heads, capture.heads)
        shown: dict[str, Any] = {
            "heading": f"{method(capture)}: {quantity_words(quantity)}",
            "label": quantity_words(quantity).capitalize(),
            "stem": default_name("overview", capture, quantity=quantity, heads=heads),
            **options,
        }
        maps, ranges = [], []
        side = _side(len(capture.layers) * len(heads))
        with SlowBar("reading layers", len(capture.layers)) as bar:
            for layer in capture.layers:
                drawn = capture.drawn(quantity, layer, heads)
                step, _ = pixel_step(drawn.shape[-1], side)
                ranges += [limits(each) for each in drawn]
                maps.append(np.stack([cell_means(each, step) for each in drawn]))
                bar.advance(1)
        return cls(
            layers=capture.layers,
            encodings=_encodings(capture),
            heads=heads,
            maps=tuple(maps),
            ranges=tuple(ranges),
            weights=quantity == "weights",
            **shown,
        )

    def scales(self) -> list[Scale]:
        """Return the colour scale of every panel, by layers and then heads."""
        return self._scales((), self.ranges)

    def draw(self) -> Figure:
        """Return the drawn overview; axes have ids like `layer-1-head-1`, the bar `colorbar`."""
        sheet, every = self._sheet(), self.scales()
        own = self._own
        heading = wrap(self.heading or "", sheet.width, 9)
        above = _TOP + (0.05 + 0.17 * (heading.count("\n") + 1) if heading else 0)
        above = whole_pixels(above)
        with context():
            dpi = DPI if self.width is None else PRINT_DPI
            height = whole_pixels(above + sheet.height + sheet.bottom)
            figure = blank(sheet.width, height, dpi)
            add_heading(figure, heading, 9)
            with SlowBar("drawing", len(every)) as bar:
                for index, scale in enumerate(every):
                    row, column = divmod(index, len(self.heads))
                    layer, head = self.layers[row] + 1, self.heads[column] + 1
                    box = sheet.box(row, column, above)
                    axes = box.axes(figure, f"layer-{layer}-head-{head}")
                    whole = 1 if self.width is None else None
                    image = draw_map(axes, self.maps[row][column], scale, step=whole)
                    axes.set_xticks([])
                    axes.set_yticks([])
                    if row % sheet.rows == 0:
                        short = sheet.panel < _PANEL - 0.2 and column > 0
                        axes.set_title(str(head) if short else f"Head {head}", pad=4, fontsize=8)
                    if column == 0:
                        below = f"\n{self.encodings[row]}" if self.encodings else ""
                        axes.set_ylabel(
                            f"Layer {layer}{below}", rotation=0, ha="right", va="center"
                        )
                    if sheet.labels:
                        text = sheet.labels[index]
                        axes.set_xlabel(text, fontsize=RANGE_FONT, labelpad=2, linespacing=1)
                    bar.advance(1)
            place = Box(
                left=sheet.right_edge, top=above, width=0.11, height=min(sheet.height, 4.0)
            ).axes(figure, "colorbar")
            if own:
                draw_relative_bar(figure, every, place, "panel", self.label)
            else:
                draw_bar(figure, image, every[0], place, self.label, np.array(self.ranges))
            return figure

    @property
    def _own(self) -> bool:
        return self.limits is None and not (self.shared_scale or self.weights)

    def _sheet(self) -> "_Sheet":
        """Return where the maps lie."""
        rows, columns = len(self.layers), len(self.heads)
        right = 1.15 if self._own else 0.95
        side = _side(rows * columns)
        _, panel = pixel_step(self.maps[0].shape[-1], side)
        blocks = 1
        if self.width is not None:
            panel = (self.width - _LEFT - right + _ACROSS) / columns - _ACROSS
            if panel < _LEAST_PANEL:
                least = _LEFT + columns * (_LEAST_PANEL + _ACROSS) - _ACROSS + right
                raise InputError(
                    f"an overview of {columns} heads needs a width of at least {least:.1f} inches, "
                    f"got {self.width:g}; choose fewer heads."
                )
        else:
            # As many blocks of layers as keep the sheet from being higher than wide.
            while blocks < rows and ceil(rows / blocks) > 1.3 * blocks * columns:
                blocks += 1
        printed = self._own and rows * columns <= MANY
        texts = [range_label(*each) for each in self.ranges] if printed else []
        widest = max((text_width(text, RANGE_FONT) for text in texts), default=0.0)
        second = 0.09 if printed and (panel < _PANEL - 0.2 or widest > panel) else 0.0
        if second:
            texts = [text.replace(" … ", "\n… ") for text in texts]
        down = (_DOWN if printed else _ACROSS) + second
        return _Sheet(
            panel=panel,
            rows=ceil(rows / blocks),
            columns=columns,
            blocks=blocks,
            down=whole_pixels(down),
            bottom=(_BOTTOM if printed else 0.1) + second,
            labels=texts,
            right=right,
            given=self.width,
        )


@dataclass(frozen=True, kw_only=True)
class _Sheet:
    """Blocks of rows and columns of panels, beside each other; lengths are in inches."""

    panel: float
    rows: int
    """Of each block."""
    columns: int
    blocks: int
    down: float
    bottom: float
    labels: list[str]
    """What is printed below each panel; none where nothing is."""
    right: float
    given: float | None

    def box(self, row: int, column: int, above: float) -> Box:
        """Return the place of a panel by its layer and head."""
        block, row = divmod(row, self.rows)
        across = block * (self._block + _LEFT) + column * (self.panel + _ACROSS)
        top = above + row * (self.panel + self.down)
        return Box(left=_LEFT + across, top=top, width=self.panel, height=self.panel)

    @property
    def _block(self) -> float:
        return self.columns * (self.panel + _ACROSS) - _ACROSS

    @property
    def right_edge(self) -> float:
        """Where the colour bar begins."""
        return self.blocks * (self._block + _LEFT) + 0.07

    @property
    def width(self) -> float:
        """Width of the figure."""
        return self.given or self.blocks * (self._block + _LEFT) + self.right

    @property
    def height(self) -> float:
        """Height of the panels."""
        return self.rows * (self.panel + self.down) - self.down


def _side(maps: int) -> float:
    """Return about how large each of so many maps is, in inches."""
    return _PANEL if maps <= MANY else _SMALL_PANEL


def _encodings(capture: Capture) -> tuple[str, ...] | None:
    """Return the encoding of every layer, cut to fit left of its maps; None if all are the same."""
    abouts = [capture.about(layer) for layer in capture.layers]
    titles = [str(about["title"]) for about in abouts if "title" in about]
    if len(titles) < len(abouts):
        return None
    return tuple(title if len(title) <= 9 else f"{title[:8]}…" for title in titles)
