"""Whether a capture may be written to a path, asked before anything is computed."""

import os
from pathlib import Path

from headscape.arrays.capture_file import is_capture
from headscape.errors import InputError
from headscape.io.atomic import writable_target
from headscape.io.system_errors import reporting


def check_target(path: Path, *, overwrite: bool) -> None:
    """Refuse a folder, a device or pipe, and a file that is not a capture unless `overwrite`."""
    target = writable_target(path)
    with reporting("write", path):
        nearest = next(folder for folder in target.parents if folder.exists())
        if not os.access(nearest, os.W_OK) or not nearest.is_dir():
            raise InputError(f"cannot write {path}: {nearest} is not a folder you may write to.")
    if target.exists() and not overwrite and not is_capture(path):
        raise InputError(f"{path} exists and is not a capture: add --overwrite to replace it.")
