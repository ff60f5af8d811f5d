"""`headscape evaluate` and `headscape compare`: what happens past the training length."""

import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from headscape.cli.command import command
from headscape.cli.opening import model_options, open_models
from headscape.cli.parsing import chosen_text
from headscape.io.terminal import say

if TYPE_CHECKING:
    from headscape.evaluation.table import Table
    from headscape.models.loaded import LoadedModel


@command(fields=model_options)
def evaluate(
    context: typer.Context,
    sources: Annotated[list[str], typer.Argument(metavar="MODEL...")],
    *,
    lengths: list[int] | None = None,
    protocol: str | None = None,
    same_tokens: bool = False,
    quantity: str | None = None,
    extend: list[str] | None = None,
    corpus: str | None = None,
    prompt: str | None = None,
    text: str | None = None,
    limit: int | None = None,
    task: str | None = None,
    depths: list[float] | None = None,
    examples: int | None = None,
    batch_tokens: int = 8192,
    out: Path = Path("evaluation"),
) -> None:
    """Score models at several lengths: table, plot and data.

    The same command resumes an interrupted evaluation.

    Examples:
        headscape evaluate runs/cable --lengths 512,1024,2048,4096
        headscape evaluate hf:smollm2 --text text.txt --lengths 512,1024,2048,4096

    Args:
        context: The command line as it was parsed.
        sources: Run folders, hf:FOLDER, or hf:OWNER/NAME on the Hugging Face Hub.
        lengths: Test lengths in tokens; for a task in symbols of the question. [default: 512 to
            16384]
        protocol: Which tokens are scored: nonoverlap, last-256, sliding-256 (any number),
            per-position. [default: nonoverlap]
        same_tokens: Score the same tokens at every length.
        quantity: What to report: perplexity, byte-perplexity, word-perplexity, bits-per-byte or
            loss. [default: perplexity]
        extend: Add RoPE models stretched by linear, ntk, dynamic or yarn; yarn:8 stretches by 8 at
            every length.
        corpus: Score the held-out 5% of a corpus: stdlib, a file or a folder. [default: the
            training corpus]
        prompt: Score this text, all of it.
        text: Score a text file, all of it; - is standard input.
        limit: Use only this many tokens from the start of the text.
        task: passkey or needle: a heat map by depth and length.
        depths: Depths of the heat map, 0 to 1. [default: 0, 0.25, 0.5, 0.75, 1]
        examples: Questions per length, for tasks. [default: 100]
        batch_tokens: Tokens per batch.
        out: Folder for the files.
    """
    import headscape as hs
    from headscape.evaluation.table import check_folder

    check_folder(out, reads=[path for path in (corpus, text) if path is not None])
    table = hs.evaluate(
        _stretched([hs.load(one) for one in open_models(context, sources)], extend or []),
        lengths=lengths or None,
        protocol=protocol,
        same_tokens=same_tokens,
        quantity=quantity,
        corpus=corpus,
        text=chosen_text(prompt, text),
        limit=limit,
        task=task,
        depths=depths or None,
        examples=examples,
        batch_tokens=batch_tokens,
        journal=out / "journal",
    )
    _finish(table, out)
    say(f"beside others: headscape compare {shlex.quote(str(out))} OTHER", err=True)


@command()
def compare(
    evaluations: Annotated[list[Path], typer.Argument(metavar="EVALUATION...")],
    *,
    quantity: str | None = None,
    out: Path = Path("comparison"),
) -> None:
    """Merge evaluations into one table.

    Methods go across; several seeds of a method become mean and standard deviation.

    Examples:
        headscape compare evaluation-cable evaluation-alibi

    Args:
        evaluations: Folders or JSON files that evaluate wrote.
        quantity: As for evaluate. [default: perplexity]
        out: Folder for the files.
    """
    import headscape as hs
    from headscape.evaluation.table import check_folder

    check_folder(out, reads=evaluations)
    _finish(hs.Table.read(*evaluations, quantity=quantity), out)
    say(f"in Python: hs.Table.read({str(out)!r})", err=True)


def _finish(table: "Table", out: Path) -> None:
    """Save a table; show it on stderr and its files on stdout."""
    paths = table.save_files(out)
    say(table.to_markdown(), err=True)
    for path in paths:
        say(path)


def _stretched(models: "Sequence[LoadedModel]", extend: Sequence[str]) -> "list[LoadedModel]":
    """The models, each RoPE model followed by its stretched versions."""
    from headscape.models.stretched import stretch, uses_rope

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
