"""The exception for mistakes that the user can correct."""

from collections.abc import Collection
from difflib import get_close_matches


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
        there is no folder no-such-folder.
    """


def unknown(what: str, name: str, known: Collection[str], advice: str = "") -> InputError:
    """Return the error for a name that is not one of `known`, with the closest one."""
    near = get_close_matches(name, known, n=1, cutoff=0.4)
    hint = f"did you mean {near[0]!r}? " if near else ""
    there = f"there are {', '.join(known)}" if known else "there are none"
    return InputError(f"unknown {what} {name!r}: {hint}{there}{advice}.")
