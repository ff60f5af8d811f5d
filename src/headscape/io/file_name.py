"""File names made from titles and patterns of any length, and names that are not UTF-8."""

import hashlib
import re
from pathlib import Path
from typing import Final

from headscape.errors import InputError

MOST: Final = 80
"""Most characters of a name; file systems allow 255 bytes, and callers add endings."""


def file_name(text: str, most: int = MOST) -> str:
    """Return text as a file name of lower-case letters, digits, dots and dashes.

    A name longer than `most` is cut and ends in a hash of the text.
    """
    name = re.sub(r"[^a-z0-9.]+", "-", text.lower()).strip("-.")
    if len(name) <= most:
        return name
    return f"{name[: most - 9].rstrip('-.')}-{hashlib.sha256(text.encode()).hexdigest()[:8]}"


def is_utf8(text: str) -> bool:
    """Return whether the bytes of a path, or of a text that contains one, are UTF-8.

    In a locale that is not UTF-8 Python reads such a path with surrogates in it, too.
    """
    try:
        text.encode("utf-8", "surrogateescape").decode()
    except UnicodeError:
        return False
    return True


def require_utf8(path: Path) -> None:
    """Refuse a path that safetensors cannot open."""
    if not is_utf8(str(path)):
        raise InputError(
            f"{path} has a name that is not UTF-8, and safetensors files cannot be opened there: "
            f"rename it, or choose a different folder."
        )
