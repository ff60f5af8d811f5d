"""Whether a capture may be written to a path, asked before anything is computed."""

import os
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from headscape.captures.capture_file import CAPTURE
from headscape.errors import InputError
from headscape.io.atomic import writable_target
from headscape.io.output_file import FileKind, check_output
from headscape.io.system_errors import reporting

ANY_FILE: Final = FileKind("a file", lambda _: True)


def check_target(path: Path, *, overwrite: bool, reads: Iterable[Path | str] = ()) -> None:
    """Refuse a folder, a device or pipe, and a file that is not a capture unless `overwrite`.

    A file in `reads` is refused in any case.
    """
    target = writable_target(path)
    with reporting("write", path):
        nearest = next(folder for folder in target.parents if folder.exists())
        if not os.access(nearest, os.W_OK) or not nearest.is_dir():
            raise InputError(f"cannot write {path}: {nearest} is not a folder you may write to.")
    kind = ANY_FILE if overwrite else CAPTURE
    check_output(path, kind, reads=reads, advice="add --overwrite to replace it")
