"""JSON files of rows that are all of one dataclass: `{"format": 1, "scores": [{...}, ...]}`.

They may come from anywhere, so every field and its type is looked at.
"""

import json
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any, TypeVar

from headscape.errors import InputError
from headscape.io.typecheck import check_types

Row = TypeVar("Row")


def load(path: Path) -> Any:
    """What a JSON file holds."""
    try:
        return json.loads(path.read_text())
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror}.") from error
    except ValueError as error:
        raise InputError(f"{path} is not JSON: {error}.") from error


def read(path: Path, name: str, form: int, kind: type[Row]) -> list[Row]:
    """The rows under `name` of a file in format `form`; lists in them are numbers."""
    data = load(path)
    if not isinstance(data, dict) or name not in data:
        raise InputError(f"{path} holds no {name}: give a file that evaluate wrote.")
    if data.get("format") != form:
        raise InputError(f"{path} has format {data.get('format')!r}; this version reads {form}.")
    rows = data[name]
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        raise InputError(f"{path} is damaged: its {name} are no list of objects.")
    return [_row(row, path, kind) for row in rows]


def _row(row: Mapping[str, Any], path: Path, kind: type[Row]) -> Row:
    assert is_dataclass(kind)
    known = {item.name for item in fields(kind)}
    if set(row) != known:
        odd = min(set(row) ^ known)
        raise InputError(f"{path} is damaged or of another version, see its field {odd!r}.")
    lists = {name: tuple(value) for name, value in row.items() if isinstance(value, list)}
    for name, values in lists.items():
        if not all(isinstance(value, float) for value in values):
            raise InputError(f"{path} is damaged: {name} holds what is no number.")
    one = kind(**{**row, **lists})
    try:
        check_types(one)
    except InputError as error:
        raise InputError(f"{path} is damaged: {error}") from error
    return one
