"""Rows as JSON files: `{"format": 2, "measurements": [{...}, ...]}`.

A file may come from anywhere, so reading checks every field and its type.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from headscape.errors import InputError
from headscape.evaluation.table.table_row import TASK, TEXT, Kind, Row
from headscape.io.json_file import parse_json
from headscape.io.system_errors import reporting
from headscape.io.typecheck import check_types


def to_json(rows: Sequence[Row]) -> str:
    """Rows of one kind as JSON."""
    kind = rows[0].kind
    written = [{name: getattr(row, name) for name in kind.fields} for row in rows]
    return json.dumps({"format": kind.version, kind.group: written}, indent=1) + "\n"


def read_all(paths: Iterable[Path]) -> list[Row]:
    """The rows of several evaluations, each named by its folder or its JSON file."""
    loaded = {file: _load(file) for file in map(_file, paths)}
    kinds = {file: _kind(file, data) for file, data in loaded.items()}
    by_kind = {kind.group: file for file, kind in kinds.items()}
    if len(by_kind) > 1:
        raise InputError(
            f"{by_kind[TASK.group]} is about a task and {by_kind[TEXT.group]} about a text, which "
            f"cannot be compared: merge the two kinds separately."
        )
    return [row for file, data in loaded.items() for row in _rows(file, data, kinds[file])]


def _file(path: Path) -> Path:
    if not path.is_dir():
        return path
    candidates = [path / f"{kind.stem}.json" for kind in (TEXT, TASK)]
    found = [file for file in candidates if file.is_file()]
    if len(found) > 1:
        raise InputError(f"{path} contains two evaluations: choose {found[0]} or {found[1]}.")
    if not found:
        names = " or ".join(file.name for file in candidates)
        raise InputError(f"{path} contains no {names}: give a folder or file from evaluate.")
    return found[0]


def _load(path: Path) -> Any:
    with reporting("read", path):
        data = path.read_bytes()
    return parse_json(data, path)


def _kind(path: Path, data: Any) -> Kind:
    for kind in (TEXT, TASK):
        if isinstance(data, dict) and kind.group in data:
            return kind
    raise InputError(
        f"{path} contains no {TEXT.group} or {TASK.group}: give a file that evaluate wrote."
    )


def _rows(path: Path, data: Mapping[str, Any], kind: Kind) -> list[Row]:
    if data.get("format") != kind.version:
        raise InputError(
            f"{path} has format {data.get('format')!r}; this version reads {kind.version}."
        )
    rows = data[kind.group]
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        raise InputError(f"{path} is damaged: {kind.group} is not a list of objects.")
    return [_row(row, path, kind) for row in rows]


def _row(row: Mapping[str, Any], path: Path, kind: Kind) -> Row:
    if set(row) != set(kind.fields):
        odd = min(set(row) ^ set(kind.fields))
        raise InputError(f"{path} is damaged or from a different version: see its field {odd!r}.")
    lists = {name: tuple(value) for name, value in row.items() if isinstance(value, list)}
    for name, values in lists.items():
        if not all(isinstance(value, float) for value in values):
            raise InputError(f"{path} is damaged: {name} contains a non-numeric value.")
    if kind is TASK and not isinstance(row["task"], str):
        raise InputError(f"{path} is damaged: task={row['task']!r} is not of type str.")
    one = Row(**{**row, **lists}, label=path.stem.removeprefix(f"{row.get('task')}-"))
    try:
        check_types(one)
    except InputError as error:
        raise InputError(f"{path} is damaged: {error}") from error
    return one
