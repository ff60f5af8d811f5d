"""`headscape view`: show every head of captures and models in the browser."""

from pathlib import Path
from typing import Annotated

import typer

from headscape.cli.command import command
from headscape.cli.opening import model_options, open_models
from headscape.cli.parsing import chosen_text
from headscape.io.terminal import say


@command(fields=model_options)
def view(
    context: typer.Context,
    sources: Annotated[list[str], typer.Argument(metavar="SOURCE...")],
    *,
    prompt: str | None = None,
    text: str | None = None,
    html: Path | None = None,
    port: int | None = None,
    no_browser: bool = False,
) -> None:
    """Show every head in the browser, or write an offline page.

    Bias, scores and weights of captures or models, down to a single pair of tokens.

    Runs show a part of their validation text unless --prompt or --text gives one; hf: models need
    one.

    Without --html, serves on this computer only until Ctrl-C.

    Examples:
        headscape view cat.safetensors --html cat.html
        headscape view runs/cable --prompt "The cat sat on the mat"
        headscape view hf:smollm2 --prompt "The cat sat on the mat" --html heads.html

    Args:
        context: The command line as it was parsed.
        sources: Captures, runs, folders of weights, hf:FOLDER, or hf:OWNER/NAME on the Hugging Face
            Hub.
        prompt: Read this text.
        text: Read a text file; - is standard input.
        html: Write one self-contained file instead of serving.
        port: Port on this computer. [default: any free one]
        no_browser: Print the address and open no browser.
    """
    import headscape as hs

    words = chosen_text(prompt, text)
    path = hs.view(
        *open_models(context, sources),
        text=words,
        html=html,
        port=port,
        open_browser=not no_browser,
    )
    if path is not None:
        say("open it in a browser", err=True)
        say(path)
