"""From values to colours. Lighter is greater, in every figure.

A figure has one colour map:

    viridis    the whole map from the lowest to the highest value, if any panel is nearly all of one
               sign; zero is marked on the colour bar if it lies inside the range.
    SIGNED     if in every panel each sign takes at least a fifth of the range. Zero is grey, and
               each side of it uses its half of the map in full (two slopes).

A panel that has one value everywhere, such as the 0 of NoPE or of a dead head, is grey. So is its
bar, which has that value as its only label.

Both maps get steadily lighter, so their order survives in grey print, and neither sets red against
green. SIGNED runs navy, blue, grey, amber, yellow: its middle is not white because invisible
entries are. Attention weights, which span orders of magnitude, are coloured by their logarithm,
and their differences by a logarithm on both sides of zero.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final, Literal

import matplotlib as mpl
import numpy as np
from jaxtyping import Float
from matplotlib.colors import (
    AsinhNorm,
    Colormap,
    LinearSegmentedColormap,
    ListedColormap,
    LogNorm,
    Normalize,
    TwoSlopeNorm,
)

from headscape.errors import InputError

GREY: Final = "#a6a7a9"
"""The middle of SIGNED, and the colour of panels that have one value everywhere."""
SIGNED: Final = LinearSegmentedColormap.from_list(
    "signed",
    [(0, "#0a1a3f"), (0.36, "#2a6fc4"), (0.5, GREY), (0.64, "#f2ab3d"), (1, "#fff3a0")],
)
SEQUENTIAL: Final = "viridis"
SHARE: Final = 0.2
"""The least part of a range that lies on either side of zero where colours diverge."""
WEIGHTS: Final = (1e-4, 1.0)
"""Range of the colours of attention weights; smaller weights have the colour of its lower end."""
SYMLOG: Final = 1e-3
"""Part of the range of differences of weights below which their colours are linear."""


@dataclass(frozen=True, kw_only=True)
class Scale:
    """Colours for the values between `low` and `high`."""

    low: float
    high: float
    colormap: Colormap
    kind: Literal["sequential", "diverging", "logarithmic", "symlog", "single"] = "sequential"

    @classmethod
    def single(cls, value: float) -> "Scale":
        """Return the scale of a panel that has one value everywhere."""
        return cls(low=value, high=value, colormap=ListedColormap([GREY]), kind="single")

    @classmethod
    def symmetric(
        cls, values: Float[np.ndarray, "..."], colormap: str | None = None, *, weights: bool = False
    ) -> "Scale":
        """Return the scale of differences: diverging and equally far on both sides of zero.

        Those of `weights` are logarithmic on both sides, and linear below SYMLOG of the range.
        """
        low, high = limits(values)
        far = max(-low, high)
        if far == 0:
            return cls.single(0.0)
        chosen = SIGNED if colormap is None else named(colormap)
        kind: Literal["symlog", "diverging"] = "symlog" if weights else "diverging"
        return cls(low=-far, high=far, colormap=chosen, kind=kind)

    @classmethod
    def of_weights(
        cls, colormap: str | None = None, limits: tuple[float, float] | None = None
    ) -> "Scale":
        """Return the scale of attention weights, which is the same for all heads."""
        low, high = limits or WEIGHTS
        if low <= 0:
            raise InputError(
                f"weights are coloured by their logarithm, so limits start above 0, got {low:g}."
            )
        return cls(low=low, high=high, colormap=named(colormap), kind="logarithmic")

    def beyond(self, values: Float[np.ndarray, "..."]) -> str:
        """Return at which ends values lie beyond: neither, min, max or both."""
        low, high = limits(values)
        ends = ("neither", "max", "min", "both")
        return ends[2 * (low < self.low) + (high > self.high)]

    @property
    def norm(self) -> Normalize:
        """Maps values to the colour map's 0 ... 1."""
        if self.kind == "logarithmic":
            return LogNorm(self.low, self.high, clip=True)
        if self.kind == "symlog":
            return AsinhNorm(linear_width=SYMLOG * self.high, vmin=self.low, vmax=self.high)
        if self.kind == "diverging":
            return TwoSlopeNorm(0.0, self.low, self.high)
        if self.kind == "single":
            half = abs(self.low) / 2 or 0.5
            return Normalize(self.low - half, self.low + half)
        return Normalize(self.low, self.high)


def limits(values: Float[np.ndarray, "..."]) -> tuple[float, float]:
    """Return the lowest and the highest finite value; 0 and 0 if there is none."""
    finite = values[np.isfinite(values)]
    return (float(finite.min()), float(finite.max())) if finite.size else (0.0, 0.0)


def range_label(low: float, high: float) -> str:
    """Return the lowest and the highest value, for panels without a colour bar of their own."""
    return number(low) if low == high else f"{number(low)} … {number(high)}"


def scales(ranges: Iterable[tuple[float, float]], colormap: str | None = None) -> list[Scale]:
    """Return a scale per range, all with one colour map.

    A range of one value gets `Scale.single`. A named `colormap` runs evenly from the lowest to the
    highest value.
    """
    ranges = list(ranges)
    signed = colormap is None and _both_signs([each for each in ranges if each[0] < each[1]])
    chosen = SIGNED if signed else named(colormap)
    kind: Literal["sequential", "diverging"] = "diverging" if signed else "sequential"
    return [
        Scale(low=low, high=high, colormap=chosen, kind=kind) if low < high else Scale.single(low)
        for low, high in ranges
    ]


def with_range(every: Sequence[Scale]) -> Scale:
    """Return the first scale that is not of a single value, if there is one."""
    return next((scale for scale in every if scale.kind != "single"), every[0])


def check_limits(given: object) -> None:
    """Refuse colour limits that are not None or two finite numbers, the lower one first."""
    try:
        low, high = (float(each) for each in given or (0, 1))  # type: ignore[attr-defined]
    except (TypeError, ValueError):
        low, high = 0.0, 0.0
    if not (np.isfinite([low, high]).all() and low < high):
        raise InputError(f"limits must be two numbers, low and high, got {given!r}.")


def named(colormap: str | None) -> Colormap:
    """Return matplotlib's colour map of that name; None is the sequential one used here."""
    name = SEQUENTIAL if colormap is None else colormap
    if name not in mpl.colormaps:
        raise InputError(
            f"matplotlib has no colour map {name!r}; cividis and magma are two it has."
        )
    return mpl.colormaps[name]


def _both_signs(ranges: Sequence[tuple[float, float]]) -> bool:
    return bool(ranges) and all(min(-low, high) >= SHARE * (high - low) for low, high in ranges)


def number(value: float) -> str:
    """Return a value as text for a label beside a panel."""
    text = f"{value:,.0f}" if abs(value) >= 100 else f"{value + 0.0:.2g}"
    return text.replace("-", "\N{MINUS SIGN}")
