"""Reading JSON that may be damaged or hostile: every failure is one sentence."""

import json
from pathlib import Path
from typing import Any, Final

from headscape.errors import InputError
from headscape.io.system_errors import reporting

MAX_BYTES: Final = 128 << 20
"""Of a JSON file; the largest tokenizers and indices of published models have about 40 MB."""
MAX_DEPTH: Final = 64
"""Of objects and arrays in each other; libraries that read the same file stop at about 128."""


def parse_json(data: bytes | str, source: Path | str) -> Any:
    """Return the value of a JSON text; `source` is named in the error."""
    try:
        return json.loads(data)
    except ValueError as error:
        raise InputError(f"{source} is not JSON: {error}.") from error
    except RecursionError as error:
        raise InputError(f"{source} is JSON nested too deeply to be read.") from error


def read_json(path: Path) -> dict[str, Any]:
    """Return the JSON object in a file of at most MAX_BYTES and MAX_DEPTH."""
    with reporting("read", path):
        size = path.stat().st_size
        if size > MAX_BYTES:
            raise InputError(f"{path} has {size:,} bytes, more than the {MAX_BYTES:,} allowed.")
        data = path.read_bytes()
    value = parse_json(data, path)
    if not isinstance(value, dict):
        raise InputError(f"{path} must contain a JSON object, got {type(value).__name__}.")
    _check_depth(value, path)
    return value


def _check_depth(value: dict[str, Any], path: Path) -> None:
    level: list[Any] = [value]
    for _ in range(MAX_DEPTH):
        inner = [each.values() if isinstance(each, dict) else each for each in level]
        level = [x for values in inner for x in values if isinstance(x, dict | list)]
        if not level:
            return
    raise InputError(f"{path} is JSON nested too deeply to be read.")
