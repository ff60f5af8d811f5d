"""Several captures side by side for one head, each with its own colour bar.

With `shared_scale` all have one range, which is fair to the eye only where the quantities are the
same: RoPE adds no bias, so its `bias` is what the rotation changed.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil
from typing import Any

import numpy as np

from headscape.captures.capture_file import CaptureData
from headscape.captures.choice import choose_heads, choose_layer, choose_quantity
from headscape.captures.labels import default_name, layer_words, method, quantity_words
from headscape.errors import InputError
from headscape.plots.maps import Maps


def same_input(first: CaptureData, second: CaptureData) -> bool:
    """Return whether two captures are of the same tokens, or of the same sound."""
    sounds = (each.sequence.get("sound") for each in (first, second))
    return np.array_equal(first.tokens, second.tokens) and len(set(sounds)) == 1


def check_comparable(captures: Sequence[CaptureData]) -> None:
    """Refuse captures whose maps have different shapes."""
    for what, values in (
        (captures[0].unit, [capture.length for capture in captures]),
        ("cells a side", [capture.resolution or capture.length for capture in captures]),
    ):
        if len(set(values)) > 1:
            raise InputError(
                f"captures of {', '.join(map(str, values))} {what} cannot be compared; capture "
                "all with the same --length and --resolution."
            )


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class SideBySide(Maps):
    """One head of several captures, in rows of at most four."""

    @classmethod
    def of(
        cls,
        captures: Sequence[CaptureData],
        layer: int = -1,
        head: int = 0,
        quantity: str | None = None,
        **options: Any,
    ) -> "SideBySide":
        """Return the same layer, head and quantity of each capture.

        `layer` and `head` count from 0, -1 is the last of each capture. `quantity` is by default
        `bias`, or `final` where one of the encodings adds none. `options` are the
        fields of `Maps`.
        """
        if not captures:
            raise InputError("there is nothing to compare; give at least one capture.")
        check_comparable(captures)
        layers = [choose_layer(layer, each.layers) for each in captures]
        quantity = choose_quantity(quantity, *captures, layers=layers)
        heads = [choose_heads([head], each.heads)[0] for each in captures]
        places = list(zip(captures, layers, heads, strict=True))
        panels = [method(each) for each in captures]
        words = [layer_words(each, where) for each, where, _ in places]
        first = words[0].replace("layer", "Layer", 1)
        heading = f"{first}, head {heads[0] + 1}: {quantity_words(quantity)}"
        if len({*zip(words, heads, strict=True)}) > 1:
            heading = quantity_words(quantity).capitalize()
            panels = [
                f"{name}, {where}, head {which + 1}"
                for name, where, which in zip(panels, words, heads, strict=True)
            ]
        shown: dict[str, Any] = {
            "heading": heading,
            "stem": default_name(
                "compare", captures, quantity=quantity, layer=layers[0], heads=heads[:1]
            ),
            "columns": ceil(len(captures) / ceil(len(captures) / 4)),
            **options,
        }
        return cls(
            maps=np.concatenate(
                [each.drawn(quantity, where, [which]) for each, where, which in places]
            ),
            titles=tuple(panels),
            edges=captures[0].drawn_edges,
            unit=captures[0].unit,
            weights=quantity == "weights",
            **shown,
        )
