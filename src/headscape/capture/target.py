"""Whether a capture may be written to a path, asked before anything is computed."""

from pathlib import Path

from headscape.arrays.capture_file import is_capture
from headscape.errors import InputError


def check_target(path: Path, *, overwrite: bool) -> None:
    """Refuse a folder, a device or pipe, and a file that is not a capture unless `overwrite`."""
    if path.is_dir():
        raise InputError(f"{path} is a folder: name a file to write.")
    if not path.exists():
        return
    if not path.is_file():
        raise InputError(f"{path} is a device, pipe or socket: name an ordinary file to write.")
    if not overwrite and not is_capture(path):
        raise InputError(f"{path} exists and is not a capture: add --overwrite to replace it.")
