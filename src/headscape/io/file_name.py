"""File names made from titles and patterns of any length."""

import hashlib
import re
from typing import Final

MOST: Final = 80
"""Characters of a name; file systems allow 255 bytes, and endings are added to it."""


def file_name(text: str, most: int = MOST) -> str:
    """Return text in lower-case letters, digits, dots and dashes.

    A long one is cut, and ends in a hash of the whole.
    """
    name = re.sub(r"[^a-z0-9.]+", "-", text.lower()).strip("-.")
    if len(name) <= most:
        return name
    return f"{name[: most - 9].rstrip('-.')}-{hashlib.sha256(text.encode()).hexdigest()[:8]}"
