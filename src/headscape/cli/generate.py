"""`headscape generate`: continue a text with a trained model."""

import typer

from headscape.cli.command import command
from headscape.cli.opening import model_options, open_models
from headscape.cli.parsing import chosen_text
from headscape.io.terminal import say


@command(fields=model_options)
def generate(
    context: typer.Context,
    model: str,
    *,
    prompt: str | None = None,
    text: str | None = None,
    length: int = 200,
    temperature: float = 0.8,
    top_k: int | None = None,
    top_p: float = 1.0,
    seed: int = 0,
    step: int | None = None,
) -> None:
    """Continue a prompt until the length is reached or the text ends.

    Examples:
        headscape generate runs/cable --prompt "def main(" --length 50

    Args:
        context: The command line as it was parsed.
        model: A run, a folder of weights, hf:FOLDER, or hf:OWNER/NAME on the Hugging Face Hub.
        prompt: Text to continue. [default: begin a new one]
        text: Continue a text file; - is standard input.
        length: Largest number of new tokens.
        temperature: 0 always takes the likeliest token.
        top_k: Draw from the K likeliest tokens.
        top_p: Draw from the likeliest tokens that add up to this probability.
        seed: Random seed; the same seed gives the same text.
        step: Checkpoint to use. [default: the newest good one]
    """
    import headscape as hs

    start = chosen_text(prompt, text) or ""
    [opened] = open_models(context, [model], step=step)
    parts = hs.load(opened, step=step).write(
        start, length=length, temperature=temperature, top_k=top_k, top_p=top_p, seed=seed
    )
    say(start, nl=False)
    for part in parts:
        say(part, nl=False)
    say()
