"""One panel per head, laid out as in the appendix of the CABLE paper (EMNLP 2025).

Twelve heads make four rows of three, titled "Head 1" to "Head 12", each with its own range.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from headscape.captures.capture_file import CaptureData
from headscape.captures.choice import choose_heads, choose_layer, choose_quantity
from headscape.captures.labels import default_name, head_titles, heading
from headscape.plots.maps import Maps


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class Grid(Maps):
    """The heads of one layer, a panel each; shows itself in a notebook.

    Example:
        >>> import headscape as hs
        >>> model = hs.load(hs.GPT2.from_preset("nano", encoding="alibi", vocabulary=257))
        >>> grid = model.capture([5, 6, 7, 8]).grid(heads=[0, 3], columns=2, width=3.3)
        >>> grid.save("figure.pdf").name
        'figure.pdf'
    """

    @classmethod
    def of(
        cls,
        capture: CaptureData,
        layer: int = -1,
        quantity: str | None = None,
        heads: Sequence[int] | None = None,
        **options: Any,
    ) -> "Grid":
        """Return the grid of one captured layer.

        `layer` and `heads` count from 0, -1 is the last; by default all captured heads. `quantity`
        is content, bias, final or weights; by default `bias`, or `final` where the encoding adds
        none. `options` are the fields of `Maps`, such as `columns`, `width` (inches) and `heading`.
        """
        layer = choose_layer(layer, capture.layers)
        heads = choose_heads(heads, capture.heads)
        quantity = choose_quantity(quantity, capture, layers=[layer])
        shown: dict[str, Any] = {
            "heading": heading(capture, layer, quantity),
            "stem": default_name("grid", capture, quantity=quantity, layer=layer, heads=heads),
            **options,
        }
        return cls(
            maps=capture.drawn(quantity, layer, heads),
            titles=head_titles(heads),
            edges=capture.drawn_edges,
            unit=capture.unit,
            weights=quantity == "weights",
            **shown,
        )
