"""`headscape draw`: pictures from captures."""

import shlex
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from headscape.cli.command import command
from headscape.cli.parsing import MAX_INDEX, given, numbers, refuse_unused
from headscape.errors import InputError
from headscape.io.terminal import say

if TYPE_CHECKING:
    from headscape.captures.capture_file import Capture
    from headscape.plots.view import View


class ViewKind(StrEnum):
    """What to draw."""

    grid = "grid"
    curves = "curves"
    row = "row"
    overview = "overview"
    compare = "compare"
    difference = "difference"
    training = "training"


USES = {
    ViewKind.grid: {"layer", "heads", "columns", "shared_scale", "cmap", "tokens"},
    ViewKind.curves: {"layer", "heads", "columns"},
    ViewKind.row: {"layer", "heads", "query", "shared_scale", "cmap"},
    ViewKind.overview: {"heads", "shared_scale", "cmap"},
    ViewKind.compare: {"layer", "head", "columns", "shared_scale", "cmap"},
    ViewKind.difference: {"layer", "heads", "columns", "shared_scale", "cmap"},
    ViewKind.training: {"layer", "heads", "cmap"},
}
"""Options of each view, besides those that every view uses."""
SOME_VIEWS = sorted(set.union(*USES.values()))


@command()
def draw(
    context: typer.Context,
    captures: Annotated[list[Path], typer.Argument(metavar="CAPTURE...")],
    *,
    kind: Annotated[ViewKind, typer.Option("--as")] = ViewKind.grid,
    quantity: str | None = None,
    layer: int | None = None,
    heads: list[str] | None = None,
    head: int = 1,
    query: int | None = None,
    columns: int | None = None,
    width: float | None = None,
    shared_scale: bool = False,
    limits: tuple[float, float] | None = None,
    cmap: Annotated[str | None, typer.Option("--cmap", "--colormap")] = None,
    title: str = "auto",
    tokens: bool = False,
    formats: Annotated[list[str] | None, typer.Option("--format")] = None,
    out: Path | None = None,
) -> None:
    """Draw captured scores as PNG, SVG or PDF.

    Examples:
        headscape draw cat.safetensors --heads 1,4,7,10 --columns 2 --width 3.3 --out figure.pdf
        headscape draw cat.safetensors --as curves

    Args:
        context: The command line as it was parsed.
        captures: Files that `headscape capture` wrote.
        kind: grid: the heads of a layer; curves: bias against distance; row: one query and its
            tokens; overview: layers x heads; compare: one head of several captures; difference: the
            first capture minus the second; training: one run's captures over its steps, a strip and
            a GIF.
        quantity: content, bias, final or weights. [default: bias; final for RoPE]
        layer: Layer, counted from 1. [default: the last captured]
        heads: Heads, counted from 1, such as 1,4,7-9. [default: all]
        head: Head for compare, counted from 1.
        query: Query for row, counted from 1. [default: the last]
        columns: Panels in a row. [default: 3 for 12 heads]
        width: Width of the figure in inches. [default: by the number of panels]
        shared_scale: One colour range for all panels.
        limits: Lowest and highest value with a colour of its own, such as --limits -8 0; of curves,
            the range of the axis.
        cmap: A matplotlib colour map instead of the chosen one.
        title: The line above the panels: auto, none or your own text.
        tokens: Write the tokens at the axes of a grid; refused where they are too many.
        formats: Any of png, svg, pdf. [default: png]
        out: File to write, such as pic.png. [default: named after what it shows, beside the
            capture]
    """
    from headscape.captures.capture_file import Capture
    from headscape.plots.view import targets

    refuse_unused(context, USES[kind], SOME_VIEWS, f"--as {kind}")
    _check_count(kind, len(captures))
    loaded = [Capture.load(path) for path in captures]
    length = loaded[0].length
    if query is not None and not 1 <= query <= length:
        raise InputError(f"--query {query} is not in this capture: choose one from 1 to {length}.")
    options: dict[str, Any] = {
        "columns": columns,
        "width": width,
        "shared_scale": shared_scale,
        "limits": limits,
        "cmap": cmap,
        "title": None if title == "none" else title,
        "tokens": tokens,
        "query": None if query is None else query - 1,
    }
    options = {name: value for name, value in options.items() if given(context, name)}
    if layer is not None:
        options["layer"] = from_captured([str(layer)], loaded[0].layers, "layer")[0]
    if heads:
        options["heads"] = from_captured(heads, loaded[0].heads, "head")
    if kind is ViewKind.compare:
        options["head"] = from_captured([str(head)], loaded[0].heads, "head")[0]
    view = _view(kind, loaded, quantity, options)
    for path in targets(view, out, formats, captures[0].parent):
        say(view.save(path))
    say(f"walk through it: headscape view {shlex.join(map(str, captures))}", err=True)


def _check_count(kind: ViewKind, count: int) -> None:
    wanted = {ViewKind.compare: None, ViewKind.training: None, ViewKind.difference: 2}.get(kind, 1)
    if wanted is not None and count != wanted:
        raise InputError(
            f"--as {kind} draws {wanted} capture{'s' * (wanted > 1)}, got {count}: use --as "
            f"difference for two, --as compare for several."
        )


def from_captured(words: list[str], captured: tuple[int, ...], what: str) -> tuple[int, ...]:
    """Indices from 0 of captured layers or heads, which the command line counts from 1."""
    from headscape.captures.record import indices

    chosen = indices(numbers(words, what), MAX_INDEX, what, first=1)
    for index in chosen if words != ["all"] else ():
        if index not in captured:
            there = ", ".join(str(one + 1) for one in captured)
            raise InputError(
                f"{what} {index + 1} is not in this capture, which contains {what} {there}."
            )
    return captured if words == ["all"] else chosen


def _view(
    kind: ViewKind, captures: "list[Capture]", quantity: str | None, options: dict[str, Any]
) -> "View":
    if kind is ViewKind.difference:
        from headscape.plots.compare import compare

        return compare(captures[0], captures[1], quantity=quantity, **options)
    if kind in (ViewKind.compare, ViewKind.training) and "title" in options:
        heading = options.pop("title")
        options |= {} if heading == "auto" else {"heading": heading}
    if kind is ViewKind.compare:
        from headscape.plots.compare import SideBySide

        return SideBySide.of(captures, quantity=quantity, **options)
    if kind is ViewKind.training:
        from headscape.plots.training import Training

        return Training.of(captures, quantity=quantity, **options)
    # grid, curves, row and overview are methods of a capture.
    view: View = getattr(captures[0], kind.value)(quantity=quantity, **options)
    return view
