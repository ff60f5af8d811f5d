"""`headscape evaluate` and `headscape compare`: what happens past the training length."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from headscape.cli.parsing import Command, Plugin
from headscape.io.terminal import say

if TYPE_CHECKING:
    from headscape.evaluation.table import Table
    from headscape.models.loaded import LoadedModel


def register(app: typer.Typer) -> None:
    """Add the commands."""
    app.command("evaluate", cls=Command)(evaluate)
    app.command("compare", cls=Command)(compare)


def evaluate(
    sources: Annotated[
        list[str], typer.Argument(metavar="MODEL", help="Run folders, or hf:FOLDER.")
    ],
    lengths: Annotated[
        list[int] | None,
        typer.Option(
            help="Test lengths in tokens; for a task in symbols of the question. "
            "[default: 512 to 16384]"
        ),
    ] = None,
    protocol: Annotated[
        str | None,
        typer.Option(
            help="Which tokens are scored: nonoverlap, last-256, sliding-256 (any number), "
            "per-position. [default: nonoverlap]"
        ),
    ] = None,
    same_tokens: Annotated[
        bool, typer.Option("--same-tokens", help="Score the same tokens at every length.")
    ] = False,
    quantity: Annotated[
        str | None,
        typer.Option(
            help="What to report: perplexity, byte-perplexity, word-perplexity, bits-per-byte or "
            "loss. [default: perplexity]"
        ),
    ] = None,
    extend: Annotated[
        list[str] | None,
        typer.Option(
            help="Add RoPE models stretched by linear, ntk, dynamic or yarn; yarn:8 stretches by "
            "8 at every length."
        ),
    ] = None,
    corpus: Annotated[
        str | None,
        typer.Option(help="Text to score. [default: the training corpus]"),
    ] = None,
    limit: Annotated[
        int | None, typer.Option(help="Use only this many tokens from the start of the text.")
    ] = None,
    task: Annotated[
        str | None, typer.Option(help="passkey or needle: a heat map by depth and length.")
    ] = None,
    depths: Annotated[
        list[float] | None,
        typer.Option(help="Depths of the heat map, 0 to 1. [default: 0, 0.25, 0.5, 0.75, 1]"),
    ] = None,
    examples: Annotated[
        int | None, typer.Option(help="Questions per length, for tasks. [default: 100]")
    ] = None,
    batch_tokens: Annotated[int, typer.Option(help="Tokens per batch.")] = 8192,
    out: Annotated[Path, typer.Option(help="Folder for the files.")] = Path("evaluation"),
    plugin: Plugin = None,
) -> None:
    """Score models at several lengths: table, plot and data.

    The same command resumes an interrupted evaluation.
    """
    import headscape as hs
    from headscape.evaluation.table import check_folder

    check_folder(out, reads=[corpus] if corpus else [])
    table = hs.evaluate(
        _stretched([hs.load(source) for source in sources], extend or []),
        lengths=lengths or None,
        protocol=protocol,
        same_tokens=same_tokens,
        quantity=quantity,
        corpus=corpus,
        limit=limit,
        task=task,
        depths=depths or None,
        examples=examples,
        batch_tokens=batch_tokens,
        journal=out / "journal",
    )
    _finish(table, out)


def compare(
    evaluations: Annotated[
        list[Path],
        typer.Argument(metavar="EVALUATION", help="Folders or JSON files that evaluate wrote."),
    ],
    quantity: Annotated[
        str | None, typer.Option(help="As for evaluate. [default: perplexity]")
    ] = None,
    out: Annotated[Path, typer.Option(help="Folder for the files.")] = Path("comparison"),
) -> None:
    """Merge evaluations into one table.

    Methods go across; several seeds of a method become mean and standard deviation.
    """
    import headscape as hs
    from headscape.evaluation.table import check_folder

    check_folder(out, reads=evaluations)
    _finish(hs.Table.read(*evaluations, quantity=quantity), out)


def _finish(table: "Table", out: Path) -> None:
    """Save a table; show it on stderr and its files on stdout."""
    paths = table.save(out)
    say(table.to_markdown(), err=True)
    for path in paths:
        say(path)


def _stretched(models: "Sequence[LoadedModel]", extend: Sequence[str]) -> "list[LoadedModel]":
    """The models, each RoPE model followed by its stretched versions."""
    from headscape.models.load import stretch
    from headscape.models.stretched import uses_rope

    # Without any RoPE model, the first one says why it cannot be stretched.
    rope = [model for model in models if uses_rope(model)]
    return [
        one
        for model in models
        for one in (
            model,
            *(stretch(model, name) for name in extend if model in rope or not rope),
        )
    ]
