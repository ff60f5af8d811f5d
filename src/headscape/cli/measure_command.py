"""`headscape measure`: numbers per layer and head, of captures or of a model."""

from pathlib import Path
from typing import Annotated

import typer

from headscape.cli.atlas_command import (
    Corpus,
    Drift,
    Effects,
    Length,
    Sequences,
    Text,
    multiples,
)
from headscape.cli.parsing import Command, Plugin, read_text, refuse_unused
from headscape.errors import InputError
from headscape.io.output_file import KINDS, check_output, write_output
from headscape.io.terminal import say

FORMS = ("csv", "json", "md")
OF_A_MODEL = ("text", "corpus", "sequences", "length", "drift", "effects")


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("measure", cls=Command)(measure)


def measure(
    context: typer.Context,
    sources: Annotated[
        list[str],
        typer.Argument(
            help="Files that `headscape capture` wrote, or one model: a run, a folder of weights, "
            "hf:FOLDER.",
            metavar="CAPTURE...|MODEL",
        ),
    ],
    quantity: Annotated[
        str | None,
        typer.Option(help="Captures: content, bias or final. [default: bias; final for RoPE]"),
    ] = None,
    text: Text = None,
    corpus: Corpus = None,
    sequences: Sequences = 8,
    length: Length = None,
    drift: Drift = None,
    effects: Effects = 0,
    csv: Annotated[
        bool, typer.Option("--csv", help="Print CSV instead of a table for reading.")
    ] = False,
    out: Annotated[
        Path | None, typer.Option(help="Write to this .csv, .json or .md file instead.")
    ] = None,
    plugin: Plugin = None,
) -> None:
    """Print one row per layer and head, both counted from 1.

    Captures: position share, reach, the most similar head; several go below each other. A model:
    kernel, slash, sink, reach, entropy, induction and more, over many sequences, with intervals in
    CSV and JSON. `headscape atlas` shows the same as a page.

        headscape measure runs/cable --effects 8 --out heads.csv
    """
    form = out.suffix[1:] if out is not None else "csv" if csv else "md"
    if form not in FORMS:
        raise InputError(f"measures cannot be written as {form!r}; choose csv, json or md.")
    first = Path(sources[0])
    of_model = len(sources) == 1 and first.suffix != ".safetensors" and not first.is_file()
    if out is not None:
        # A table may lie in a run's folder, but it must not replace a text or a capture.
        read = (text, corpus) if of_model else sources
        check_output(out, KINDS[form], reads=[path for path in read if path is not None])
    if of_model:
        refuse_unused(context, (), ("quantity",), "measuring a model")
        table = _of_model(
            sources[0],
            form,
            read_text(text),
            corpus=corpus,
            sequences=sequences,
            length=length,
            drift=multiples(drift),
            effects=effects,
        )
    else:
        refuse_unused(context, (), OF_A_MODEL, "measuring captures")
        table = _of_captures(sources, form, quantity)
    if out is None:
        say(table, nl=False)
    else:
        write_output(out, table, KINDS[form])
        say(out)


def _of_captures(paths: list[str], form: str, quantity: str | None) -> str:
    import headscape as hs
    from headscape.measures.measures import written

    return written({path: hs.Capture.load(path).measures(quantity) for path in paths}, form)


def _of_model(source: str, form: str, text: str | None, **options: object) -> str:
    import headscape as hs

    found = hs.load(source).measures(text, **options)
    if form == "md":
        return found.to_markdown(first=1)
    return found.to_json() if form == "json" else found.to_csv(first=1)
