"""`headscape generate`: let a trained model write."""

from pathlib import Path
from typing import Annotated

import typer


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("generate")(generate)


def generate(
    run: Annotated[Path, typer.Argument(help="A run that `headscape train` made.")],
    prompt: Annotated[str, typer.Option(help="Text to continue.")] = "",
    length: Annotated[int, typer.Option(help="Tokens to write at most.")] = 200,
    temperature: Annotated[float, typer.Option(help="0 takes the likeliest token.")] = 0.8,
    top_k: Annotated[int | None, typer.Option(help="Draw from the K likeliest only.")] = None,
    top_p: Annotated[float, typer.Option(help="Draw from this share of probability only.")] = 1.0,
    seed: Annotated[int, typer.Option(help="The same seed gives the same text.")] = 0,
    step: Annotated[
        int | None, typer.Option(help="Checkpoint to use. [default: the newest good one]")
    ] = None,
) -> None:
    """Continue a prompt, token by token, until the length or the end of the text."""
    import numpy as np
    import torch

    from headscape.gpt2.generate import stream
    from headscape.train import Run

    held = Run.open(run, step)
    tokenizer = held.tokenizer
    start = np.asarray(tokenizer.encode(prompt), dtype=np.int64)
    tokens = torch.from_numpy(np.concatenate([[tokenizer.end_of_text], start]).astype(np.int64))
    steps = stream(
        held.model,
        tokens[None],
        length=length,
        temperature=temperature,
        top_k=top_k,
        top_p=top_p,
        seed=seed,
        stop=tokenizer.end_of_text,
    )
    typer.echo(prompt, nl=False)
    written: list[int] = []
    shown = ""
    for new in steps:
        if int(new) == tokenizer.end_of_text:
            break
        written.append(int(new))
        text = tokenizer.decode(np.array(written))
        # A character cut in the middle shows as U+FFFD until its last byte is there.
        if not text.endswith("\ufffd"):
            typer.echo(text[len(shown) :], nl=False)
            shown = text
    typer.echo()
