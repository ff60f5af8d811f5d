"""The exception for mistakes that the user can correct, and the checks of values that raise it.

Values from TOML, JSON, the command line and Python callers are unchecked until `check_types` or
`check_values`. An int is converted to float where the field is a float, and a list to a tuple where
it is a tuple; nothing else is converted. The contents of mappings are not checked.
"""

import re
import types
from collections.abc import Collection, Mapping
from dataclasses import fields
from difflib import get_close_matches
from functools import cache
from numbers import Integral
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints


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


def check_types(config: Any, skip: tuple[str, ...] = ()) -> None:
    """Refuse a field of the wrong type, with its name and value; `skip` names unchecked fields."""
    hints = _hints(config.__class__)
    for item in fields(config):
        if item.name not in skip:
            value = checked(item.name, getattr(config, item.name), hints[item.name])
            # The dataclass may be frozen, and its __init__ is still running.
            object.__setattr__(config, item.name, value)


def check_values(config: type, values: Mapping[str, Any]) -> dict[str, Any]:
    """Return `values` with the types of the config's fields, before a config is built from them."""
    hints = _hints(config)
    return {name: checked(name, value, hints[name]) for name, value in values.items()}


def checked(name: str, value: Any, hint: Any) -> Any:
    """Return the value, with int to float and list to tuple as `hint` says; refuse other types."""
    if get_origin(hint) is Literal:
        options = get_args(hint)
        if value not in options:
            raise InputError(f"{name}={value!r} is not one of {', '.join(map(repr, options))}.")
        return value
    options = get_args(hint) if get_origin(hint) in {Union, types.UnionType} else (hint,)
    kinds = tuple(get_origin(option) or option for option in options)
    if tuple in kinds and isinstance(value, list | tuple):
        each = get_args(options[kinds.index(tuple)])
        # tuple[X, ...] says one type for all; the contents of other tuples are not checked.
        alike = len(each) == 2 and each[1] is Ellipsis
        return tuple(checked(name, x, each[0]) for x in value) if alike else tuple(value)
    if float in kinds and type(value) is int:
        try:
            return float(value)
        except OverflowError:
            raise InputError(f"{name} is too large for a float.") from None
    if not isinstance(value, kinds) or (isinstance(value, bool) and bool not in kinds):
        raise InputError(f"{name}={value!r} is not of type {kinds[0].__name__}.")
    return value


def as_tuples(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values with lists as tuples, because JSON and TOML only have lists."""
    return {name: tuple(x) if isinstance(x, list) else x for name, x in values.items()}


def out_of_memory(error: BaseException) -> bool:
    """Return whether memory could not be allocated; on a CPU torch raises a plain RuntimeError."""
    said = str(error)
    torchs = isinstance(error, RuntimeError) and (
        "allocate memory" in said or "out of memory" in said
    )
    return isinstance(error, MemoryError) or torchs


def memory_sentence(error: BaseException) -> str:
    """Return what to say where `out_of_memory`, with the size where the error has it."""
    size = re.search(r"allocate ([\d.]+) ?([KMGT]i?B|bytes)", str(error))
    asked = ""
    if size is not None:
        number, unit = float(size[1]), size[2]
        shown = f"{number / 2**30:.3g} GiB" if unit == "bytes" else f"{number:g} {unit}"
        asked = f" ({shown} more were asked for)"
    return (
        f"not enough memory is free{asked}: choose a shorter text, fewer layers or heads, a "
        f"smaller batch or a smaller model."
    )


@cache
def _hints(config: type) -> dict[str, Any]:
    return get_type_hints(config)
