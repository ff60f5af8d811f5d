"""Which layer, heads and quantity of a capture are meant.

Layers and heads count from 0. A negative number counts from the end of what was captured, so -1 is
the last captured layer or head.
"""

from collections.abc import Mapping, Sequence

from headscape.errors import InputError


def choose_layer(layer: int, captured: Sequence[int]) -> int:
    """Return the number of the chosen layer, counted from 0."""
    return _choose("layer", layer, captured)


def choose_heads(heads: Sequence[int] | None, captured: Sequence[int]) -> tuple[int, ...]:
    """Return the numbers of the chosen heads in the given order; None means all captured heads."""
    if heads is None:
        return tuple(captured)
    chosen = tuple(_choose("head", head, captured) for head in heads)
    if not chosen:
        raise InputError("the list of heads is empty; give at least one head, or None for all.")
    for head in chosen:
        if chosen.count(head) > 1:
            raise InputError(f"head {head} (counted from 0) is listed twice; list each head once.")
    return chosen


def choose_quantity(quantity: str | None, *claims: Mapping[str, bool]) -> str:
    """Return `quantity`, or by default what one figure of these encodings shows.

    That is `bias` where all of them add one, otherwise `final`: an encoding that adds nothing to
    the scores (its claim `adds_bias` is false) shows in the scores alone.
    """
    if quantity is not None:
        return quantity
    return "bias" if all(each.get("adds_bias", True) for each in claims) else "final"


def _choose(what: str, number: int, captured: Sequence[int]) -> int:
    if -len(captured) <= number < 0:
        return captured[number]
    if number not in captured:
        there = ", ".join(map(str, captured))
        raise InputError(
            f"{what} {number} is not in this capture, which contains {what}s {there} "
            "(counted from 0)."
        )
    return number
