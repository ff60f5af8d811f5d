"""Bias against distance, one small plot per head, in the grid's order.

The line is the mean over tokens at each distance. Where the bias depends on more than the distance,
the dark band holds the middle 80% of the tokens and the light one all of them. Axes are linear and
each head has its own range, as in the grid.
"""

from dataclasses import dataclass

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from headscape.arrays.capture_file import Capture
from headscape.arrays.profile import Profile
from headscape.errors import InputError
from headscape.figures.grid import shape
from headscape.figures.panel import Box
from headscape.figures.style import ACCENT, blank, context

_WIDTH, _HEIGHT, _LEFT, _RIGHT, _TOP, _BOTTOM, _ACROSS, _DOWN = (
    2.5, 1.5, 0.75, 0.2, 0.45, 0.5, 0.72, 0.55,
)  # fmt: skip


@dataclass(frozen=True, kw_only=True, eq=False)
class Curves:
    """The profile of one layer, all heads."""

    profile: Profile
    titles: tuple[str, ...]
    label: str = "Positional bias"
    """What the curves show."""

    @classmethod
    def of(cls, capture: Capture, layer: int, quantity: str = "bias") -> "Curves":
        """The curves of a captured layer, which must be whole."""
        if capture.resolution is not None:
            raise InputError(
                f"a capture reduced to {capture.resolution} cells has no exact curve over distance;"
                " capture a shorter sequence whole."
            )
        titles = tuple(f"Head {head + 1}" for head in capture.heads)
        label = "Positional bias" if quantity == "bias" else quantity.capitalize()
        return cls(profile=Profile.of(capture.visible(layer, quantity)), titles=titles, label=label)

    def draw(self) -> Figure:
        """Draw the curves; axes carry the ids `head-1` and so on."""
        rows, columns = shape(len(self.titles))
        profile = self.profile
        spread = bool(np.any(profile.max > profile.min))
        with context():
            figure = blank(
                _LEFT + columns * (_WIDTH + _ACROSS) - _ACROSS + _RIGHT,
                _TOP + rows * (_HEIGHT + _DOWN) - _DOWN + _BOTTOM,
            )
            for index, title in enumerate(self.titles):
                row, column = divmod(index, columns)
                axes = Box(
                    left=_LEFT + column * (_WIDTH + _ACROSS),
                    top=_TOP + row * (_HEIGHT + _DOWN),
                    width=_WIDTH,
                    height=_HEIGHT,
                ).axes(figure)
                axes.set_gid(f"head-{index + 1}")
                axes.set_title(title, pad=4)
                if spread:
                    for low, high, shade, name in (
                        (profile.min, profile.max, 0.18, "all tokens"),
                        (profile.low, profile.high, 0.38, "middle 80% of tokens"),
                    ):
                        axes.fill_between(
                            profile.distance, low[index], high[index],
                            color=ACCENT, alpha=shade, linewidth=0, label=name,
                        )  # fmt: skip
                axes.plot(
                    profile.distance, profile.mean[index], color=ACCENT, linewidth=1.2, label="mean"
                )
                axes.margins(x=0.01)
                axes.grid(color="#d8dce0", linewidth=0.5)
                axes.spines[["top", "right"]].set_visible(False)
                axes.xaxis.set_major_locator(
                    MaxNLocator(nbins=6, steps=[1, 2, 5, 10], integer=True)
                )
                axes.yaxis.set_major_locator(MaxNLocator(nbins=5, steps=[1, 2, 2.5, 5, 10]))
                if column == 0:
                    axes.set_ylabel(self.label)
                if index + columns >= len(self.titles):
                    axes.set_xlabel("Distance (query \N{MINUS SIGN} key)")
            if spread:
                handles, labels = figure.axes[0].get_legend_handles_labels()
                figure.legend(handles, labels, ncols=3, loc="upper right", borderaxespad=0.1)
            return figure
