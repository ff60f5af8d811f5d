"""`headscape check`: run the properties every encoding must have on one of your own."""

from pathlib import Path
from typing import Annotated

import typer

from headscape.commands.parsing import Command, Plugin


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("check", cls=Command)(check)


def check(
    encoding: Annotated[
        str,
        typer.Argument(help="A Python file with an encoding, or the name of one.", metavar="WHAT"),
    ],
    plugin: Plugin = None,
) -> None:
    """Test an encoding: causality, prefixes, decoding, packing, claims, every attention path."""
    from headscape.encodings.plugins import load_plugin
    from headscape.properties import check as check_properties

    names = load_plugin(Path(encoding)) if encoding.endswith(".py") else [encoding]
    failed = 0
    for name in names:
        for result in check_properties(name):
            mark = "passed" if result.passed else "FAILED"
            typer.echo(f"{mark}  {name}: {result.property}{_because(result.detail)}")
            failed += not result.passed
    if failed:
        raise typer.Exit(1)


def _because(detail: str) -> str:
    return f" ({detail})" if detail else ""
