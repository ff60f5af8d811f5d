"""Reading JSON that may be damaged or hostile: every failure is one sentence."""

import json
from pathlib import Path
from typing import Any

from headscape.errors import InputError
from headscape.io.system_errors import reporting


def parse_json(data: bytes | str, source: Path | str) -> Any:
    """Return the value of a JSON text; `source` is named in the error."""
    try:
        return json.loads(data)
    except ValueError as error:
        raise InputError(f"{source} is not JSON: {error}.") from error
    except RecursionError as error:
        raise InputError(f"{source} is JSON nested too deeply to be read.") from error


def read_json(path: Path) -> dict[str, Any]:
    """Return the JSON object in a file."""
    with reporting("read", path):
        data = path.read_bytes()
    value = parse_json(data, path)
    if not isinstance(value, dict):
        raise InputError(f"{path} must contain a JSON object, got {type(value).__name__}.")
    return value
