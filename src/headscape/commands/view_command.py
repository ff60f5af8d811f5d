"""`headscape view`: walk through every head of a capture or a model in the browser."""

from pathlib import Path
from typing import Annotated

import typer

from headscape.commands.parsing import Command, Plugin


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("view", cls=Command)(view)


def view(
    sources: Annotated[
        list[str],
        typer.Argument(
            help="Captures, runs, folders of weights, or hf:FOLDER.", metavar="CAPTURE|MODEL..."
        ),
    ],
    html: Annotated[
        Path | None, typer.Option(help="Write one self-contained file instead of serving.")
    ] = None,
    port: Annotated[
        int | None, typer.Option(help="Port on this computer. [default: any free one]")
    ] = None,
    no_browser: Annotated[
        bool, typer.Option("--no-browser", help="Print the address and open no browser.")
    ] = False,
    plugin: Plugin = None,
) -> None:
    """Show every head of captures or models: bias, scores and weights, down to a pair of tokens.

    Without --html, serves on this computer only and ends with Ctrl-C.
    """
    import headscape as hs

    path = hs.view(*sources, html=html, port=port, open_browser=not no_browser)
    if path is not None:
        typer.echo(path)
