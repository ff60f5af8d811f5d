"""`headscape draw`: pictures from captures."""

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from headscape.arrays.capture_file import Capture


class Kind(StrEnum):
    """What to draw."""

    grid = "grid"
    curves = "curves"
    row = "row"
    overview = "overview"
    compare = "compare"
    training = "training"


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("draw")(draw)


def draw(
    captures: Annotated[list[Path], typer.Argument(help="Files that `headscape capture` wrote.")],
    kind: Annotated[
        Kind,
        typer.Option(
            "--as",
            help="grid: all heads of a layer; curves: bias against distance; row: one query and "
            "its tokens; overview: layers x heads; compare: one head of several captures; "
            "training: one run's captures over its steps, a strip and a GIF.",
        ),
    ] = Kind.grid,
    quantity: Annotated[
        str | None,
        typer.Option(help="content, bias, final or weights. [default: bias; final for RoPE]"),
    ] = None,
    layer: Annotated[
        int | None, typer.Option(help="Layer, counted from 1. [default: the last captured]")
    ] = None,
    head: Annotated[int, typer.Option(help="Head for compare, counted from 1.")] = 1,
    query: Annotated[
        int | None, typer.Option(help="Query for row, counted from 0. [default: the last]")
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(help="File name without its ending. [default: beside the capture]"),
    ] = None,
    formats: Annotated[str, typer.Option("--format", help="Any of png,svg,pdf.")] = "png,svg,pdf",
    shared_scale: Annotated[
        bool, typer.Option("--shared-scale", help="One colour range for all panels.")
    ] = False,
    colormap: Annotated[
        str | None, typer.Option(help="A matplotlib colour map instead of the chosen one.")
    ] = None,
) -> None:
    """Draw captured scores as PNG, SVG and PDF."""
    from headscape.arrays import capture_file
    from headscape.figures import style

    _check(kind, captures, shared_scale=shared_scale, colormap=colormap)
    loaded = [capture_file.load(path) for path in captures]
    layer = loaded[0].layers[-1] if layer is None else _held("layer", layer, loaded[0].layers)
    if kind is Kind.compare:
        _held("head", head, loaded[0].heads)
    quantity = quantity or _natural(loaded[0])
    look: dict[str, Any] = {"colormap": colormap}
    if kind not in {Kind.curves, Kind.training}:
        look["shared_scale"] = shared_scale
    figure, animate = _figure(kind, loaded, layer, quantity, head - 1, query, look)
    stem = out or captures[0].with_name(f"{captures[0].stem}-{kind}")
    written = style.save(figure, stem, formats.split(","))
    if animate is not None:
        written.append(stem.with_name(f"{stem.name}.gif"))
        animate(written[-1])
    for path in written:
        typer.echo(path)


def _check(kind: Kind, captures: list[Path], *, shared_scale: bool, colormap: str | None) -> None:
    """Refuse what a kind has no use for, instead of dropping it."""
    from headscape.errors import InputError

    if len(captures) > 1 and kind not in {Kind.compare, Kind.training}:
        raise InputError(f"--as {kind} draws one capture, not {len(captures)}: use --as compare.")
    if kind is Kind.curves and colormap is not None:
        raise InputError("--as curves has no colour map: leave --colormap out.")
    if kind in {Kind.curves, Kind.training} and shared_scale:
        raise InputError(f"--as {kind} has no shared scale: leave --shared-scale out.")


def _held(what: str, number: int, held: "tuple[int, ...]") -> int:
    """The index of a layer or head that people count from 1."""
    from headscape.errors import InputError

    if number - 1 not in held:
        there = ", ".join(str(index + 1) for index in held)
        raise InputError(f"{what} {number} is not in this capture, which holds {there}.")
    return number - 1


def _natural(capture: "Capture") -> str:
    """Where nothing is added to the scores, the scores are what there is to see."""
    nothing_added = {"nope", "learned", "sinusoidal", "rope", "xpos"}
    return "final" if capture.encoding in nothing_added else "bias"


def _figure(
    kind: Kind,
    captures: "Sequence[Capture]",
    layer: int,
    quantity: str,
    head: int,
    query: int | None,
    look: dict[str, Any],
) -> "tuple[Any, Callable[[Path], Path] | None]":
    first = captures[0]
    if kind is Kind.curves:
        from headscape.figures.curves import Curves

        return Curves.of(first, layer, quantity).draw(), None
    if kind is Kind.row:
        from headscape.figures.row import Row

        return Row.of(first, layer, quantity, query, **look).draw(), None
    if kind is Kind.overview:
        from headscape.figures.overview import Overview

        return Overview.of(first, quantity, **look).draw(), None
    if kind is Kind.compare:
        from headscape.figures.compare import Compare

        return Compare.of(captures, layer, head, quantity, **look).draw(), None
    if kind is Kind.training:
        from headscape.figures.training import Training

        change = Training.of(captures, layer, quantity, **look)
        return change.draw(), change.save
    from headscape.figures.grid import Grid

    return Grid.of(first, layer, quantity, **look).draw(), None
