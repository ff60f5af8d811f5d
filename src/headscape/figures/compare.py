"""Several encodings side by side for one head, each with its own colour bar.

The panels are the grid's, in rows of at most four. With `shared_scale` all have one range, which is
fair to the eye only where the quantities are the same: RoPE adds no bias, so its `bias` is what the
rotation changed.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Float, Int64
from matplotlib.figure import Figure

from headscape.arrays.capture_file import Capture
from headscape.errors import InputError
from headscape.figures.grid import Grid


@dataclass(frozen=True, kw_only=True, eq=False)
class Compare:
    """One map per encoding."""

    titles: tuple[str, ...]
    maps: Float[np.ndarray, "_ t s"]
    edges: Int64[np.ndarray, " edges"] | None = None
    """Cell boundaries of reduced maps."""
    weights: bool = False
    """Whether these are attention weights, which are coloured by their logarithm."""
    shared_scale: bool = False
    """One range for all panels instead of one each."""
    colormap: str | None = None
    """A matplotlib colour map in place of the chosen one."""

    @classmethod
    def of(
        cls, captures: Sequence[Capture], layer: int, head: int, quantity: str, **options: Any
    ) -> "Compare":
        """The same layer, head and quantity of each capture; `options` are the fields above."""
        maps = [capture.head(layer, quantity, head) for capture in captures]
        if len({(capture.length, capture.resolution) for capture in captures}) != 1:
            lengths = ", ".join(str(capture.length) for capture in captures)
            raise InputError(f"captures of {lengths} tokens do not compare; use one length.")
        titles = tuple(capture.title for capture in captures)
        return cls(
            titles=titles,
            maps=np.stack(maps),
            edges=captures[0].edges,
            weights=quantity == "weights",
            **options,
        )

    def draw(self) -> Figure:
        """Draw the panels; axes carry the ids `head-1`, `colorbar-1` and so on, as in the grid."""
        return Grid(
            maps=self.maps,
            titles=self.titles,
            columns=min(len(self.titles), 4),
            edges=self.edges,
            weights=self.weights,
            shared_scale=self.shared_scale,
            colormap=self.colormap,
        ).draw()
