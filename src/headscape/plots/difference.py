"""The difference of two captures, head by head: two checkpoints, two encodings or two sequences.

Each panel is the first capture's map minus the second's. Colours are symmetric about zero, so equal
changes up and down are equally strong. Differences of attention weights are drawn linearly.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from headscape.captures.capture_file import CaptureData
from headscape.captures.choice import choose_heads, choose_layer, choose_quantity
from headscape.captures.labels import default_name, head_titles, layer_words, method, quantity_words
from headscape.plots.colour import Scale
from headscape.plots.maps import Maps
from headscape.plots.side_by_side import check_comparable, same_input


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class Difference(Maps):
    """One layer of two captures, the first minus the second."""

    @classmethod
    def of(
        cls,
        first: CaptureData,
        second: CaptureData,
        layer: int = -1,
        quantity: str | None = None,
        heads: Sequence[int] | None = None,
        **options: Any,
    ) -> "Difference":
        """Return the difference of two captures of one length, first minus second.

        `layer` and `heads` count from 0, -1 is the last of each capture; by default the heads of
        the first capture. `options` are the fields of `Maps`. If the captures are of different
        tokens, the heading says so.
        """
        pair = (first, second)
        check_comparable(pair)
        layers = [choose_layer(layer, each.layers) for each in pair]
        quantity = choose_quantity(quantity, *pair, layers=layers)
        heads = choose_heads(heads, first.heads)
        one, other = (
            each.drawn(quantity, where, heads) for each, where in zip(pair, layers, strict=True)
        )
        names = [method(each) for each in pair]
        where = [layer_words(each, at) for each, at in zip(pair, layers, strict=True)]
        place = f", {where[0]}"
        if where[0] != where[1]:
            names = [f"{x}, {at}" for x, at in zip(names, where, strict=True)]
            place = ""
        minus = f"({names[0]}) \N{MINUS SIGN} ({names[1]})"
        note = "" if same_input(first, second) else ", different input"
        shown: dict[str, Any] = {
            "heading": f"{minus}{place}: {quantity_words(quantity)}{note}",
            "stem": default_name(
                "difference", pair, quantity=quantity, layer=layers[0], heads=heads
            ),
            **options,
        }
        return cls(
            maps=one - other,
            titles=head_titles(heads),
            edges=first.drawn_edges,
            unit=first.unit,
            **shown,
        )

    def scales(self) -> list[Scale]:
        """Return the colour scale of every panel."""
        every = [self.maps] * len(self.maps) if self.shared_scale else self.maps
        return [Scale.symmetric(each, self.colormap) for each in every]
