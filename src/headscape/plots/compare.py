"""Captures compared: the difference of two, or one head of several side by side.

`Difference` is the first capture's map minus the second's, head by head: two checkpoints, two
encodings, two sequences or two models. Colours are symmetric about zero, so equal changes up and
down are equally strong. Differences of attention weights, which span orders of magnitude, are
logarithmic on both sides of zero, as in the viewer.

`SideBySide` gives each capture its own colour bar. With `shared_scale` all have one range, which is
fair to the eye only where the quantities are the same: RoPE adds no bias, so its `bias` is what the
rotation changed.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil
from pathlib import Path
from typing import Any

import numpy as np

from headscape.captures.capture_file import Capture
from headscape.captures.choice import choose_heads, choose_layer, choose_quantity
from headscape.captures.labels import default_name, head_titles, layer_words, method, quantity_words
from headscape.captures.record import capture
from headscape.captures.sequences import Text
from headscape.errors import InputError
from headscape.models.model import Model
from headscape.plots.colour import Scale
from headscape.plots.grid import Maps


def same_input(first: Capture, second: Capture) -> bool:
    """Return whether two captures are of the same tokens, or of the same sound."""
    sounds = (each.sequence.get("sound") for each in (first, second))
    return np.array_equal(first.tokens, second.tokens) and len(set(sounds)) == 1


def check_comparable(captures: Sequence[Capture]) -> None:
    """Refuse captures whose maps have different shapes."""
    for what, values in (
        (captures[0].unit, [each.length for each in captures]),
        ("cells a side", [each.resolution or each.length for each in captures]),
    ):
        if len(set(values)) > 1:
            raise InputError(
                f"captures of {', '.join(map(str, values))} {what} cannot be compared; capture "
                "all with the same length and resolution."
            )


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class Difference(Maps):
    """One layer of two captures, the first minus the second."""

    @classmethod
    def of(
        cls,
        first: Capture,
        second: Capture,
        quantity: str | None = None,
        layer: int = -1,
        heads: Sequence[int] | None = None,
        **options: Any,
    ) -> "Difference":
        """Return the difference of two captures of one length, first minus second.

        If the captures are of different tokens, the heading says so.

        Args:
            first: What is drawn.
            second: What is subtracted from it.
            quantity: As in `Capture.grid`.
            layer: Counted from 0; -1 is the last of each capture.
            heads: Counted from 0; by default those of the first capture.
            **options: The fields of `Maps`.
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
            "label": f"Difference of {quantity_words(quantity)}",
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
            weights=quantity == "weights",
            **shown,
        )

    def scales(self) -> list[Scale]:
        """Return the colour scale of every panel."""
        every: Any = [self.maps] * len(self.maps) if self.shared_scale else self.maps
        if self.limits is not None:
            every = [np.array(self.limits)] * len(self.maps)
        return [Scale.symmetric(each, self.cmap, weights=self.weights) for each in every]


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class SideBySide(Maps):
    """One head of several captures, in rows of at most four."""

    @classmethod
    def of(
        cls,
        captures: Sequence[Capture],
        quantity: str | None = None,
        layer: int = -1,
        head: int = 0,
        **options: Any,
    ) -> "SideBySide":
        """Return the same quantity, layer and head of each capture.

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
            "label": quantity_words(quantity).capitalize(),
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


def compare(
    first: Capture | Model | Path | str,
    second: Capture | Model | Path | str,
    text: Text | None = None,
    *,
    quantity: str | None = None,
    layer: int = -1,
    head: int | None = None,
    heads: Sequence[int] | None = None,
    columns: int | None = None,
    width: float | None = None,
    shared_scale: bool = False,
    limits: tuple[float, float] | None = None,
    cmap: str | None = None,
    title: str | None = "auto",
) -> Difference:
    """Return the figure of `first` minus `second`, one panel per head.

    Args:
        first: A capture, a capture file, or a model that reads `text`.
        second: The same.
        text: A text or token numbers, for models.
        quantity: content, bias, final or weights; by default what both show.
        layer: Counted from 0; -1 is the last.
        head: One head, counted from 0; by default all.
        heads: Several heads, counted from 0.
        columns: Panels in a row.
        width: Width of the figure in inches.
        shared_scale: One colour range for all panels.
        limits: Colour limits of all panels; the farther from 0 counts, on both sides.
        cmap: A matplotlib colour map in place of the diverging one.
        title: The line above the panels: "auto", your own, or None for none.

    Example:
        >>> import headscape as hs
        >>> one, two = (
        ...     hs.load(hs.GPT2.from_preset("nano", encoding=name, vocabulary=257))
        ...     for name in ("alibi", "kerple")
        ... )
        >>> figure = hs.compare(one, two, [5, 6, 7, 8], head=7)
        >>> figure.save("difference.png").name
        'difference.png'
    """
    one, two = (_side(source, text, layer) for source in (first, second))
    chosen = heads if head is None else [head]
    options = {} if title == "auto" else {"heading": title}
    return Difference.of(
        one, two, quantity, layer, chosen, columns=columns, width=width,
        shared_scale=shared_scale, limits=limits, cmap=cmap, **options,
    )  # fmt: skip


def _side(source: object, text: Text | None, layer: int) -> Capture:
    if isinstance(source, Capture):
        return source
    if isinstance(source, str | Path):
        return Capture.load(source)
    if isinstance(source, Model):
        return capture(source, text, layers=layer)
    raise InputError(f"compare takes captures or models, got {type(source).__name__}.")
