"""What a capture's file must have to be believed: its description, checksums and shapes."""

import hashlib
import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final

import numpy as np

from headscape.errors import InputError

FORMAT: Final = 4
DESCRIPTION: Final = "description"
"""Name of the checksum of everything that is not a tensor."""


def describe(
    path: Path, metadata: Mapping[str, str], names: Iterable[str]
) -> tuple[dict[str, Any], dict[str, str]]:
    """Return the description, which has all of `names`, and the checksum of every tensor."""
    try:
        described = json.loads(metadata["headscape"])
        kind, version = described["kind"], described["format"]
    except (KeyError, TypeError, ValueError, RecursionError) as error:
        raise InputError(f"{path} is a safetensors file but not a headscape capture.") from error
    if kind != "capture":
        raise InputError(f"{path} is a headscape {kind}, not a capture.")
    if not isinstance(version, int) or version != FORMAT:
        raise InputError(
            f"{path} has capture format {version!r} and this version reads {FORMAT}: capture it "
            f"again, or upgrade headscape."
        )
    sums = described.get("sha256")
    missing = [name for name in (*names, "factors") if name not in described]
    if missing or not isinstance(sums, dict):
        raise InputError(f"{path} is damaged: it has no {(*missing, 'sha256')[0]}.")
    if sums.get(DESCRIPTION) != digest_of(described):
        raise InputError(f"{path} is damaged: its description does not match its checksum.")
    kept = {name: described[name] for name in (*names, "factors")}
    for name in ("layers", "heads"):
        if not _whole_numbers(kept[name]):
            raise InputError(f"{path} is damaged: its {name} are not a list of whole numbers.")
        kept[name] = tuple(kept[name])
    if not _whole_numbers([kept["length"], kept["resolution"] or 1]):
        raise InputError(f"{path} is damaged: its length is not a whole number.")
    shown = kept["shown"]
    named = isinstance(shown, list) and all(isinstance(name, str) for name in shown)
    if not named or not isinstance(kept["factors"], dict):
        raise InputError(f"{path} is damaged: it does not say what it shows.")
    kept["shown"] = tuple(shown)
    return kept, sums


def check_shapes(path: Path, described: Mapping[str, Any], maps: Mapping[str, np.ndarray]) -> None:
    """Refuse maps whose shape is not what the description says."""
    cells = described["resolution"] or described["length"]
    for name, value in maps.items():
        size = value.shape[1:] if name.endswith(".exact") else (cells, cells)
        if value.shape != (len(described["heads"]), *size):
            raise InputError(
                f"{path} is damaged: {name} has shape {value.shape}, not "
                f"{(len(described['heads']), *size)}."
            )


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


def _whole_numbers(found: object) -> bool:
    return isinstance(found, list) and all(type(item) is int and item >= 0 for item in found)
