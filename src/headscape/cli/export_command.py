"""`headscape export`: a model as a folder for other libraries."""

from pathlib import Path
from typing import Annotated

import typer

from headscape.cli.parsing import Command, Plugin
from headscape.io.terminal import say


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("export", cls=Command)(export)


def export(
    model: Annotated[str, typer.Argument(help="A run or a folder of weights.", metavar="RUN")],
    out: Annotated[Path, typer.Option(help="Folder to write; it must be new or empty.")],
    to: Annotated[str, typer.Option(help="hf: Hugging Face transformers.")] = "hf",
    architecture: Annotated[
        str,
        typer.Option(
            help="auto, gpt2, gpt_neox or headscape. auto takes an architecture of transformers "
            "where one is the same function, and otherwise headscape's own class."
        ),
    ] = "auto",
    with_code: Annotated[
        bool,
        typer.Option(
            "--with-code",
            help="Also write headscape's class as one file, for trust_remote_code where headscape "
            "is not installed.",
        ),
    ] = False,
    max_positions: Annotated[
        int | None,
        typer.Option(help="max_position_embeddings. [default: the trained context length]"),
    ] = None,
    evaluation: Annotated[
        Path | None,
        typer.Option(
            help="Folder that evaluate wrote, for the model card. [default: RUN/evaluation or the "
            "folder evaluation beside RUN, if it has rows of this checkpoint]"
        ),
    ] = None,
    step: Annotated[
        int | None, typer.Option(help="Checkpoint to use. [default: the newest good one]")
    ] = None,
    plugin: Plugin = None,
) -> None:
    """Export a model as a folder that transformers loads.

    The folder has the weights, the tokenizer and a model card.
    """
    import headscape as hs

    folder = hs.export(
        model,
        out,
        to=to,
        architecture=architecture,
        with_code=with_code,
        max_positions=max_positions,
        evaluation=evaluation,
        step=step,
    )
    say(folder)
