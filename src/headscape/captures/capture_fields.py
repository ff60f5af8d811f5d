"""What every field of a capture's description may be: type, size and depth.

A capture may come from anywhere, and right checksums say only that it is as its author wrote it. So
each field is checked before anything uses it. What is true afterwards: strings can be encoded,
numbers are finite and fit into 64 bits, layers and heads are different and few enough to count.
"""

import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

from headscape.captures.choice import QUANTITIES
from headscape.errors import InputError

MAX_INDEX: Final = 100_000
"""Largest number of a layer or head."""
MAX_LENGTH: Final = 1 << 24
"""Most tokens of a sequence."""
MAX_TEXT: Final = 10_000
"""Most characters of a string."""
MAX_ITEMS: Final = 10_000
"""Most items of a list or mapping, but for the tokens' strings."""
MAX_DEPTH: Final = 4
"""Most levels of lists and mappings within a field."""

Check = Callable[[Any], bool]


def check_fields(path: Path, described: Mapping[str, Any]) -> None:
    """Refuse a description with a field of the wrong type, size or depth."""
    for name, value in described.items():
        if name in FIELDS and not FIELDS[name](value):
            _refuse(path, name, value)
    for group, checks in NESTED.items():
        for name, check in checks.items():
            value = described.get(group, {}).get(name)
            if value is not None and not check(value):
                _refuse(path, f"{group}.{name}", value)
    pieces = described.get("sequence", {}).get("pieces") or []
    if pieces and len(pieces) != described["length"]:
        raise InputError(
            f"{path} is damaged: it has {described['length']} tokens and {len(pieces)} pieces."
        )
    if described.get("resolution") and described["resolution"] > described["length"]:
        _refuse(path, "resolution", described["resolution"])


def _refuse(path: Path, name: str, value: object) -> None:
    shown = repr(value)
    if len(shown) > 40:
        shown = f"{shown[:40]}..."
    raise InputError(f"{path} is damaged: its {name} cannot be {ascii(shown)[1:-1]}.")


def _text(value: Any) -> bool:
    if not isinstance(value, str) or len(value) > MAX_TEXT:
        return False
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True


def _flag(value: Any) -> bool:
    return type(value) is bool


def _count(low: int, high: int) -> Check:
    return lambda value: type(value) is int and low <= value <= high


def _optional(check: Check) -> Check:
    return lambda value: value is None or check(value)


def _scalar(value: Any) -> bool:
    if value is None or _flag(value):
        return True
    if isinstance(value, int):
        return abs(value) < 1 << 64
    return math.isfinite(value) if isinstance(value, float) else _text(value)


def _plain(value: Any, depth: int = MAX_DEPTH) -> bool:
    """Whether a value is a scalar, or lists and mappings of scalars to a depth."""
    if isinstance(value, list | dict):
        items = [*value, *value.values()] if isinstance(value, dict) else value
        return depth > 0 and len(items) <= MAX_ITEMS and all(_plain(x, depth - 1) for x in items)
    return _scalar(value)


def _mapping(value: Any) -> bool:
    return isinstance(value, dict) and _plain(value)


def _flags(value: Any) -> bool:
    return _mapping(value) and all(map(_flag, value.values()))


def _numbers(value: Any) -> bool:
    return (
        isinstance(value, list)
        and 0 < len(value) <= MAX_INDEX
        and all(type(item) is int and 0 <= item <= MAX_INDEX for item in value)
        and len(set(value)) == len(value)
    )


def _quantities(value: Any) -> bool:
    return (
        isinstance(value, list)
        and len(value) <= len(QUANTITIES)
        and all(isinstance(item, str) and item in QUANTITIES for item in value)
    )


def _pieces(value: Any) -> bool:
    return isinstance(value, list) and len(value) <= MAX_LENGTH and all(map(_text, value))


def _sequence(value: Any) -> bool:
    if not isinstance(value, dict):
        return False
    return _plain({name: item for name, item in value.items() if name != "pieces"})


def _shows(value: Any) -> bool:
    return isinstance(value, str) and value in QUANTITIES


def _schedule(value: Any) -> bool:
    return _mapping(value) and all(
        isinstance(layer, dict)
        and _text(layer.get("title"))
        and _shows(layer.get("shows"))
        and _flags(layer.get("claims"))
        and len(layer) == 3
        for layer in value.values()
    )


def _conventions(value: Any) -> bool:
    # If layers differ, the fields of a layer are under its number.
    return _mapping(value) and all(
        isinstance(each, dict) for name, each in value.items() if name.isdecimal()
    )


FIELDS: Final[Mapping[str, Check]] = {
    "encoding": _text,
    "conventions": _conventions,
    "claims": _flags,
    "model": _mapping,
    "layers": _numbers,
    "heads": _numbers,
    "length": _count(1, MAX_LENGTH),
    "resolution": _optional(_count(1, MAX_LENGTH)),
    "causal": _flag,
    "sequence": _sequence,
    "provenance": _mapping,
    "trained": _flag,
    "shown": _quantities,
    "refused": _optional(_text),
    "factors": lambda value: isinstance(value, dict) and all(map(_mapping, value.values())),
}
NESTED: Final[Mapping[str, Mapping[str, Check]]] = {
    "model": {
        "name": _text,
        "shows": _shows,
        "preset": _text,
        "layers": _count(1, MAX_INDEX),
        "heads": _count(1, MAX_INDEX),
        "width": _count(1, 1 << 31),
        "train_length": _count(1, 1 << 62),
        "schedule": _schedule,
    },
    "sequence": {
        "corpus": _text,
        "document": _count(0, 1 << 62),
        "offset": _count(0, 1 << 62),
        "seed": _count(0, (1 << 63) - 1),
        "sound": _text,
        "pieces": _pieces,
    },
    "provenance": {"step": _count(0, 1 << 62)},
}
"""Fields within fields; None and absence mean that something is not known."""
