"""Bias against distance: the mean over tokens at each distance, and its spread.

Where the bias of every head is a function of the distance alone, all heads are lines of one panel.
Otherwise each has a small plot, in the grid's order, with the bands of the viewer: the dark one is
one standard deviation to either side of the mean, the light one contains all tokens. Distances with
few pairs are faint. Axes are linear and each head has its own range, as in the grid.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import matplotlib as mpl
import numpy as np
from jaxtyping import Bool
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from headscape.captures.capture_file import Capture
from headscape.captures.labels import head_titles
from headscape.captures.profile import Profile
from headscape.plots.colour import limits, number
from headscape.plots.figure_layout import Layout
from headscape.plots.panel import make_room
from headscape.plots.style import ACCENT, RULE
from headscape.plots.view import Panelled, axes_list, check_whole, select

FEW: Final = 16
"""Pairs below which a distance is faint; in a short sequence, a quarter of its tokens."""
_FAINT: Final = 0.3


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class Curves(Panelled):
    """A quantity against distance, for the heads of a layer.

    Example:
        >>> import headscape as hs
        >>> model = hs.load(hs.GPT2.from_preset("nano", encoding="alibi", vocabulary=257))
        >>> model.capture([5, 6, 7, 8]).curves().save("curves.png").name
        'curves.png'
    """

    profile: Profile
    limits: tuple[float, float] | None = None
    """Range of the axis of values; by default that of the values."""

    @classmethod
    def of(
        cls,
        capture: Capture,
        quantity: str | None = None,
        layer: int = -1,
        heads: Sequence[int] | None = None,
        **options: Any,
    ) -> "Curves":
        """Return the curves of one captured layer.

        Args:
            capture: A capture that is not reduced.
            quantity: As in `Capture.curves`.
            layer: Counted from 0; -1 is the last captured layer.
            heads: Counted from 0; by default all captured heads.
            **options: The other arguments of `Capture.curves`.
        """
        check_whole(capture, "has no exact curve over distance")
        chosen = select("curves", capture, quantity, layer, heads, note=" against distance")
        layer, quantity, heads = chosen.layer, chosen.quantity, chosen.heads
        profile = Profile.of_blocks(
            lambda rows, cols: capture.block(quantity, layer, heads, rows, cols),
            capture.length,
            causal=capture.causal,
        )
        return cls(profile=profile, titles=head_titles(heads), **chosen.named | options)

    def draw(self) -> Figure:
        """Return the drawn curves; axes have the ids `panel-1` and so on."""
        sizes = {
            "panel": 2.5,
            "ratio": 0.6,
            "right": 0.2,
            "across": 0.72,
            "down": 0.4,
            "top": 0.32,
            "legend": self._spread,
        }
        panels = len(self.titles)
        if self._together:
            panels = 1
            sizes |= {"panel": 4.2, "right": 0.95, "top": 0.12}
        return self.layout(panels, left=0.75, bottom=0.5, **sizes).draw(self._paint)

    def draw_on(self, axes: Any) -> None:
        """Draw into axes of your own: all heads into one, or one for each head."""
        chosen = axes_list(axes, 1 if np.ndim(axes) == 0 else len(self.titles))
        for index, ax in enumerate(chosen):
            if len(chosen) == 1:
                self._lines(ax)
            else:
                ax.set_title(self.titles[index])
                self._plot(ax, index)
            if len(chosen) == 1 and ax.figure.get_layout_engine() is None:
                # Nothing makes room beside the axes.
                ax.legend(fontsize="small", handlelength=1.2, labelspacing=0.25)
            elif len(chosen) == 1:
                _legend_beside(ax, len(self.titles))
            elif index == 0 and self._spread:
                ax.legend()
            self._name(ax)
            make_room(ax)

    @property
    def _spread(self) -> bool:
        return bool(np.any(self.profile.max > self.profile.min))

    @property
    def _together(self) -> bool:
        return len(self.titles) > 1 and not self._spread

    @property
    def _few(self) -> Bool[np.ndarray, " n"]:
        """Where a distance has few pairs, in heads whose values differ at a distance."""
        count = self.profile.count
        return count < min(FEW, count.max() / 4) if self._spread else np.zeros(len(count), bool)

    def _paint(self, layout: Layout) -> Figure:
        figure = layout.figure()
        for index in range(layout.panels):
            axes = layout.box(index).axes(figure, f"panel-{index + 1}")
            small = layout.panel < 1.8
            nbins = 3 if small else 6
            axes.xaxis.set_major_locator(
                MaxNLocator(nbins=nbins, steps=[1, 2, 5, 10], integer=True)
            )
            axes.yaxis.set_major_locator(
                MaxNLocator(nbins=4 if small else 5, steps=[1, 2, 2.5, 5, 10])
            )
            if self._together:
                self._lines(axes)
                _legend_beside(axes, len(self.titles), fontsize=layout.font - 1)
            else:
                axes.set_title(self.titles[index], pad=layout.font / 2)
                self._plot(axes, index)
            first, last = layout.outer(index)
            self._name(axes, first=first, last=last, short=small)
            # All plots have the same distances.
            axes.tick_params(labelbottom=last)
        if self._spread:
            top = layout.box(0).top - layout.top
            figure.legend(
                *figure.axes[0].get_legend_handles_labels(),
                ncols=4,
                loc="lower center",
                bbox_to_anchor=(0.5, 1 - top / layout.size[1]),
                borderaxespad=0,
                borderpad=0.1,
                columnspacing=1.2,
                handlelength=1.5,
            )
        return figure

    def _name(
        self, axes: Axes, *, first: bool = True, last: bool = True, short: bool = False
    ) -> None:
        """Label the axes, and set what all plots have."""
        if first and self.label:
            axes.set_ylabel(self.label)
        if last:
            counted = " in frames" if self.unit == "frames" else ""
            order = "" if short else " (query \N{MINUS SIGN} key)"
            axes.set_xlabel(f"Distance{counted}{order}")
        if self.limits is not None:
            axes.set_ylim(*self.limits)
        axes.margins(x=0.01)
        axes.grid(color=RULE, linewidth=0.5)
        axes.spines[["top", "right"]].set_visible(False)

    def _lines(self, axes: Axes) -> None:
        """Draw the means of all heads, from dark to light in their order."""
        colours = mpl.colormaps["viridis"](np.linspace(0, 0.88, len(self.titles)))
        for index, (title, colour) in enumerate(zip(self.titles, colours, strict=True)):
            self._mean(axes, index, colour, title)

    def _mean(self, axes: Axes, index: int, colour: Any, label: str) -> None:
        """Draw a mean, faint where there are few pairs."""
        distance, mean, few = self.profile.distance, self.profile.mean[index], self._few
        axes.plot(distance, np.where(few, np.nan, mean), color=colour, linewidth=1.2, label=label)
        if few.any():
            # The faint part begins where the strong one ends.
            near = few.copy()
            near[:-1] |= few[1:]
            near[1:] |= few[:-1]
            faint = np.where(near, mean, np.nan)
            axes.plot(distance, faint, color=colour, linewidth=1.2, alpha=_FAINT)

    def _plot(self, axes: Axes, index: int) -> None:
        """Draw one head with its bands."""
        profile = self.profile
        mean, std = profile.mean[index], profile.std[index]
        if self._spread:
            for low, high, shade, name in (
                (profile.min[index], profile.max[index], 0.18, f"all {self.unit}"),
                (mean - std, mean + std, 0.38, "one standard deviation"),
            ):
                for where, strength, named in (
                    (~self._few, 1.0, name), (self._few, _FAINT, None),
                ):  # fmt: skip
                    axes.fill_between(
                        profile.distance, low, high, where=where, color=ACCENT,
                        alpha=shade * strength, linewidth=0, label=named,
                    )  # fmt: skip
        self._mean(axes, index, ACCENT, "mean")
        lowest, highest = limits(np.stack([profile.min[index], profile.max[index]]))
        if lowest == highest:
            axes.set_yticks([lowest], [number(lowest)])


def _legend_beside(axes: Axes, lines: int, **options: Any) -> None:
    """Name the lines right of the axes: a fan such as ALiBi's leaves no room within them."""
    axes.legend(
        loc="center left", bbox_to_anchor=(1.01, 0.5), borderaxespad=0, handlelength=1.2,
        labelspacing=0.25, ncols=1 + lines // 25, **options,
    )  # fmt: skip
