"""What a capture's file must have to be believed: its description, checksums and shapes."""

import hashlib
import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final

import numpy as np

from headscape.captures.capture_fields import check_fields
from headscape.captures.choice import QUANTITIES
from headscape.errors import InputError

FORMAT: Final = 4
DESCRIPTION: Final = "description"
"""Name of the checksum of everything that is not a tensor."""


def describe(
    path: Path, metadata: Mapping[str, str], names: Iterable[str]
) -> tuple[dict[str, Any], dict[str, str]]:
    """Return the description, which has all of `names`, and the checksum of every tensor."""
    try:
        described = json.loads(metadata["headscape"], parse_constant=_no_number)
        kind, version = described["kind"], described["format"]
    except (KeyError, TypeError, ValueError, RecursionError) as error:
        raise InputError(f"{path} is a safetensors file but not a headscape capture.") from error
    if kind != "capture":
        raise InputError(f"{path} is a headscape {ascii(kind)[:40]}, not a capture.")
    if type(version) is not int or version != FORMAT:
        raise InputError(
            f"{path} has capture format {ascii(version)[:40]} and this version reads {FORMAT}: "
            f"capture it again, or upgrade headscape."
        )
    sums = described.get("sha256")
    missing = [name for name in (*names, "factors") if name not in described]
    if missing or not isinstance(sums, dict):
        raise InputError(f"{path} is damaged: it has no {(*missing, 'sha256')[0]}.")
    if sums.get(DESCRIPTION) != digest_of(described):
        raise InputError(f"{path} is damaged: its description does not match its checksum.")
    kept = {name: described[name] for name in (*names, "factors")}
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


def require(what: str, asked: Iterable[object], held: Iterable[object]) -> None:
    """Refuse what a capture does not contain, and say what it does."""
    held = list(held)
    for each in asked:
        if each not in held:
            names = ", ".join(str(name) for name in held) or "none"
            raise InputError(f"{what} {each} is not in this capture, which contains {names}.")


def _no_number(name: str) -> None:
    raise ValueError(f"{name} is not JSON")
