"""`headscape generate`: continue a text with a trained model."""

from typing import Annotated

import typer

from headscape.cli.parsing import Command, Plugin, as_text
from headscape.io.terminal import say


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("generate", cls=Command)(generate)


def generate(
    model: Annotated[
        str, typer.Argument(help="A run, a folder of weights, or hf:FOLDER.", metavar="MODEL")
    ],
    prompt: Annotated[str, typer.Option(help="Text to continue.")] = "",
    length: Annotated[int, typer.Option(help="Largest number of new tokens.")] = 200,
    temperature: Annotated[float, typer.Option(help="0 always takes the likeliest token.")] = 0.8,
    top_k: Annotated[int | None, typer.Option(help="Draw from the K likeliest tokens.")] = None,
    top_p: Annotated[
        float,
        typer.Option(help="Draw from the likeliest tokens that add up to this probability."),
    ] = 1.0,
    seed: Annotated[int, typer.Option(help="Random seed; the same seed gives the same text.")] = 0,
    step: Annotated[
        int | None, typer.Option(help="Checkpoint to use. [default: the newest good one]")
    ] = None,
    plugin: Plugin = None,
) -> None:
    """Continue a prompt until the length is reached or the text ends."""
    import headscape as hs

    prompt = as_text(prompt)
    parts = hs.load(model, step=step).write(
        prompt, length=length, temperature=temperature, top_k=top_k, top_p=top_p, seed=seed
    )
    say(prompt, nl=False)
    for part in parts:
        say(part, nl=False)
    say()
