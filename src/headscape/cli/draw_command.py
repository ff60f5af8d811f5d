"""`headscape draw`: pictures from captures."""

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from headscape.cli.parsing import MOST, Command, Plugin, given, numbers, refuse_unused
from headscape.io.terminal import say

if TYPE_CHECKING:
    from headscape.captures.capture import Capture
    from headscape.plots.view import View


class Kind(StrEnum):
    """What to draw."""

    grid = "grid"
    curves = "curves"
    row = "row"
    overview = "overview"
    compare = "compare"
    difference = "difference"
    training = "training"


USES = {
    Kind.grid: {"layer", "heads", "columns", "width", "shared_scale", "colormap"},
    Kind.curves: {"layer", "heads", "columns", "width"},
    Kind.row: {"layer", "heads", "query", "width", "colormap"},
    Kind.overview: {"width", "shared_scale", "colormap"},
    Kind.compare: {"layer", "head", "columns", "width", "shared_scale", "colormap"},
    Kind.difference: {"layer", "heads", "columns", "width", "colormap"},
    Kind.training: {"layer", "heads", "width", "colormap"},
}
"""Options of each view, besides those that every view uses."""
SOME_VIEWS = sorted(set.union(*USES.values()))


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("draw", cls=Command)(draw)


def draw(
    context: typer.Context,
    captures: Annotated[
        list[Path], typer.Argument(metavar="CAPTURE", help="Files that `headscape capture` wrote.")
    ],
    kind: Annotated[
        Kind,
        typer.Option(
            "--as",
            help="grid: the heads of a layer; curves: bias against distance; row: one query and "
            "its tokens; overview: layers x heads; compare: one head of several captures; "
            "difference: the first capture minus the second; training: one run's captures over "
            "its steps, a strip and a GIF.",
        ),
    ] = Kind.grid,
    quantity: Annotated[
        str | None,
        typer.Option(help="content, bias, final or weights. [default: bias; final for RoPE]"),
    ] = None,
    layer: Annotated[
        int | None, typer.Option(help="Layer, counted from 1. [default: the last captured]")
    ] = None,
    heads: Annotated[
        list[str] | None,
        typer.Option(help="Heads, counted from 1, such as 1,4,7-9. [default: all]"),
    ] = None,
    head: Annotated[int, typer.Option(help="Head for compare, counted from 1.")] = 1,
    query: Annotated[
        int | None, typer.Option(help="Query for row, counted from 0. [default: the last]")
    ] = None,
    columns: Annotated[
        int | None, typer.Option(help="Panels in a row. [default: 3 for 12 heads]")
    ] = None,
    width: Annotated[
        float | None,
        typer.Option(help="Width of the figure in inches. [default: by the number of panels]"),
    ] = None,
    shared_scale: Annotated[
        bool, typer.Option("--shared-scale", help="One colour range for all panels.")
    ] = False,
    colormap: Annotated[
        str | None, typer.Option(help="A matplotlib colour map instead of the chosen one.")
    ] = None,
    formats: Annotated[
        list[str] | None,
        typer.Option("--format", help="Any of png, svg, pdf. [default: png]"),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(
            help="File to write, such as pic.png. [default: named after what it shows, beside the "
            "capture]"
        ),
    ] = None,
    plugin: Plugin = None,
) -> None:
    """Draw captured scores as PNG, SVG or PDF."""
    from headscape.captures.capture import Capture
    from headscape.plots.view import targets

    refuse_unused(context, USES[kind], SOME_VIEWS, f"--as {kind}")
    _check_count(kind, len(captures))
    loaded = [Capture.load(path) for path in captures]
    options: dict[str, Any] = {
        "columns": columns,
        "width": width,
        "shared_scale": shared_scale,
        "colormap": colormap,
        "query": query,
        "head": head - 1,
    }
    options = {name: value for name, value in options.items() if given(context, name)}
    if "layer" in USES[kind] and layer is not None:
        options["layer"] = from_captured([str(layer)], loaded[0].layers, "layer")[0]
    if heads:
        options["heads"] = from_captured(heads, loaded[0].heads, "head")
    if kind is Kind.compare:
        options["head"] = from_captured([str(head)], loaded[0].heads, "head")[0]
    view = _view(kind, loaded, quantity, options)
    for path in targets(view, out, formats, captures[0].parent):
        say(view.save(path))


def _check_count(kind: Kind, count: int) -> None:
    from headscape.errors import InputError

    wanted = {Kind.compare: None, Kind.training: None, Kind.difference: 2}.get(kind, 1)
    if wanted is not None and count != wanted:
        raise InputError(
            f"--as {kind} draws {wanted} capture{'s' * (wanted > 1)}, got {count}: use --as "
            f"difference for two, --as compare for several."
        )


def from_captured(words: list[str], captured: tuple[int, ...], what: str) -> tuple[int, ...]:
    """Indices from 0 of captured layers or heads, which the command line counts from 1."""
    from headscape.captures.record import indices
    from headscape.errors import InputError

    chosen = indices(numbers(words, what), MOST, what, first=1)
    for index in chosen if words != ["all"] else ():
        if index not in captured:
            there = ", ".join(str(one + 1) for one in captured)
            raise InputError(
                f"{what} {index + 1} is not in this capture, which contains {what} {there}."
            )
    return captured if words == ["all"] else chosen


def _view(
    kind: Kind, captures: "list[Capture]", quantity: str | None, options: dict[str, Any]
) -> "View":
    first = captures[0]
    if kind is Kind.grid:
        return first.grid(quantity=quantity, **options)
    if kind is Kind.curves:
        return first.curves(quantity=quantity, **options)
    if kind is Kind.row:
        return first.row(quantity=quantity, **options)
    if kind is Kind.overview:
        return first.overview(quantity=quantity, **options)
    if kind is Kind.difference:
        from headscape.plots.compare import compare

        return compare(captures[0], captures[1], quantity=quantity, **options)
    if kind is Kind.compare:
        from headscape.plots.compare import SideBySide

        return SideBySide.of(captures, quantity=quantity, **options)
    from headscape.plots.training import Training

    return Training.of(captures, quantity=quantity, **options)
