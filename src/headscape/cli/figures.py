"""`headscape figures`: the paper's figures, from training to the page."""

import shlex
import sys
from pathlib import Path
from typing import Annotated

import typer

from headscape.cli.command import command
from headscape.errors import InputError
from headscape.io.terminal import say


@command()
def figures(
    *,
    encodings: list[str] | None = None,
    preset: str = "nano",
    untrained: bool = False,
    quick: bool = False,
    run: Annotated[list[str] | None, typer.Option(metavar="ENCODING=FOLDER")] = None,
    out: Path = Path("figures"),
    runs: Path = Path("runs"),
    length: int = 512,
    seed: int = 0,
    formats: Annotated[list[str] | None, typer.Option("--format")] = None,
    shared_scale: bool = False,
    cmap: Annotated[str | None, typer.Option("--cmap", "--colormap")] = None,
    title: bool = False,
    processes: int | None = None,
) -> None:
    """Make the paper's figures, training the models if needed.

    Figures 8 to 15 of arXiv:2503.08067: the positional bias of every head of the final layer, for
    one random sequence. Models are trained on Python's standard library. An interrupted job
    continues where it stopped; a repeated one takes seconds.

    Examples:
        headscape figures --encodings alibi --untrained
        headscape figures --quick

    Args:
        encodings: Encodings to draw, such as alibi,dapev2+kerple. Separate schedules of layers by
            semicolons: 'rope*3,nope; alibi'. [default: the paper's eight, Figures 8 to 15]
        preset: Size of the models; `small` is GPT-2 Small, the paper's.
        untrained: Draw models as initialised; train nothing.
        quick: Train for 100 steps only; captions say so.
        run: Use your own trained run; repeatable.
        out: Folder for figures and page.
        runs: Folder for the models trained here.
        length: Tokens of the captured sequence.
        seed: Random seed for training and for choosing the sequence.
        formats: Any of png, svg, pdf. [default: all three]
        shared_scale: One colour range for all heads.
        cmap: A matplotlib colour map instead of the chosen one.
        title: Write the method, layer and quantity above the panels.
        processes: Models to train at once, one thread each. [default: one per core]
    """
    import headscape as hs

    page = hs.paper_figures(
        encodings,
        out=out,
        runs=dict(map(_pair, run or [])),
        run_folder=runs,
        preset=preset,
        untrained=untrained,
        quick=quick,
        length=length,
        seed=seed,
        formats=formats or ("png", "svg", "pdf"),
        shared_scale=shared_scale,
        cmap=cmap,
        title=title,
        processes=processes,
        command=shlex.join(["headscape", *sys.argv[1:]]),
    )
    say("open it in a browser", err=True)
    say(page)


def _pair(text: str) -> tuple[str, str]:
    name, equals, folder = text.partition("=")
    if not equals:
        raise InputError(f"--run {text!r} is not of the form ENCODING=FOLDER.")
    return name, folder
