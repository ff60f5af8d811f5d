"""Rows as JSON files: `{"format": 2, "measurements": [{...}, ...]}`.

A file may come from anywhere, so reading checks every field and its type.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

from headscape.errors import InputError
from headscape.evaluate.table.row import KINDS, Row, TaskRow
from headscape.io.typecheck import check_types


def to_json(rows: Sequence[Row]) -> str:
    """Rows of one kind as JSON."""
    data = {"format": rows[0].version, rows[0].group: [row.to_json() for row in rows]}
    return json.dumps(data, indent=1) + "\n"


def read_all(files: Iterable[Path]) -> list[Row]:
    """The rows of several JSON files; files on a text and on a task together are refused."""
    loaded = {file: _load(file) for file in files}
    kinds = {file: _kind(file, data) for file, data in loaded.items()}
    by_kind = {kind: file for file, kind in kinds.items()}
    if len(by_kind) > 1:
        text, task = (by_kind[kind] for kind in KINDS)
        raise InputError(
            f"{task} is about a task and {text} about a text, which do not compare: merge the two "
            f"kinds separately."
        )
    return [row for file, data in loaded.items() for row in _rows(file, data, kinds[file])]


def evaluation_file(path: Path) -> Path:
    """The JSON file of an evaluation that is named by its folder or by the file itself."""
    if not path.is_dir():
        return path
    candidates = [path / f"{kind.stem}.json" for kind in KINDS]
    found = [file for file in candidates if file.is_file()]
    if len(found) > 1:
        raise InputError(f"{path} contains two evaluations: choose {found[0]} or {found[1]}.")
    if not found:
        names = " or ".join(file.name for file in candidates)
        raise InputError(f"{path} contains no {names}: give a folder or file from evaluate.")
    return found[0]


def _load(path: Path) -> Any:
    try:
        return json.loads(path.read_text())
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror}.") from error
    except ValueError as error:
        raise InputError(f"{path} is not JSON: {error}.") from error


def _kind(path: Path, data: Any) -> type[Row]:
    for kind in KINDS:
        if isinstance(data, dict) and kind.group in data:
            return kind
    groups = " or ".join(kind.group for kind in KINDS)
    raise InputError(f"{path} contains no {groups}: give a file that evaluate wrote.")


def _rows(path: Path, data: Mapping[str, Any], kind: type[Row]) -> list[Row]:
    if data.get("format") != kind.version:
        raise InputError(
            f"{path} has format {data.get('format')!r}; this version reads {kind.version}."
        )
    rows = data[kind.group]
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        raise InputError(f"{path} is damaged: {kind.group} is not a list of objects.")
    return [_row(row, path, kind) for row in rows]


def _row(row: Mapping[str, Any], path: Path, kind: type[Row]) -> Row:
    known = {item.name for item in fields(kind)} - {"label"}  # type: ignore[arg-type]
    if set(row) != known:
        odd = min(set(row) ^ known)
        raise InputError(f"{path} is damaged or from a different version: see its field {odd!r}.")
    lists = {name: tuple(value) for name, value in row.items() if isinstance(value, list)}
    for name, values in lists.items():
        if not all(isinstance(value, float) for value in values):
            raise InputError(f"{path} is damaged: {name} contains a non-numeric value.")
    label = {"label": path.stem.removeprefix(f"{row['task']}-")} if kind is TaskRow else {}
    one = kind(**{**row, **lists, **label})
    try:
        check_types(one)
    except InputError as error:
        raise InputError(f"{path} is damaged: {error}") from error
    return one
