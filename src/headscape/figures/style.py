"""How every figure looks, and how it is written so that the same capture gives the same bytes.

Colours. Values that keep one sign are dark far from zero and light near it: viridis below zero,
magma reversed above. Where they change sign the scale is `SIGNED`, centred on zero. All change
steadily in lightness, so order survives in print without colour, and none sets red against green.
SIGNED is navy, blue, grey, amber, yellow: its middle is grey and not white, because white is what
an invisible entry looks like. Two dark ends around a white middle, the usual choice, would lose the
sign in grey. Attention weights, which span orders of magnitude, are coloured by their logarithm.

Drawing happens inside `context()`, on matplotlib's own defaults and not on the user's matplotlibrc,
and never through pyplot. SVG text stays text.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from io import BytesIO
from pathlib import Path
from typing import Any, Final

import matplotlib as mpl
import numpy as np
from jaxtyping import Float
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import Colormap, LinearSegmentedColormap, LogNorm, Normalize
from matplotlib.figure import Figure

from headscape.errors import InputError
from headscape.io.atomic import write_bytes

FORMATS: Final = ("png", "svg", "pdf")
DPI: Final = 200
INK: Final = "#1b1f24"
ACCENT: Final = "#1f5a96"
SIGNED: Final = LinearSegmentedColormap.from_list(
    "signed",
    [(0, "#0a1a3f"), (0.3, "#2a6fc4"), (0.5, "#a6a7a9"), (0.7, "#f2ab3d"), (1, "#fff3a0")],
)

_SETTINGS: Final[dict[Any, Any]] = {
    "font.family": "sans-serif",
    "font.sans-serif": ["DejaVu Sans", "Verdana", "Helvetica", "Arial", "sans-serif"],
    "font.size": 8,
    "axes.titlesize": 9,
    "axes.labelsize": 8,
    "axes.linewidth": 0.6,
    "axes.edgecolor": INK,
    "axes.labelcolor": INK,
    "text.color": INK,
    "xtick.labelsize": 8,
    "ytick.labelsize": 8,
    "xtick.major.width": 0.6,
    "ytick.major.width": 0.6,
    "xtick.major.size": 2.5,
    "ytick.major.size": 2.5,
    "legend.frameon": False,
    "svg.fonttype": "none",
    "svg.hashsalt": "headscape",
    "pdf.fonttype": 42,
}
# Left to itself each backend writes the time, or its version, into the file.
_METADATA: Final[dict[str, dict[str, None]]] = {
    "png": {"Software": None},
    "svg": {"Date": None, "Creator": None},
    "pdf": {"CreationDate": None, "Producer": None, "Creator": None},
}


@contextmanager
def context() -> Iterator[None]:
    """The settings every figure is drawn and written under; the caller's come back after."""
    with mpl.rc_context():
        mpl.rcdefaults()
        mpl.rcParams.update(_SETTINGS)
        yield


def blank(width: float, height: float) -> Figure:
    """An empty figure, in inches, with a canvas of its own."""
    figure = Figure(figsize=(width, height), dpi=DPI, facecolor="white")
    FigureCanvasAgg(figure)
    return figure


def check_formats(formats: Sequence[str]) -> None:
    """Refuse an ending that no figure has."""
    for name in formats:
        if name not in FORMATS:
            raise InputError(f"{name!r} is not a figure format; choose from {', '.join(FORMATS)}.")


def save(figure: Figure, stem: Path, formats: Sequence[str] = FORMATS) -> list[Path]:
    """Write `stem`.png, .svg and so on, each whole or not at all, and say where."""
    check_formats(formats)
    paths = []
    for name in formats:
        buffer = BytesIO()
        with context():
            figure.savefig(buffer, format=name, dpi=DPI, metadata=_METADATA[name])
        path = stem.with_name(f"{stem.name}.{name}")
        write_bytes(path, buffer.getvalue())
        paths.append(path)
    return paths


@dataclass(frozen=True, kw_only=True)
class Scale:
    """Colours for the values between `low` and `high`."""

    low: float
    high: float
    colormap: Colormap
    signed: bool
    """Whether the colours are centred on zero; then they span the larger of the two sides."""
    logarithmic: bool = False
    """Whether equal ratios have equal steps of colour; what is below `low` is drawn as `low`."""

    @classmethod
    def of(cls, values: Float[np.ndarray, "..."], colormap: str | None = None) -> "Scale":
        """The scale that suits `values`, of which those not finite are left out."""
        finite = values[np.isfinite(values)]
        low, high = (float(finite.min()), float(finite.max())) if finite.size else (0.0, 0.0)
        return cls.between(low, high, colormap)

    @classmethod
    def between(cls, low: float, high: float, colormap: str | None = None) -> "Scale":
        """The scale that suits values from `low` to `high`; a single value is set against zero."""
        if low == high:
            low, high = (-1.0, 0.0) if low == 0 else (min(low, 0.0), max(high, 0.0))
        signed = low < 0 < high
        if colormap is not None:
            chosen = _named(colormap)
        elif signed:
            chosen = SIGNED
        else:
            chosen = mpl.colormaps["viridis" if high <= 0 else "magma_r"]
        return cls(low=low, high=high, colormap=chosen, signed=signed)

    def centred(self) -> "Scale":
        """The same range in the colours that are centred on zero."""
        return replace(self, colormap=SIGNED, signed=True)

    @classmethod
    def of_weights(cls, colormap: str | None = None) -> "Scale":
        """The scale of attention weights, the same for all: four decades below 1."""
        chosen = _named(colormap or "magma_r")
        return cls(low=1e-4, high=1.0, colormap=chosen, signed=False, logarithmic=True)

    @property
    def norm(self) -> Normalize:
        """From values to the colour map's 0 ... 1."""
        if self.logarithmic:
            return LogNorm(self.low, self.high, clip=True)
        far = max(-self.low, self.high)
        return Normalize(-far, far) if self.signed else Normalize(self.low, self.high)

    @property
    def label(self) -> str:
        """The range in words, for panels without a colour bar."""
        low, high = (
            f"{each:,.0f}" if abs(each) >= 100 else f"{each + 0.0:.2g}"
            for each in (self.low, self.high)
        )
        return f"{low} … {high}".replace("-", "\N{MINUS SIGN}")


def _named(colormap: str) -> Colormap:
    if colormap not in mpl.colormaps:
        raise InputError(f"{colormap} is not a colour map that matplotlib knows.")
    return mpl.colormaps[colormap]


def one_meaning(scales: list[Scale]) -> list[Scale]:
    """One picture, one meaning of colour: where a panel changes sign, all are centred on zero."""
    return [scale.centred() for scale in scales] if any(s.signed for s in scales) else scales
