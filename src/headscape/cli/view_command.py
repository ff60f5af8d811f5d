"""`headscape view`: show every head of captures and models in the browser."""

from pathlib import Path
from typing import Annotated

import typer

from headscape.cli.parsing import Command, Plugin, Prompt, TextFile, chosen_text
from headscape.io.terminal import say


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("view", cls=Command)(view)


def view(
    sources: Annotated[
        list[str],
        typer.Argument(help="Captures, runs, folders of weights, or hf:FOLDER.", metavar="SOURCE"),
    ],
    prompt: Prompt = None,
    text: TextFile = None,
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
    """Show every head in the browser, or write an offline page.

    Bias, scores and weights of captures or models, down to a single pair of tokens.

    Runs show a part of their validation text unless --prompt or --text gives one; hf: models need
    one.

    Without --html, serves on this computer only until Ctrl-C.
    """
    import headscape as hs

    words = chosen_text(prompt, text)
    path = hs.view(*sources, text=words, html=html, port=port, open_browser=not no_browser)
    if path is not None:
        say(path)
