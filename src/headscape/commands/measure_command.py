"""`headscape measure`: numbers per layer and head, from captures."""

from pathlib import Path
from typing import Annotated

import typer

from headscape.commands.parsing import Command, Plugin


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("measure", cls=Command)(measure)


def measure(
    captures: Annotated[
        list[Path], typer.Argument(metavar="CAPTURE", help="Files that `headscape capture` wrote.")
    ],
    quantity: Annotated[
        str | None, typer.Option(help="content, bias or final. [default: bias; final for RoPE]")
    ] = None,
    csv: Annotated[
        bool, typer.Option("--csv", help="Print CSV instead of a table for reading.")
    ] = False,
    out: Annotated[
        Path | None, typer.Option(help="Write to this .csv, .json or .md file instead.")
    ] = None,
    plugin: Plugin = None,
) -> None:
    """Print numbers per layer and head.

    Shift-invariance, reach, the most similar head: docs/figures.md explains every column.

    Layers and heads are counted from 1. With several captures, each
    row (CSV) or table (Markdown) carries the name of its capture.
    """
    import headscape as hs
    from headscape.arrays.measures import written

    files = {str(path): hs.Capture.load(path).measures(quantity) for path in captures}
    form = out.suffix[1:] if out is not None else "csv" if csv else "md"
    text = written(files, form)
    if out is None:
        typer.echo(text, nl=False)
    else:
        from headscape.io import atomic

        atomic.write_text(out, text)
        typer.echo(out)
