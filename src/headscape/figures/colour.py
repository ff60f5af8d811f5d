"""From values to colours. Lighter is greater, in every figure.

A figure has one colour map:

    viridis    the whole map from the lowest to the highest value, if any panel is nearly all of one
               sign; zero is marked on the colour bar if it lies inside the range.
    SIGNED     if in every panel each sign takes at least a fifth of the range. Zero is grey, and
               each side of it uses its half of the map in full (two slopes).

Both get steadily lighter, so their order survives in grey print, and neither sets red against
green. SIGNED runs navy, blue, grey, amber, yellow: its middle is not white because invisible
entries are. Attention weights, which span orders of magnitude, are coloured by their logarithm.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final, Literal

import matplotlib as mpl
import numpy as np
from jaxtyping import Float
from matplotlib.colors import (
    Colormap,
    LinearSegmentedColormap,
    LogNorm,
    Normalize,
    TwoSlopeNorm,
)

from headscape.errors import InputError

SIGNED: Final = LinearSegmentedColormap.from_list(
    "signed",
    [(0, "#0a1a3f"), (0.36, "#2a6fc4"), (0.5, "#a6a7a9"), (0.64, "#f2ab3d"), (1, "#fff3a0")],
)
SEQUENTIAL: Final = "viridis"
SHARE: Final = 0.2
"""The least part of a range that lies on either side of zero where colours diverge."""
WEIGHTS: Final = (1e-4, 1.0)
"""Range of the colours of attention weights; smaller weights have the colour of its lower end."""


@dataclass(frozen=True, kw_only=True)
class Scale:
    """Colours for the values between `low` and `high`."""

    low: float
    high: float
    colormap: Colormap
    kind: Literal["sequential", "diverging", "logarithmic"] = "sequential"

    @classmethod
    def symmetric(cls, values: Float[np.ndarray, "..."], colormap: str | None = None) -> "Scale":
        """Return the scale of differences: diverging and equally far on both sides of zero."""
        low, high = limits(values)
        far = max(-low, high) or 1.0
        chosen = SIGNED if colormap is None else named(colormap)
        return cls(low=-far, high=far, colormap=chosen, kind="diverging")

    @classmethod
    def of_weights(cls, colormap: str | None = None) -> "Scale":
        """Return the scale of attention weights, which is the same for all heads."""
        low, high = WEIGHTS
        return cls(low=low, high=high, colormap=named(colormap), kind="logarithmic")

    @property
    def norm(self) -> Normalize:
        """Maps values to the colour map's 0 ... 1."""
        if self.kind == "logarithmic":
            return LogNorm(self.low, self.high, clip=True)
        if self.kind == "diverging":
            return TwoSlopeNorm(0.0, self.low, self.high)
        return Normalize(self.low, self.high)


def limits(values: Float[np.ndarray, "..."]) -> tuple[float, float]:
    """Return the lowest and the highest finite value; 0 and 0 if there is none."""
    finite = values[np.isfinite(values)]
    return (float(finite.min()), float(finite.max())) if finite.size else (0.0, 0.0)


def range_label(values: Float[np.ndarray, "..."]) -> str:
    """Return the lowest and the highest value, for panels without a colour bar of their own."""
    low, high = limits(values)
    return _number(low) if low == high else f"{_number(low)} … {_number(high)}"


def scales(ranges: Iterable[tuple[float, float]], colormap: str | None = None) -> list[Scale]:
    """Return a scale per range, all with one colour map.

    A range of a single value is extended to zero, and 0 alone to -1 ... 0. A named `colormap` runs
    evenly from the lowest to the highest value.
    """
    extended = [_extended(low, high) for low, high in ranges]
    if colormap is None and _both_signs(extended):
        return [
            Scale(low=low, high=high, colormap=SIGNED, kind="diverging") for low, high in extended
        ]
    chosen = named(colormap)
    return [Scale(low=low, high=high, colormap=chosen) for low, high in extended]


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


def _extended(low: float, high: float) -> tuple[float, float]:
    if low < high:
        return low, high
    return (-1.0, 0.0) if low == 0 else (min(low, 0.0), max(high, 0.0))


def _number(value: float) -> str:
    text = f"{value:,.0f}" if abs(value) >= 100 else f"{value + 0.0:.2g}"
    return text.replace("-", "\N{MINUS SIGN}")
