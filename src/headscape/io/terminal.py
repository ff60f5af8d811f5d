"""Text for a terminal: control characters are shown instead of sent.

A name in a file of others may contain escape sequences, which a terminal obeys: they set its title,
hide text or write over it. `say` is how every command prints.
"""

import re
import sys
from typing import Final

import typer

_CONTROL: Final = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u2028-\u202e\u2066-\u2069]")


def printable(text: str) -> str:
    r"""Return text with control characters but tab and line feed as their escapes, as in \x1b."""
    return _CONTROL.sub(lambda found: ascii(found[0])[1:-1], text)


def say(text: object = "", *, err: bool = False, nl: bool = True) -> None:
    """Print to stdout, or stderr; a file or pipe behind stdout gets the text as it is."""
    stream = sys.stderr if err else sys.stdout
    # A closed stdout is None.
    seen = err or (stream is not None and stream.isatty())
    shown = printable(str(text)) if seen else str(text)
    typer.echo(shown, err=err, nl=nl)
