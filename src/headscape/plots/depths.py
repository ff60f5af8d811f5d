"""Accuracy by depth and length: where in how long a text something is still found.

Lengths across, depths down from the beginning of the text (0%) to its end (100%), accuracy from 0
to 1 as colour and as a number in each cell. A grey cell with "-" is a length that the model cannot
read.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float
from matplotlib.figure import Figure

from headscape.plots.panel import Box
from headscape.plots.style import INK, RULE, blank, context
from headscape.plots.view import View

_CELL_WIDTH, _CELL_HEIGHT, _LEFT, _TOP, _BOTTOM, _RIGHT = 0.62, 0.34, 0.75, 0.4, 0.55, 0.75


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class Depths(View):
    """One model's heat map."""

    accuracy: Float[np.ndarray, "depths lengths"]
    """NaN where there is no number."""
    depths: Sequence[float]
    """Shares of the text, 0 to 1."""
    lengths: Sequence[int]

    def draw(self) -> Figure:
        """Return the drawn map; its axes have the id `depths`."""
        width, height = _CELL_WIDTH * len(self.lengths), _CELL_HEIGHT * len(self.depths)
        with context():
            figure = blank(_LEFT + width + _RIGHT, _TOP + height + _BOTTOM)
            box = Box(left=_LEFT, top=_TOP, width=width, height=height)
            axes = box.axes(figure, "depths")
            axes.set_facecolor(RULE)
            image = axes.imshow(self.accuracy, vmin=0, vmax=1, cmap="viridis", aspect="auto")
            for row, column in np.ndindex(*self.accuracy.shape):
                value = self.accuracy[row, column]
                ink = "white" if value <= 0.6 else INK
                text = "-" if np.isnan(value) else f"{value:.2f}"
                axes.text(column, row, text, ha="center", va="center", color=ink)
            axes.set_xticks(range(len(self.lengths)), [f"{length:,}" for length in self.lengths])
            axes.set_yticks(range(len(self.depths)), [f"{depth:.0%}" for depth in self.depths])
            axes.set_xlabel("Length")
            axes.set_ylabel("Depth")
            axes.set_title(self.heading or "")
            figure.colorbar(image, cax=box.bar().axes(figure, "colorbar"))
            return figure
