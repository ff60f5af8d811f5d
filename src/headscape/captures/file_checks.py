"""What a capture's file must have to be believed: its description, checksums and shapes.

A capture may come from anywhere, and right checksums say only that it is as its author wrote it. So
the type, size and depth of each field is checked before anything uses it. What is true afterwards:
strings can be encoded, numbers are finite and fit into 64 bits, layers and heads are different and
few enough to count. The arrays of a layer are checked by saved_call.py.
"""

import hashlib
import json
import math
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, Final

import numpy as np

from headscape.call.quantities import QUANTITIES
from headscape.errors import InputError

FORMAT: Final = 5
CALLS: Final[Mapping[int, str]] = {4: "factors", 5: "calls"}
"""The field that describes the layers' calls, by the formats that are read."""
DESCRIPTION: Final = "description"
"""Name of the checksum of everything that is not a tensor."""


def describe(
    path: Path, metadata: Mapping[str, str], names: Iterable[str]
) -> tuple[dict[str, Any], dict[str, str]]:
    """Return a capture file's description and the checksum of each of its tensors.

    The description has the fields in `names` and one of the layers' calls: `calls`, or `factors` in
    a file of format 4. Raise InputError if the file is not a capture, has a format that is not
    read, or is damaged.

    Args:
        path: The file, for error messages.
        metadata: The metadata of the safetensors file.
        names: The fields that a description must have.
    """
    try:
        described = json.loads(metadata["headscape"], parse_constant=_no_number)
        kind, version = described["kind"], described["format"]
    except (KeyError, TypeError, ValueError, RecursionError) as error:
        raise InputError(f"{path} is a safetensors file but not a headscape capture.") from error
    if kind != "capture":
        raise InputError(f"{path} is a headscape {ascii(kind)[:40]}, not a capture.")
    if type(version) is not int or version not in CALLS:
        known = " and ".join(map(str, CALLS))
        raise InputError(
            f"{path} has capture format {ascii(version)[:40]} and this version reads {known}: "
            f"capture it again, or upgrade headscape."
        )
    sums = described.get("sha256")
    names = (*names, CALLS[version])
    missing = [name for name in names if name not in described]
    if missing or not isinstance(sums, dict):
        raise InputError(f"{path} is damaged: it has no {(*missing, 'sha256')[0]}.")
    if sums.get(DESCRIPTION) != digest_of(described):
        raise InputError(f"{path} is damaged: its description does not match its checksum.")
    kept = {name: described[name] for name in names}
    check_fields(path, kept)
    for name in ("layers", "heads", "shown"):
        kept[name] = tuple(kept[name])
    return kept, sums


def check_names(path: Path, described: Mapping[str, Any], names: Iterable[str]) -> None:
    """Refuse a file without tokens, and maps whose names are not of this capture."""
    names = set(names)
    for name in ("tokens", "positions"):
        if name not in names:
            raise InputError(f"{path} is damaged: it has no {name}.")
    for name in names:
        if not name.startswith("layer."):
            continue
        _, layer, quantity, *reduction = name.split(".")[:4] + [""] * (2 - name.count("."))
        known = layer in map(str, described["layers"]) and quantity in QUANTITIES
        reduced = ["mean", "min", "max", "exact"] if described["resolution"] else []
        if not known or name.count(".") > 3 or (reduction and reduction[0] not in reduced):
            raise InputError(f"{path} is damaged: {ascii(name)[:60]} is not a map of this capture.")


def check_shapes(path: Path, described: Mapping[str, Any], maps: Mapping[str, np.ndarray]) -> None:
    """Refuse maps, tokens and edges whose shape or dtype is not what the description says."""
    heads, length = len(described["heads"]), described["length"]
    cells = described["resolution"]
    window = maps.get("window")
    for name, value in maps.items():
        wanted: tuple[Any, ...]
        dtype: type[np.generic]
        if name in {"tokens", "positions"}:
            wanted, dtype = (length,), np.int64
        elif name in {"edges", "window"}:
            wanted, dtype = ((cells or 0) + 1,) if name == "edges" else (4,), np.int64
        elif name.endswith(".exact"):
            spans = value.shape[1:] if window is None else (window[1::2] - window[::2]).tolist()
            wanted, dtype = (heads, *spans), np.float32
        else:
            side = cells if cells and name.count(".") == 3 else length
            wanted, dtype = (heads, side, side), np.float32
        if value.shape != wanted or value.dtype != dtype:
            raise InputError(
                f"{path} is damaged: {name} is {value.dtype} {list(value.shape)}, not "
                f"{np.dtype(dtype)} {list(wanted)}."
            )
    _check_places(path, maps, length)


def _check_places(path: Path, maps: Mapping[str, np.ndarray], length: int) -> None:
    """Refuse edges and windows that are not within the sequence."""
    edges, window = maps.get("edges"), maps.get("window")
    if edges is not None and (
        edges[0] != 0 or edges[-1] != length or (edges[1:] <= edges[:-1]).any()
    ):
        raise InputError(f"{path} is damaged: its edges do not go up from 0 to {length}.")
    if window is not None and not (
        0 <= window[0] < window[1] <= length and 0 <= window[2] < window[3] <= length
    ):
        raise InputError(f"{path} is damaged: its window is not within its {length} tokens.")


def check_sum(path: Path, name: str, value: np.ndarray, sums: Mapping[str, str]) -> None:
    """Refuse an array that is not what was written."""
    if digest(value) != sums.get(name):
        raise InputError(f"{path} is damaged: {name} does not match its checksum.")


def digest(value: np.ndarray) -> str:
    """Return the checksum of an array."""
    return hashlib.sha256(np.ascontiguousarray(value).data).hexdigest()


def digest_of(described: Mapping[str, Any]) -> str:
    """Return the checksum of a description."""
    facts = {name: value for name, value in described.items() if name != "sha256"}
    return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()


def _no_number(name: str) -> None:
    raise ValueError(f"{name} is not JSON")


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


def _calls(value: Any) -> bool:
    return isinstance(value, dict) and all(map(_mapping, value.values()))


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
    **dict.fromkeys(CALLS.values(), _calls),
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
