"""`headscape capture`: what every head does with one sequence, as a file."""

from pathlib import Path
from typing import Annotated

import typer

from headscape.cli.parsing import Command, Plugin, Prompt, TextFile, chosen_text, from_zero
from headscape.io.terminal import say


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("capture", cls=Command)(capture)


def capture(
    model: Annotated[
        str, typer.Argument(help="A run, a folder of weights, or hf:FOLDER.", metavar="MODEL")
    ],
    layers: Annotated[
        list[str] | None,
        typer.Option(help="last, all, or numbers from 1 such as 1,3,5-8. [default: last]"),
    ] = None,
    heads: Annotated[
        list[str] | None, typer.Option(help="all, or numbers from 1. [default: all]")
    ] = None,
    quantities: Annotated[
        list[str] | None,
        typer.Option(
            help="Any of content (scaled q.k), bias (final - content), final (before the softmax), "
            "weights (after it). [default: all four]"
        ),
    ] = None,
    prompt: Prompt = None,
    text: TextFile = None,
    document: Annotated[
        int | None, typer.Option(help="Capture validation document N, counted from 0.")
    ] = None,
    length: Annotated[
        int | None,
        typer.Option(
            help="Tokens of the sequence, or frames of sound. [default: the whole text, or the "
            "trained context length; 128 frames]"
        ),
    ] = None,
    seed: Annotated[
        int,
        typer.Option(
            help="Without a text: random seed of the window of the validation text, or of the "
            "noise for a speech model."
        ),
    ] = 0,
    tokenizer: Annotated[
        str | None, typer.Option(help="bytes or gpt2, for weights without a tokenizer.")
    ] = None,
    step: Annotated[
        int | None, typer.Option(help="Checkpoint to use. [default: the newest good one]")
    ] = None,
    resolution: Annotated[
        int | None,
        typer.Option(
            help="Reduce each map to this many cells a side (mean, min, max) while it is "
            "computed; needed for long sequences."
        ),
    ] = None,
    window: Annotated[
        str | None,
        typer.Option(
            metavar="Q0:Q1,K0:K1", help="With --resolution: keep these queries and keys exactly."
        ),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(
            help="File to write. [default: MODEL/capture.safetensors; for hf: models "
            "./capture.safetensors]"
        ),
    ] = None,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Replace a file that is not a capture.")
    ] = False,
    plugin: Plugin = None,
) -> None:
    """Store what the heads of the last layer do with a text.

    `--layers all` stores every layer.

    Per layer and head: content scores, positional bias, final scores and attention weights.

    Long sequences need --resolution; memory then grows linearly with the length.
    """
    import headscape as hs
    from headscape.captures.capture_file import check_target

    target = out or Path("" if model.startswith("hf:") else model) / "capture.safetensors"
    check_target(target, overwrite=overwrite, reads=[] if text is None else [text])
    opened = hs.load(model, step=step, tokenizer=tokenizer)
    cap = opened.capture(
        chosen_text(prompt, text),
        length=length,
        seed=seed,
        document=document,
        layers=from_zero(layers or ["last"], len(opened.spec.layers), "layer"),
        heads=from_zero(heads, opened.spec.heads, "head"),
        quantities=quantities or ("content", "bias", "final", "weights"),
        resolution=resolution,
        window=None if window is None else _window(window),
    )
    cap.save(target, overwrite=overwrite)
    say(f"draw it: headscape draw {target}; walk through it: headscape view {target}", err=True)
    say(target)


def _window(text: str) -> tuple[slice, slice]:
    from headscape.errors import InputError

    try:
        (q0, q1), (k0, k1) = ((int(edge) for edge in part.split(":")) for part in text.split(","))
    except ValueError:
        raise InputError(f"--window {text!r} is not of the form Q0:Q1,K0:K1.") from None
    return slice(q0, q1), slice(k0, k1)
