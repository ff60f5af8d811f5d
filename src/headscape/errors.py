"""The exception for mistakes that the user can correct."""

from collections.abc import Collection
from difflib import get_close_matches
from numbers import Integral


class InputError(ValueError):
    """A value from outside that cannot be used.

    The message is one sentence: what is wrong, the value, what to do. The command line prints it
    and exits with code 2. Any other exception is a defect and keeps its traceback.

    Example:
        >>> import headscape as hs
        >>> try:
        ...     hs.load("no-such-folder")
        ... except hs.InputError as error:
        ...     print(error)
        there is no file or folder no-such-folder.
    """


def at_least(least: int, **values: object) -> None:
    """Raise InputError unless every value is None or a whole number of at least `least`."""
    for name, value in values.items():
        if value is None:
            continue
        if isinstance(value, bool) or not isinstance(value, Integral):
            raise InputError(f"{name} must be a whole number, got {value!r}.")
        if int(value) < least:
            raise InputError(f"{name} must be at least {least}, got {value}.")


def unknown(what: str, name: str, known: Collection[str], advice: str = "") -> InputError:
    """Return the error for a name that is not one of `known`: the closest one, or else all."""
    near = get_close_matches(name.lower(), known, n=1)
    if near:
        return InputError(f"unknown {what} {name!r}: did you mean {near[0]!r}?")
    there = ", ".join(known) or "none"
    return InputError(f"unknown {what} {name!r}: there are {there}{advice}.")
