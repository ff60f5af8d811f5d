"""`headscape check`: test the properties that every encoding must have."""

from pathlib import Path

import typer

from headscape.cli.command import command
from headscape.io.terminal import say


@command()
def check(encoding: str) -> None:
    """Test the properties that every encoding must have.

    Causality, prefixes, decoding with a cache, packing, padding, claims, and the agreement of every
    attention path with the reference.

    Examples:
        headscape check cable
        headscape check my_encoding.py

    Args:
        encoding: A name, or a Python file with encodings.
    """
    from headscape.encodings.registry import load_plugin
    from headscape.properties import check as check_properties

    file = Path(encoding)
    names = load_plugin(file) if file.suffix == ".py" or file.is_file() else [encoding]
    failed = 0
    for name in names:
        for result in check_properties(name):
            because = f" ({result.detail})" if result.detail else ""
            mark = "passed" if result.passed else "FAILED"
            say(f"{mark}  {name}: {result.property}{because}")
            failed += not result.passed
    if failed:
        raise typer.Exit(1)
