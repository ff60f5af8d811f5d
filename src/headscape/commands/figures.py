"""`headscape figures`: the paper's figures, from nothing."""

import shlex
import sys
from pathlib import Path
from typing import Annotated

import typer


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("figures")(figures)


def figures(
    encodings: Annotated[
        str | None,
        typer.Option(
            help="Encodings to draw, with commas: alibi,dapev2+kerple. "
            "[default: the paper's eight, Figures 8 to 15]"
        ),
    ] = None,
    preset: Annotated[
        str, typer.Option(help="Size of the models; `small` is GPT-2 Small, the paper's.")
    ] = "nano",
    untrained: Annotated[
        bool, typer.Option("--untrained", help="Draw models as initialised; trains nothing.")
    ] = False,
    run: Annotated[
        list[str] | None,
        typer.Option(metavar="ENCODING=FOLDER", help="Use your own trained run; repeatable."),
    ] = None,
    out: Annotated[Path, typer.Option(help="Folder for figures and page.")] = Path("figures"),
    runs: Annotated[Path, typer.Option(help="Folder for the models trained here.")] = Path("runs"),
    length: Annotated[int, typer.Option(help="Tokens of the captured sequence.")] = 512,
    seed: Annotated[int, typer.Option(help="Of models and of the captured sequence.")] = 0,
    formats: Annotated[str, typer.Option("--format", help="Any of png,svg,pdf.")] = "png,svg,pdf",
    shared_scale: Annotated[
        bool, typer.Option("--shared-scale", help="One colour range for all heads.")
    ] = False,
    colormap: Annotated[
        str | None, typer.Option(help="A matplotlib colour map instead of the chosen one.")
    ] = None,
) -> None:
    """Make the paper's figures: train what is missing, capture, measure, draw.

    Figures 8 to 15 of arXiv:2503.08067: the positional bias of every head of the final layer, for
    one random sequence. Models are trained on Python's standard library, about two minutes each
    on two cores; an interrupted job goes on where it was, a repeated one takes seconds.
    """
    from headscape.errors import InputError
    from headscape.paper import job
    from headscape.paper.figure_files import Look

    own: dict[str, Path] = {}
    for text in run or []:
        name, equals, folder = text.partition("=")
        if not equals:
            raise InputError(f"--run {text!r} is not of the form ENCODING=FOLDER.")
        own[name] = Path(folder)
    look = Look(
        out=out,
        length=length,
        seed=seed,
        formats=tuple(formats.split(",")),
        shared_scale=shared_scale,
        colormap=colormap,
    )
    options = {"encodings": tuple(encodings.split(","))} if encodings else {}
    page = job.run(
        job.Job(
            look=look,
            preset=preset,
            untrained=untrained,
            own_runs=own,
            run_folder=runs,
            seed=seed,
            **options,
        ),
        shlex.join(["headscape", *sys.argv[1:]]),
        typer.echo,
    )
    typer.echo(f"open {page.resolve()}")
