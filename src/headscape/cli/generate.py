"""`headscape generate`: continue a text with a trained model."""

from headscape.cli.command import command
from headscape.cli.parsing import as_text
from headscape.io.terminal import say


@command()
def generate(
    model: str,
    *,
    prompt: str = "",
    length: int = 200,
    temperature: float = 0.8,
    top_k: int | None = None,
    top_p: float = 1.0,
    seed: int = 0,
    step: int | None = None,
) -> None:
    """Continue a prompt until the length is reached or the text ends.

    Args:
        model: A run, a folder of weights, or hf:FOLDER.
        prompt: Text to continue.
        length: Largest number of new tokens.
        temperature: 0 always takes the likeliest token.
        top_k: Draw from the K likeliest tokens.
        top_p: Draw from the likeliest tokens that add up to this probability.
        seed: Random seed; the same seed gives the same text.
        step: Checkpoint to use. [default: the newest good one]
    """
    import headscape as hs

    prompt = as_text(prompt)
    parts = hs.load(model, step=step).write(
        prompt, length=length, temperature=temperature, top_k=top_k, top_p=top_p, seed=seed
    )
    say(prompt, nl=False)
    for part in parts:
        say(part, nl=False)
    say()
