"""Which layer, heads and quantity of a capture are meant, and what it says of a layer.

Layers and heads count from 0. A negative number counts from the end of what was captured, so -1 is
the last captured layer or head. The note that titles add to a layer's number names its encoding if
layers differ, and its window, chunk, temperature, softcap and sink if it has them.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from headscape.call.quantities import QUANTITIES
from headscape.errors import InputError, unknown

if TYPE_CHECKING:
    from headscape.captures.capture_file import Capture

OFF: Final[Mapping[str, Any]] = {
    "window": None,
    "chunk": None,
    "temperature": "none",
    "softcap": None,
    "sink": False,
}
"""Fields of every encoding that a note names, and the value of each that switches it off."""


def choose_layer(layer: int, captured: Sequence[int]) -> int:
    """Return the number of the chosen layer, counted from 0."""
    return _choose("layer", layer, captured)


def choose_heads(heads: Sequence[int] | None, captured: Sequence[int]) -> tuple[int, ...]:
    """Return the numbers of the chosen heads in the given order; None means all captured heads."""
    if heads is None:
        return tuple(captured)
    if isinstance(heads, int | str):
        raise InputError(f"heads must be a list of numbers such as [0, 3], got {heads!r}.")
    chosen = tuple(_choose("head", head, captured) for head in heads)
    if not chosen:
        raise InputError("the list of heads is empty; give at least one head, or None for all.")
    for head in chosen:
        if chosen.count(head) > 1:
            raise InputError(f"head {head} (counted from 0) is listed twice; list each head once.")
    return chosen


def choose_quantity(
    quantity: str | None, *captures: "Capture", layers: Sequence[int] | None = None
) -> str:
    """Return `quantity`, or by default what one figure of these captures shows.

    That is what their layers show (`bias`, or `final` where nothing is added to the scores), and
    `final` where they differ. `layers` has the layer drawn of each capture; by default all count.
    """
    if quantity is not None:
        if quantity not in QUANTITIES:
            raise unknown("quantity", str(quantity), QUANTITIES)
        return quantity
    drawn = [each.layers for each in captures] if layers is None else [[n] for n in layers]
    shown = {
        each.about(layer)["shows"]
        for each, numbers in zip(captures, drawn, strict=True)
        for layer in numbers
    }
    wanted = shown.pop() if len(shown) == 1 else "final"
    common = [name for name in QUANTITIES if all(name in each.quantities for each in captures)]
    return wanted if wanted in common or not common else common[0]


def _choose(what: str, number: int, captured: Sequence[int]) -> int:
    if isinstance(number, str | float):
        raise InputError(f"{what} must be a whole number, counted from 0, got {number!r}.")
    if -len(captured) <= number < 0:
        return captured[number]
    if number not in captured:
        there = ", ".join(map(str, captured))
        raise InputError(
            f"{what} {number} is not in this capture, which contains {what} {there} "
            f"(counted from 0): capture the {what}s you need."
        )
    return number


def require(what: str, asked: Iterable[object], captured: Iterable[object]) -> None:
    """Refuse what a capture does not contain, and say what it does."""
    there = list(captured)
    for each in asked:
        if each not in there:
            names = ", ".join(str(name) for name in there) or "none"
            raise InputError(f"{what} {each} is not in this capture, which contains {names}.")


def about_layer(described: Mapping[str, Any], layer: int) -> dict[str, Any]:
    """Return the conventions, `shows` and `claims` of a layer, counted from 0.

    `described` has a capture's model, conventions and claims. If layers differ, the `title` of the
    layer's encoding is returned too.
    """
    model, conventions = described["model"], described["conventions"]
    return {
        "conventions": conventions.get(str(layer), conventions),
        "shows": str(model.get("shows", "bias")),
        "claims": described["claims"],
        **model.get("schedule", {}).get(str(layer), {}),
    }


def layer_note(about: Mapping[str, Any]) -> str:
    """Return the note of a layer, such as "RoPE, window 64"; it may be empty."""
    conventions = about["conventions"]
    parts = [about["title"]] if "title" in about else []
    for name, off in OFF.items():
        value = conventions.get(name, off)
        if value != off:
            parts.append(name if value is True else f"{name} {_plain(value)}")
    return ", ".join(parts)


def _plain(value: object) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)
