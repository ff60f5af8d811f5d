"""One query's row: its score with every key, all heads, with the keys' tokens.

Heads run down and keys across. The upper strip shows every visible key; the lower one repeats the
last of them, wide enough to print each token below its column. Where that is all of them, there is
only the lower strip. Both strips have the same colours.
Heads differ in range by orders of magnitude, so a colour is a place between the lowest and the
highest value of its head, which are printed at the right. With `shared_scale`, and for attention
weights, a colour is a value, the same in all heads.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import matplotlib as mpl
import numpy as np
from jaxtyping import Float
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.image import AxesImage
from matplotlib.ticker import MaxNLocator

from headscape.captures.capture_file import Capture
from headscape.captures.labels import head_titles, position_label, token_texts
from headscape.errors import InputError
from headscape.plots.colour import GREY, Scale, limits, range_label, with_range
from headscape.plots.grid import Coloured
from headscape.plots.panel import Box, draw_bar, draw_relative_bar
from headscape.plots.style import (
    DPI,
    FONT,
    PRINT_DPI,
    RANGE_FONT,
    add_heading,
    blank,
    context,
    readable,
    text_width,
    wrap,
)
from headscape.plots.view import check_whole, select

CLOSE_UP: Final = 48
"""The most keys in the lower strip."""
_BETWEEN, _BOTTOM = 0.75, 0.95
_TOKEN: Final = 8.0 / CLOSE_UP
"""Inches for one token of the lower strip."""
_LEAST_STRIP: Final = 1.0


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class Row(Coloured):
    """The row of one query in one layer."""

    values: Float[np.ndarray, "h s"]
    """One row per head, NaN where the key is invisible."""
    titles: tuple[str, ...]
    pieces: tuple[str, ...]
    """The keys' tokens as text."""
    query: int
    unit: str = "tokens"
    """What positions count: tokens, or frames of sound."""

    @classmethod
    def of(
        cls,
        capture: Capture,
        quantity: str | None = None,
        layer: int = -1,
        query: int | None = None,
        heads: Sequence[int] | None = None,
        **options: Any,
    ) -> "Row":
        """Return the row of one query in one captured layer, which must not be reduced.

        Args:
            capture: What to draw.
            quantity: As in `Capture.row`.
            layer: Counted from 0; -1 is the last captured layer.
            query: Counted from 0; by default the last.
            heads: Counted from 0; by default all captured heads.
            **options: The other arguments of `Capture.row`.
        """
        check_whole(capture, "has no single rows")
        query = -1 if query is None else query
        if not -capture.length <= query < capture.length:
            raise InputError(
                f"query {query} is not in this capture of {capture.length} {capture.unit}; choose "
                f"one from 0 to {capture.length - 1}."
            )
        query %= capture.length
        pieces = token_texts(capture)
        sound = capture.unit == "frames"
        number = query + 1
        which = f"frame {number}" if sound else f"{number} “{readable(pieces[query])}”"
        chosen = select(
            "row",
            capture,
            quantity,
            layer,
            heads,
            query=query,
            note=f" of query {which}, position {query}",
        )
        seen = slice(0, query + 1 if capture.causal else capture.length)
        values = np.full((len(chosen.heads), capture.length), np.nan, dtype=np.float32)
        one = slice(query, query + 1)
        block = capture.block(chosen.quantity, chosen.layer, chosen.heads, one, seen)
        values[:, seen] = block[:, 0]
        return cls(
            values=values,
            titles=head_titles(chosen.heads),
            pieces=pieces,
            query=query,
            weights=chosen.quantity == "weights",
            **chosen.named | options,
        )

    def scales(self) -> list[Scale]:
        """Return the colour scale of every head."""
        return self._scales(self.values)

    def draw(self) -> Figure:
        """Return the drawn strips; axes have the ids `all-keys`, `close-up` and `colorbar`.

        There is no `all-keys` if the close-up shows every key.
        """
        visible = np.flatnonzero(np.isfinite(self.values).any(axis=0))
        if not len(visible):
            raise InputError(f"query {self.query} has no finite value to draw: choose another.")
        start, stop = int(visible[0]), int(visible[-1]) + 1
        small = self.width is not None and self.width < 5
        font = 6 if small else FONT
        left = 0.52 if small else 0.75
        # Labels of weights are longer: 0.0001.
        bar_left, right = 0.2, (0.14 if self.weights else 0.13) * font
        if self._own:
            bar_left = 0.14 + max(
                text_width(range_label(*limits(row)), RANGE_FONT) for row in self.values
            )
            right = bar_left + 0.125 * font
        strip = 8.0 if self.width is None else self.width - left - right
        if strip < _LEAST_STRIP:
            raise InputError(
                f"a row needs a width of at least {left + right + _LEAST_STRIP:.1f} inches, "
                f"got {self.width:g}."
            )
        near = max(start, stop - min(CLOSE_UP, int(strip / _TOKEN)))
        height = 0.16 * max(len(self.titles), 4)
        title = wrap(self.heading or "", left + strip + right, font + 1)
        top = 0.37 + 0.18 * (title.count("\n") + 1 if title else 0)
        whole = height if near == start else 2 * height + _BETWEEN
        with context(font):
            dpi = DPI if self.width is None else PRINT_DPI
            figure = blank(self.width or left + strip + right, top + whole + _BOTTOM, dpi)
            add_heading(figure, title, font + 1)
            if near > start:
                upper = Box(left=left, top=top, width=strip, height=height)
                axes = upper.axes(figure, "all-keys")
                self._strip(axes, start, stop)
                axes.set_title("All keys", pad=4)
                axes.set_xlabel(position_label("Key", self.unit))
                intervals = min(10, int(strip / 0.4))
                axes.xaxis.set_major_locator(
                    MaxNLocator(nbins=intervals, steps=[1, 2, 5, 10], integer=True)
                )
            lower = Box(left=left, top=top + whole - height, width=strip, height=height)
            axes = lower.axes(figure, "close-up")
            image = self._strip(axes, near, stop)
            axes.set_title(f"The last {stop - near} keys" if near > start else "All keys", pad=4)
            axes.set_xticks(
                range(near, stop),
                [readable(piece) for piece in self.pieces[near:stop]],
                rotation=90,
                fontsize=font - 1 if font == FONT else font,
                parse_math=False,
            )
            if self.unit == "frames":
                axes.set_xlabel(position_label("Key", self.unit))
            bar = Box(left=left + strip + bar_left, top=top, width=0.11, height=whole)
            self._bar(figure, image, bar.axes(figure, "colorbar"))
            return figure

    @property
    def _own(self) -> bool:
        return self.limits is None and not (self.shared_scale or self.weights)

    def _bar(self, figure: Figure, image: AxesImage, axes: Axes) -> None:
        every = self.scales()
        if self._own:
            draw_relative_bar(figure, every, axes, "head", self.label)
        else:
            draw_bar(figure, image, every[0], axes, self.label, self.values)

    def _strip(self, axes: Axes, start: int, stop: int) -> AxesImage:
        """Draw all heads as one image: values, or places in each head's range from 0 to 1."""
        every, values = self.scales(), np.ma.masked_invalid(self.values[:, start:stop])
        if self._own:
            placed = [scale.norm(row) for scale, row in zip(every, values, strict=True)]
            values = np.ma.stack(placed)
            for head in (index for index, scale in enumerate(every) if scale.kind == "single"):
                values[head] = np.ma.masked
                axes.axhspan(head - 0.5, head + 0.5, color=GREY, linewidth=0)
        image = axes.imshow(
            values,
            cmap=with_range(every).colormap,
            norm=None if self._own else every[0].norm,
            extent=(start - 0.5, stop - 0.5, len(values) - 0.5, -0.5),
            aspect="auto",
            interpolation="nearest",
        )
        if self._own:
            image.set_clim(0, 1)
            right = axes.secondary_yaxis("right")
            right.set_yticks(
                range(len(every)),
                [range_label(*limits(row)) for row in self.values],
                fontsize=RANGE_FONT,
            )
            right.tick_params(length=0)
        axes.set_yticks(
            range(len(self.titles)), self.titles, fontsize=min(mpl.rcParams["font.size"], 7)
        )
        return image
