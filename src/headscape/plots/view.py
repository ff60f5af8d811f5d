"""What every figure can do: draw itself, write itself to a file, show itself in a notebook.

A view is a frozen dataclass with the arrays it shows and the options it is drawn with. `draw()`
gives a new matplotlib figure each time; nothing is kept between calls.
"""

from abc import ABC, abstractmethod
from base64 import b64encode
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any, ClassVar, Final

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from headscape.captures.capture_file import Capture
from headscape.captures.choice import choose_heads, choose_layer, choose_quantity
from headscape.captures.labels import default_name, heading, quantity_words
from headscape.errors import InputError, at_least
from headscape.io.output_file import KINDS, check_output, write_output
from headscape.plots.figure_layout import Layout, shape
from headscape.plots.style import FORMATS, check_width, encode

_SCREEN_DPI: Final = 110


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class View(ABC):
    """A figure, not yet drawn."""

    heading: str | None = None
    """A line above the panels; None for none."""
    stem: str = "figure"
    """The file name without suffix to use where the user gives none."""

    formats: ClassVar[tuple[str, ...]] = FORMATS
    """Suffixes that `save` writes, without the dot."""

    def __post_init__(self) -> None:
        check_width(getattr(self, "width", None))

    @abstractmethod
    def draw(self) -> Figure:
        """Return the figure as a new matplotlib figure."""

    def save(self, path: str | Path) -> Path:
        """Write the figure to `path` atomically, in the format of its suffix, and return `path`.

        An existing file is replaced if it is a picture of the same format.
        """
        path = Path(path)
        suffix = path.suffix.removeprefix(".").lower()
        if suffix not in self.formats:
            endings = ", ".join(f".{name}" for name in self.formats)
            raise InputError(f"cannot tell the format of {str(path)!r}; end its name in {endings}.")
        check_output(path, KINDS[suffix])
        write_output(path, self.encode(suffix), KINDS[suffix])
        return path

    def encode(self, name: str) -> bytes:
        """Return the figure as the bytes of a file in the format `name`."""
        return encode(self.draw(), name)

    def _repr_png_(self) -> bytes:
        return encode(self.draw(), "png", _SCREEN_DPI)

    def _repr_html_(self) -> str:
        figure = self.draw()
        picture = b64encode(encode(figure, "png")).decode()
        width = round(96 * figure.get_figwidth())
        alt = escape(self.heading or self.stem)
        return f'<img src="data:image/png;base64,{picture}" alt="{alt}" width="{width}">'

    def __repr__(self) -> str:
        return f"<{type(self).__name__}: {self.heading or self.stem}>"


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class Panelled(View):
    """A view of equal panels in rows and columns."""

    titles: tuple[str, ...]
    """One per panel."""
    columns: int | None = None
    """Panels in a row; by default an upright page, 3 for 12 panels."""
    width: float | None = None
    """Width of the figure in inches; by default panels have a fixed size."""
    unit: str = "tokens"
    """What positions count: tokens, or frames of sound."""
    label: str | None = None
    """The quantity, as colour bars or axes name it."""

    def __post_init__(self) -> None:
        super().__post_init__()
        at_least(1, columns=self.columns)

    def layout(self, panels: int, **sizes: Any) -> Layout:
        """Return where so many panels lie; `sizes` are the lengths of `Layout`."""
        columns = min(self.columns or shape(panels)[1], panels)
        return Layout(
            panels=panels, columns=columns, heading=self.heading, width=self.width, **sizes
        )


@dataclass(frozen=True)
class ShownHeads:
    """What a view of one layer shows, and what it is called."""

    quantity: str
    layer: int
    """Counted from 0, as heads are."""
    heads: tuple[int, ...]
    named: dict[str, Any]
    """The view's `heading`, `stem`, `label` and `unit`."""


def select(
    kind: str,
    capture: Capture,
    quantity: str | None,
    layer: int,
    heads: Sequence[int] | None,
    *,
    query: int | None = None,
    note: str = "",
) -> ShownHeads:
    """Return what a view of this `kind` shows of one captured layer; `note` ends its heading."""
    layer = choose_layer(layer, capture.layers)
    chosen = choose_heads(heads, capture.heads)
    quantity = choose_quantity(quantity, capture, layers=[layer])
    stem = default_name(kind, capture, quantity=quantity, layer=layer, heads=chosen, query=query)
    named = {
        "heading": heading(capture, layer, quantity) + note,
        "stem": stem,
        "label": quantity_words(quantity).capitalize(),
        "unit": capture.unit,
    }
    return ShownHeads(quantity, layer, chosen, named)


def axes_list(axes: Any, panels: int) -> list[Axes]:
    """Return a user's matplotlib axes as a list, one for each panel."""
    found = list(np.ravel(axes))
    if len(found) != panels or not all(isinstance(each, Axes) for each in found):
        raise InputError(
            f"{panels} panels need {panels} matplotlib axes, got {len(found)}: choose as many "
            f"heads as there are axes."
        )
    return found


def check_whole(capture: Capture, why: str) -> None:
    """Refuse a reduced capture, which `why` says something of."""
    if capture.resolution is not None:
        raise InputError(
            f"a capture reduced to {capture.resolution} cells {why}; capture a shorter sequence "
            f"without a resolution."
        )


def targets(
    view: View, out: Path | None, formats: Sequence[str] | None, folder: Path
) -> list[Path]:
    """Return the files to write a view to.

    Without `out` they are named after what the view shows and lie in `folder`. Without `formats`
    there is one file, `out` itself or a PNG, and of the change over training also a GIF.
    """
    for name in formats or ():
        if name not in view.formats:
            raise InputError(
                f"{name!r} is not a format of this figure; choose from {', '.join(view.formats)}."
            )
    if out is not None and not formats:
        return [out]
    stem = folder / view.stem if out is None else out
    if stem.suffix[1:] in view.formats:
        stem = stem.with_suffix("")
    default = [name for name in view.formats if name in {"png", "gif"}]
    return [stem.with_name(f"{stem.name}.{name}") for name in formats or default]
