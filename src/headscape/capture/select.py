"""Layers and heads named in words."""

from headscape.errors import InputError


def chosen(text: str, count: int, what: str) -> tuple[int, ...]:
    """Indices from words: `all`, `last`, or numbers from 1, as pictures have them: 1,3,5-8."""
    if text == "all":
        return tuple(range(count))
    if text == "last":
        return (count - 1,)
    numbers: list[int] = []
    for part in text.split(","):
        low, dash, high = part.partition("-")
        if not low.isdigit() or (dash and not high.isdigit()):
            raise InputError(f"{what}s {text!r}: write all, last, or numbers such as 1,3,5-8.")
        numbers.extend(range(int(low), int(high or low) + 1))
    for number in numbers:
        if not 1 <= number <= count:
            raise InputError(f"{what} {number} is not there: the model has 1 to {count}.")
    return tuple(dict.fromkeys(number - 1 for number in numbers))
