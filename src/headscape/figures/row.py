"""One query's row: what it gives to every key, all heads, with the keys' tokens.

Heads run down and keys across. The upper strip shows every visible key; the lower one repeats the
last of them, wide enough to print each token below its column. Each head has its own colours in
each strip unless `shared_scale` is set, because heads differ in range by orders of magnitude; the
range stands at the right.
"""

from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from jaxtyping import Float
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.font_manager import findfont, get_font
from matplotlib.ticker import MaxNLocator

from headscape.arrays.capture_file import Capture
from headscape.errors import InputError
from headscape.figures.panel import Box
from headscape.figures.style import Scale, blank, context

CLOSE_UP: Final = 48
_WIDTH, _LEFT, _RIGHT, _TOP, _BETWEEN, _BOTTOM, _STRIP = 8.6, 0.75, 1.15, 0.35, 0.75, 0.95, 0.16


@dataclass(frozen=True, kw_only=True, eq=False)
class Row:
    """The row of one query in one layer."""

    values: Float[np.ndarray, "h s"]
    """One row per head, NaN where the key is invisible."""
    titles: tuple[str, ...]
    pieces: tuple[str, ...]
    """The keys' tokens as text."""
    query: int
    label: str = "positional bias"
    """What the colours show."""
    weights: bool = False
    """Whether these are attention weights, which are coloured by their logarithm."""
    shared_scale: bool = False
    """One range for all heads."""
    colormap: str | None = None
    """A matplotlib colour map in place of the chosen one."""

    @classmethod
    def of(
        cls, capture: Capture, layer: int, quantity: str, query: int | None = None, **options: Any
    ) -> "Row":
        """The row of `query`, by default the last; `options` are the fields above."""
        if capture.resolution is not None:
            raise InputError(
                f"a capture reduced to {capture.resolution} cells has no single rows; "
                "capture a shorter sequence whole."
            )
        query = capture.length - 1 if query is None else query
        if not 0 <= query < capture.length:
            raise InputError(f"query {query} is not in this capture of {capture.length} tokens.")
        pieces = capture.sequence.get("pieces") or [str(token) for token in capture.tokens]
        return cls(
            values=capture.visible(layer, quantity)[:, query],
            titles=tuple(f"Head {head + 1}" for head in capture.heads),
            pieces=tuple(pieces),
            query=query,
            label="positional bias" if quantity == "bias" else quantity,
            weights=quantity == "weights",
            **options,
        )

    def draw(self) -> Figure:
        """Draw the strips; their axes carry the ids `all-keys` and `close-up`."""
        visible = np.flatnonzero(np.isfinite(self.values).any(axis=0))
        start, stop = int(visible[0]), int(visible[-1]) + 1
        height = _STRIP * len(self.titles)
        with context():
            figure = blank(_LEFT + _WIDTH + _RIGHT, _TOP + 2 * height + _BETWEEN + _BOTTOM)
            upper = Box(left=_LEFT, top=_TOP, width=_WIDTH, height=height).axes(figure)
            upper.set_gid("all-keys")
            self._strip(upper, start, stop)
            piece = _readable(self.pieces[self.query])
            upper.set_title(f"Query {self.query} “{piece}”: {self.label}, all keys", pad=4)
            upper.set_xlabel("Key position")
            upper.xaxis.set_major_locator(MaxNLocator(nbins=10, steps=[1, 2, 5, 10], integer=True))
            below = _TOP + height + _BETWEEN
            lower = Box(left=_LEFT, top=below, width=_WIDTH, height=height).axes(figure)
            lower.set_gid("close-up")
            near = max(start, stop - CLOSE_UP)
            self._strip(lower, near, stop)
            lower.set_title(f"The last {stop - near} keys, with their tokens", pad=4)
            lower.set_xticks(
                range(near, stop),
                [_readable(piece) for piece in self.pieces[near:stop]],
                rotation=90,
                fontsize=7,
                parse_math=False,
            )
            return figure

    def _strip(self, axes: Axes, start: int, stop: int) -> None:
        ranges = []
        within = self.values[:, start:stop]
        for index, values in enumerate(within):
            if self.weights:
                scale = Scale.of_weights(self.colormap)
            else:
                scale = Scale.of(within if self.shared_scale else values, self.colormap)
            ranges.append(scale.label)
            axes.imshow(
                np.ma.masked_invalid(values[None]),
                cmap=scale.colormap,
                norm=scale.norm,
                extent=(start - 0.5, stop - 0.5, index + 0.5, index - 0.5),
                aspect="auto",
                interpolation="nearest",
            )
        axes.set_ylim(len(self.values) - 0.5, -0.5)
        axes.set_yticks(range(len(self.titles)), self.titles, fontsize=7)
        right = axes.secondary_yaxis("right")
        right.set_yticks(range(len(ranges)), ranges, fontsize=6)
        right.tick_params(length=0)


def _readable(piece: str) -> str:
    """A token with its blanks made visible, in letters the font has, short enough for a tick."""
    font = get_font(findfont("DejaVu Sans"))
    shown = piece.replace(" ", "␣").replace("\n", "↵")
    shown = "".join(x if font.get_char_index(ord(x)) and x.isprintable() else "�" for x in shown)
    return shown if len(shown) <= 12 else f"{shown[:11]}…"
