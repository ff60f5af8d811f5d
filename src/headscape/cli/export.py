"""`headscape export`: a model as a folder for other libraries."""

from pathlib import Path
from typing import Annotated

import typer

from headscape.cli.command import command
from headscape.io.terminal import say


@command()
def export(
    model: Annotated[str, typer.Argument(metavar="RUN")],
    *,
    out: Path,
    to: str = "hf",
    architecture: str = "auto",
    with_code: bool = False,
    max_positions: int | None = None,
    evaluation: Path | None = None,
    step: int | None = None,
) -> None:
    """Export a model as a folder that transformers loads.

    The folder has the weights, the tokenizer and a model card.

    Examples:
        headscape export runs/cable --to hf --out cable-hf

    Args:
        model: A run or a folder of weights.
        out: Folder to write; it must be new or empty.
        to: hf: Hugging Face transformers.
        architecture: auto, gpt2, gpt_neox or headscape. auto takes an architecture of transformers
            where one is the same function, and otherwise headscape's own class.
        with_code: Also write headscape's class as one file, for trust_remote_code where headscape
            is not installed.
        max_positions: max_position_embeddings. [default: the trained context length]
        evaluation: Folder that evaluate wrote, for the model card. [default: RUN/evaluation or the
            folder evaluation beside RUN, if it has rows of this checkpoint]
        step: Checkpoint to use. [default: the newest good one]
    """
    import headscape as hs
    from headscape.io.files import read_json

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
    ours = read_json(folder / "config.json")["model_type"] == "headscape"
    if ours and not with_code:
        say("transformers loads it after `import headscape.huggingface`.", err=True)
    code = ", trust_remote_code=True" if ours and with_code else ""
    say(f"load it: AutoModelForCausalLM.from_pretrained({str(folder)!r}{code})", err=True)
