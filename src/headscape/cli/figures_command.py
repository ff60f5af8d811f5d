"""`headscape figures`: the paper's figures, from training to the page."""

import shlex
import sys
from pathlib import Path
from typing import Annotated

import typer

from headscape.cli.parsing import Command, Plugin
from headscape.io.terminal import say


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("figures", cls=Command)(figures)


def figures(
    encodings: Annotated[
        list[str] | None,
        typer.Option(
            help="Encodings to draw, such as alibi,dapev2+kerple. Separate schedules of layers by "
            "semicolons: 'rope*3,nope; alibi'. "
            "[default: the paper's eight, Figures 8 to 15]"
        ),
    ] = None,
    preset: Annotated[
        str, typer.Option(help="Size of the models; `small` is GPT-2 Small, the paper's.")
    ] = "nano",
    untrained: Annotated[
        bool, typer.Option("--untrained", help="Draw models as initialised; train nothing.")
    ] = False,
    quick: Annotated[
        bool, typer.Option("--quick", help="Train for 100 steps only; captions say so.")
    ] = False,
    run: Annotated[
        list[str] | None,
        typer.Option(metavar="ENCODING=FOLDER", help="Use your own trained run; repeatable."),
    ] = None,
    out: Annotated[Path, typer.Option(help="Folder for figures and page.")] = Path("figures"),
    runs: Annotated[Path, typer.Option(help="Folder for the models trained here.")] = Path("runs"),
    length: Annotated[int, typer.Option(help="Tokens of the captured sequence.")] = 512,
    seed: Annotated[
        int, typer.Option(help="Random seed for training and for choosing the sequence.")
    ] = 0,
    formats: Annotated[
        list[str] | None,
        typer.Option("--format", help="Any of png, svg, pdf. [default: all three]"),
    ] = None,
    shared_scale: Annotated[
        bool, typer.Option("--shared-scale", help="One colour range for all heads.")
    ] = False,
    colormap: Annotated[
        str | None, typer.Option(help="A matplotlib colour map instead of the chosen one.")
    ] = None,
    processes: Annotated[
        int | None,
        typer.Option(help="Models to train at once, one thread each. [default: one per core]"),
    ] = None,
    plugin: Plugin = None,
) -> None:
    """Make the paper's figures, training the models if needed.

    Figures 8 to 15 of arXiv:2503.08067: the positional bias of every head of the final layer, for
    one random sequence. Models are trained on Python's standard library. An interrupted job
    continues where it stopped; a repeated one takes seconds.
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
        colormap=colormap,
        processes=processes,
        command=shlex.join(["headscape", *sys.argv[1:]]),
    )
    say(page)


def _pair(text: str) -> tuple[str, str]:
    from headscape.errors import InputError

    name, equals, folder = text.partition("=")
    if not equals:
        raise InputError(f"--run {text!r} is not of the form ENCODING=FOLDER.")
    return name, folder
