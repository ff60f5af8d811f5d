"""File names made from titles and patterns of any length."""

import hashlib
import re
from typing import Final

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
