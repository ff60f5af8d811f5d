"""`headscape capture`: what every head does with one sequence, as a file."""

from pathlib import Path
from typing import Annotated

import typer

from headscape.cli.command import command
from headscape.cli.opening import model_options, open_models
from headscape.cli.parsing import chosen_text, from_zero, number_from_zero
from headscape.errors import InputError
from headscape.io.terminal import say


@command(fields=model_options)
def capture(
    context: typer.Context,
    model: str,
    *,
    layers: list[str] | None = None,
    heads: list[str] | None = None,
    quantities: list[str] | None = None,
    prompt: str | None = None,
    text: str | None = None,
    chat: bool = False,
    generate: int | None = None,
    document: int | None = None,
    length: int | None = None,
    seed: int = 0,
    tokenizer: str | None = None,
    step: int | None = None,
    resolution: int | None = None,
    window: Annotated[str | None, typer.Option(metavar="Q1:Q2,K1:K2")] = None,
    out: Path | None = None,
    overwrite: bool = False,
) -> None:
    """Store what the heads of the last layer do with a text.

    `--layers all` stores every layer.

    Per layer and head: content scores, positional bias, final scores and attention weights.

    Long sequences need --resolution; memory then grows linearly with the length.

    Examples:
        headscape capture runs/cable --prompt "The cat sat" --layers all --out cat.safetensors
        headscape capture hf:smollm2 --text text.txt --length 128 --out text.safetensors

    Args:
        context: The command line as it was parsed.
        model: A run, a folder of weights, hf:FOLDER, or hf:OWNER/NAME on the Hugging Face Hub.
        layers: last, all, or numbers from 1 such as 1,3,5-8. [default: last]
        heads: all, or numbers from 1. [default: all]
        quantities: Any of content (scaled q.k), bias (final - content), final (before the softmax),
            weights (after it). [default: all four]
        prompt: Read this text.
        text: Read a text file; - is standard input.
        chat: Read --prompt or --text as a user's message, through the model's chat template.
        generate: Let the model continue the text by up to so many tokens first, the likeliest each
            time, and capture prompt and continuation as one sequence.
        document: Capture this document of the validation text, counted from 1.
        length: Tokens of the sequence, or frames of sound. [default: the whole text, or the trained
            context length; 128 frames]
        seed: Without a text: random seed of the window of the validation text, or of the noise for
            a speech model.
        tokenizer: bytes or gpt2, for weights without a tokenizer.
        step: Checkpoint to use. [default: the newest good one]
        resolution: Reduce each map to this many cells a side (mean, min, max) while it is computed;
            needed for long sequences.
        window: With --resolution: keep these queries and keys exactly, such as 1:64,1:64, the first
            and the last of each counted from 1.
        out: File to write. [default: MODEL/capture.safetensors; for hf: models
            ./capture.safetensors]
        overwrite: Replace a file that is not a capture.
    """
    import headscape as hs
    from headscape.call.quantities import QUANTITIES
    from headscape.captures.capture_file import check_target

    target = out or Path("" if model.startswith("hf:") else model) / "capture.safetensors"
    advice = "add --overwrite to replace it"
    check_target(target, advice, overwrite=overwrite, reads=[] if text is None else [text])
    words = chosen_text(prompt, text)
    if chat and words is None:
        raise InputError("--chat needs a message: give --prompt or --text.")
    [opened] = open_models(context, [model], step=step, tokenizer=tokenizer)
    opened = hs.load(opened, step=step, tokenizer=tokenizer)
    cap = opened.capture(
        [{"role": "user", "content": words}] if chat else words,
        generate=generate,
        length=length,
        seed=seed,
        document=number_from_zero(document, "--document"),
        layers=from_zero(layers or ["last"], len(opened.spec.layers), "layer"),
        heads=from_zero(heads, opened.spec.heads, "head"),
        quantities=quantities or QUANTITIES,
        resolution=resolution,
        window=None if window is None else _window(window),
    )
    cap.save(target, overwrite=overwrite)
    say(f"draw it: headscape draw {target}; walk through it: headscape view {target}", err=True)
    say(target)


def _window(text: str) -> tuple[slice, slice]:
    """Return the queries and keys of --window, whose ends are counted from 1 and included."""
    try:
        (q1, q2), (k1, k2) = ((int(edge) for edge in part.split(":")) for part in text.split(","))
    except ValueError:
        raise InputError(f"--window {text!r} is not of the form Q1:Q2,K1:K2.") from None
    if min(q1, k1) < 1:
        raise InputError(f"--window {text!r}: queries and keys count from 1 on the command line.")
    return slice(q1 - 1, q2), slice(k1 - 1, k2)
