"""Bias against distance, one small plot per head, in the grid's order.

The line is the mean over tokens at each distance. Where the bias depends on more than the distance,
the dark band contains the middle 80% of the tokens and the light one all of them. Axes are linear
and each head has its own range, as in the grid.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from headscape.captures.capture_file import Capture
from headscape.captures.labels import head_titles, quantity_words
from headscape.captures.profile import Profile
from headscape.errors import at_least
from headscape.plots.colour import limits, number
from headscape.plots.figure_layout import Layout, shape
from headscape.plots.style import ACCENT, RULE
from headscape.plots.view import View, check_whole, select


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class Curves(View):
    """A quantity against distance, one small plot per head of a layer.

    Example:
        >>> import headscape as hs
        >>> model = hs.load(hs.GPT2.from_preset("nano", encoding="alibi", vocabulary=257))
        >>> model.capture([5, 6, 7, 8]).curves().save("curves.png").name
        'curves.png'
    """

    profile: Profile
    titles: tuple[str, ...]
    label: str = "Positional bias"
    """What the curves show."""
    unit: str = "tokens"
    """What distances count: tokens, or frames of sound."""
    columns: int | None = None
    """Plots in a row; by default an upright page, 3 for 12 heads."""
    width: float | None = None
    """Width of the figure in inches; by default plots of 2.5 inches."""

    def __post_init__(self) -> None:
        super().__post_init__()
        at_least(1, columns=self.columns)

    @classmethod
    def of(
        cls,
        capture: Capture,
        quantity: str | None = None,
        layer: int = -1,
        heads: Sequence[int] | None = None,
        **options: Any,
    ) -> "Curves":
        """Return the curves of one captured layer, which must not be reduced.

        Args:
            capture: The capture to show.
            quantity: content, bias, final or weights; by default what the layer shows.
            layer: Counted from 0; -1 is the last captured layer.
            heads: Counted from 0, -1 is the last; by default all captured heads.
            options: The fields above, and `heading`.
        """
        check_whole(capture, "has no exact curve over distance")
        chosen = select("curves", capture, quantity, layer, heads, note=" against distance")
        layer, quantity, heads = chosen.layer, chosen.quantity, chosen.heads
        profile = Profile.of_blocks(
            lambda rows, cols: capture.block(quantity, layer, heads, rows, cols),
            capture.length,
            causal=capture.causal,
        )
        label = quantity_words(quantity).capitalize()
        shown = {"label": label, "unit": capture.unit, **chosen.named, **options}
        return cls(profile=profile, titles=head_titles(heads), **shown)

    def draw(self) -> Figure:
        """Return the drawn curves; axes have the ids `panel-1` and so on."""
        count = len(self.titles)
        layout = Layout(
            panels=count,
            columns=min(self.columns or shape(count)[1], count),
            panel=2.5,
            ratio=0.6,
            left=0.75,
            right=0.2,
            top=0.32,
            bottom=0.5,
            across=0.72,
            down=0.55,
            legend=self._spread,
            heading=self.heading,
            width=self.width,
        )
        return layout.draw(self._paint)

    @property
    def _spread(self) -> bool:
        return bool(np.any(self.profile.max > self.profile.min))

    def _paint(self, layout: Layout) -> Figure:
        figure = layout.figure()
        for index, title in enumerate(self.titles):
            axes = layout.box(index).axes(figure, f"panel-{index + 1}")
            axes.set_title(title, pad=layout.font / 2)
            small = layout.panel < 1.8
            nbins = 3 if small else 6
            axes.xaxis.set_major_locator(
                MaxNLocator(nbins=nbins, steps=[1, 2, 5, 10], integer=True)
            )
            axes.yaxis.set_major_locator(
                MaxNLocator(nbins=4 if small else 5, steps=[1, 2, 2.5, 5, 10])
            )
            self._plot(axes, index)
            first, last = layout.outer(index)
            if first:
                axes.set_ylabel(self.label)
            if last:
                counted = " in frames" if self.unit == "frames" else ""
                order = "" if small else " (query \N{MINUS SIGN} key)"
                axes.set_xlabel(f"Distance{counted}{order}")
        if self._spread:
            top = layout.box(0).top - layout.top
            figure.legend(
                *figure.axes[0].get_legend_handles_labels(),
                ncols=3,
                loc="lower center",
                bbox_to_anchor=(0.5, 1 - top / layout.size[1]),
                borderaxespad=0,
                borderpad=0.1,
                columnspacing=1.2,
                handlelength=1.5,
            )
        return figure

    def _plot(self, axes: Axes, index: int) -> None:
        profile = self.profile
        if self._spread:
            for low, high, shade, name in (
                (profile.min, profile.max, 0.18, f"all {self.unit}"),
                (profile.low, profile.high, 0.38, f"middle 80% of {self.unit}"),
            ):
                axes.fill_between(
                    profile.distance, low[index], high[index],
                    color=ACCENT, alpha=shade, linewidth=0, label=name,
                )  # fmt: skip
        axes.plot(profile.distance, profile.mean[index], color=ACCENT, linewidth=1.2, label="mean")
        lowest, highest = limits(np.stack([profile.min[index], profile.max[index]]))
        if lowest == highest:
            axes.set_yticks([lowest], [number(lowest)])
        axes.margins(x=0.01)
        axes.grid(color=RULE, linewidth=0.5)
        axes.spines[["top", "right"]].set_visible(False)
