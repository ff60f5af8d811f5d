"""Layers and heads named in words."""

from headscape.errors import InputError


def chosen(text: str, count: int, what: str) -> tuple[int, ...]:
    """Indices from a word: `all`, `last`, or numbers and ranges such as 0,2,4-7."""
    if text == "all":
        return tuple(range(count))
    if text == "last":
        return (count - 1,)
    indices: list[int] = []
    for part in text.split(","):
        low, dash, high = part.partition("-")
        if not low.isdigit() or (dash and not high.isdigit()):
            raise InputError(f"{what}s {text!r}: write all, last, or numbers such as 0,2,4-7.")
        indices.extend(range(int(low), int(high or low) + 1))
    for index in indices:
        if index >= count:
            raise InputError(f"{what} {index} is not there: the model has 0 to {count - 1}.")
    return tuple(dict.fromkeys(indices))
