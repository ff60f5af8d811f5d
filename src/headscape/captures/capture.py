"""A capture with its pictures: what every head did with one sequence, ready to be shown."""

from collections.abc import Sequence
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headscape.captures import capture_file
from headscape.captures.capture_file import CaptureData
from headscape.io.terminal import printable

if TYPE_CHECKING:
    from headscape.measures.measures import Measures
    from headscape.plots.curves import Curves
    from headscape.plots.grid import Grid
    from headscape.plots.overview import Overview
    from headscape.plots.row import Row


class Capture(CaptureData):
    """What every captured head did with one sequence.

    `content`, `bias`, `final` and `weights` give numpy arrays; `grid`, `curves`, `row` and
    `overview` give figures that show themselves in a notebook and have `.save(path)`.

    Example:
        >>> import headscape as hs
        >>> model = hs.load(hs.GPT2.from_preset("nano", encoding="alibi", vocabulary=257))
        >>> cap = model.capture([72, 105, 33])
        >>> [round(float(value), 2) for value in cap.bias(head=0)[2, :2]]
        [-1.26, -0.63]
    """

    @classmethod
    def load(
        cls,
        path: Path | str,
        layers: Sequence[int] | None = None,
        quantities: Sequence[str] | None = None,
    ) -> "Capture":
        """Read a capture file, or only some layers (from 0) and quantities of it.

        Example:
            >>> import headscape as hs
            >>> model = hs.load(hs.GPT2.from_preset("nano", encoding="alibi", vocabulary=257))
            >>> path = model.capture([72, 105, 33]).save("hi.safetensors")
            >>> hs.Capture.load(path, quantities=["bias"])
            <capture of ALiBi, untrained: 3 tokens, layers 1, 12 heads; bias>
        """
        return capture_file.load(Path(path), layers, quantities, kind=cls)

    def grid(self, quantity: str | None = None, layer: int = -1, **options: Any) -> "Grid":
        """One panel per head; options: heads, columns, width (inches), shared_scale, colormap."""
        from headscape.plots.grid import Grid

        return Grid.of(self, quantity, layer, **options)

    def curves(self, quantity: str | None = None, layer: int = -1, **options: Any) -> "Curves":
        """The quantity against distance, one small plot per head."""
        from headscape.plots.curves import Curves

        return Curves.of(self, quantity, layer, **options)

    def row(
        self, quantity: str | None = None, layer: int = -1, query: int | None = None, **options: Any
    ) -> "Row":
        """What one query (default: the last) gives to every key, all heads, with the tokens."""
        from headscape.plots.row import Row

        return Row.of(self, quantity, layer, query, **options)

    def overview(self, quantity: str | None = None, **options: Any) -> "Overview":
        """All captured layers and heads as small maps."""
        from headscape.plots.overview import Overview

        return Overview.of(self, quantity, **options)

    def measures(self, quantity: str | None = None, **options: Any) -> "Measures":
        """Numbers per layer and head: position share, slash, sink, reach, most similar head.

        Options are those of `Measures.of`: layers, context.
        """
        from headscape.measures.measures import Measures

        return Measures.of(self, quantity, **options)

    def view(self, **options: Any) -> Any:
        """Show the capture in the viewer: a widget in a notebook, otherwise a server.

        Options are those of `headscape.view`: html, port, open_browser, precision.
        """
        from headscape.viewer.view import view

        return view(self, **options)

    def __repr__(self) -> str:
        from headscape.captures.labels import method

        layers = ", ".join(map(str, self.layers))
        cells = "" if self.resolution is None else f" reduced to {self.resolution} cells"
        return (
            f"<capture of {printable(method(self))}: {self.length} {self.unit}{cells}, "
            f"layers {layers}, {len(self.heads)} heads; {', '.join(self.quantities)}>"
        )

    def _repr_html_(self) -> str:
        """The grid of the last captured layer under a line of text."""
        grid = self.grid()._repr_html_() if self.quantities else ""
        return f"<p><code>{escape(repr(self))}</code></p>{grid}"
