"""The settings every figure is drawn under, and how figures are written to files.

Drawing happens inside `context()`, on matplotlib's own defaults and not on the user's matplotlibrc,
and never through pyplot. The same figure gives the same bytes. SVG text stays text.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from io import BytesIO
from math import ceil
from pathlib import Path
from textwrap import fill
from typing import Any, Final

import matplotlib as mpl
import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.font_manager import findfont, get_font
from matplotlib.textpath import TextPath

from headscape.errors import InputError
from headscape.io.output_file import KINDS, check_output, write_output

FORMATS: Final = ("png", "svg", "pdf")
DPI: Final = 200
PRINT_DPI: Final = 300
"""Of figures made to a given width, which are smaller."""
MAX_WIDTH: Final = 100
"""Widest figure in inches."""
MAX_PIXELS: Final = 1 << 16
"""Pixels of a canvas in either direction, which matplotlib wants to be fewer."""
FONT: Final = 8.0
"""Size of labels in points; panel titles are one point larger."""
RANGE_FONT: Final = 6.0
"""Size in points of the lowest and highest value of a panel without a colour bar of its own."""
INK: Final = "#1b1f24"
ACCENT: Final = "#1f5a96"
RULE: Final = "#d8dce0"

_SETTINGS: Final[dict[Any, Any]] = {
    "font.family": "sans-serif",
    "font.sans-serif": ["DejaVu Sans", "Verdana", "Helvetica", "Arial", "sans-serif"],
    "axes.linewidth": 0.6,
    "axes.edgecolor": INK,
    "axes.labelcolor": INK,
    "text.color": INK,
    "xtick.major.width": 0.6,
    "ytick.major.width": 0.6,
    "xtick.major.size": 2.5,
    "ytick.major.size": 2.5,
    "legend.frameon": False,
    "svg.fonttype": "none",
    "svg.hashsalt": "headscape",
    "pdf.fonttype": 42,
    # A name with two dollar signs is no formula.
    "text.parse_math": False,
}
# By default each backend writes the time or its version into the file.
_METADATA: Final[dict[str, dict[str, None]]] = {
    "png": {"Software": None},
    "svg": {"Date": None, "Creator": None},
    "pdf": {"CreationDate": None, "Producer": None, "Creator": None},
}


@contextmanager
def context(font: float = FONT) -> Iterator[None]:
    """Apply the settings of every figure, with labels of `font` points; restore them at the end."""
    with mpl.rc_context():
        mpl.rcdefaults()
        mpl.rcParams.update(_SETTINGS)
        mpl.rcParams.update({"font.size": font, "axes.labelsize": font, "axes.titlesize": font + 1})
        mpl.rcParams.update({"xtick.labelsize": font, "ytick.labelsize": font})
        yield


def whole_pixels(inches: float) -> float:
    """Return a length that is a whole number of pixels at DPI, at least as long."""
    return ceil(inches * DPI - 1e-6) / DPI


def blank(width: float, height: float, dpi: int = DPI) -> Figure:
    """Return an empty figure of this size in inches, with a canvas of its own."""
    if max(width, height) * dpi >= MAX_PIXELS:
        raise InputError(
            f"a figure of {width:.0f} x {height:.0f} inches is too large: choose fewer heads or a "
            f"smaller width."
        )
    figure = Figure(figsize=(width, height), dpi=dpi, facecolor="white")
    FigureCanvasAgg(figure)
    return figure


def add_heading(figure: Figure, text: str, points: float) -> None:
    """Write a heading at the top of a figure; its room is the caller's to leave."""
    if text:
        y = 1 - 0.06 / figure.get_figheight()
        figure.suptitle(text, y=y, va="top", fontsize=points, parse_math=False)


def wrap(text: str, width: float, points: float) -> str:
    """Return text broken into lines of at most `width` inches, but not within "step 300"."""
    letters = int(width * 72 / (0.54 * points))
    whole = text.replace("step ", "step\N{NO-BREAK SPACE}")
    lines = fill(whole, max(letters, 10), break_long_words=False)
    return lines.replace("\N{NO-BREAK SPACE}", " ")


def text_width(text: str, points: float) -> float:
    """Return how wide a line of text is in inches."""
    with context():
        return float(TextPath((0, 0), text, size=points).get_extents().width) / 72


def readable(piece: str) -> str:
    """Return a token with visible blanks, in letters the font has, short enough for a tick.

    Blanks are shown as in the viewer (web/src/core/text.ts): "·" is a space.
    """
    font = get_font(findfont("DejaVu Sans"))
    shown = piece.replace("\r\n", "\n").translate({10: "⏎", 9: "⇥", 32: "·"})
    shown = "".join(x if font.get_char_index(ord(x)) and x.isprintable() else "�" for x in shown)
    return shown if len(shown) <= 12 else f"{shown[:11]}…"


def check_formats(formats: Sequence[str]) -> None:
    """Refuse a format that figures are not written in."""
    for name in formats:
        if name not in FORMATS:
            raise InputError(f"{name!r} is not a figure format; choose from {', '.join(FORMATS)}.")


def check_width(width: object) -> None:
    """Refuse a width that is not None or a number of inches above 0 and up to MAX_WIDTH."""
    if width is None:
        return
    number = isinstance(width, int | float | np.floating | np.integer)
    # NaN is not in the range either.
    if isinstance(width, bool) or not (number and 0 < width <= MAX_WIDTH):  # type: ignore[operator]
        raise InputError(
            f"width must be a number of inches above 0 and at most {MAX_WIDTH}, got {width!r}."
        )


def encode(figure: Figure, name: str, dpi: float | None = None) -> bytes:
    """Return the bytes of a file in the format `name`: png, svg or pdf."""
    check_formats([name])
    buffer = BytesIO()
    with context():
        figure.savefig(buffer, format=name, dpi=dpi or figure.dpi, metadata=_METADATA[name])
    return buffer.getvalue()


def save(figure: Figure, stem: Path, formats: Sequence[str] = FORMATS) -> list[Path]:
    """Write `stem`.png, `stem`.svg and so on atomically, and return the paths."""
    check_formats(formats)
    paths = [stem.with_name(f"{stem.name}.{name}") for name in formats]
    for path, name in zip(paths, formats, strict=True):
        check_output(path, KINDS[name])
    for path, name in zip(paths, formats, strict=True):
        write_output(path, encode(figure, name), KINDS[name])
    return paths
