"""`headscape atlas`: every head of a model, measured, as a page."""

from pathlib import Path
from typing import Annotated

import typer

from headscape.cli.parsing import Command, Plugin, read_text
from headscape.errors import InputError
from headscape.io.terminal import say

Text = Annotated[str | None, typer.Option(help="Measure on a text file; - reads standard input.")]
Corpus = Annotated[
    str | None,
    typer.Option(
        help="Measure on the validation side of a corpus: stdlib, a file or a folder. "
        "[default: the text that a run was trained with]"
    ),
]
Sequences = Annotated[
    int,
    typer.Option(help="Sequences to measure on; intervals are over them, from 6 on."),
]
Length = Annotated[
    int | None,
    typer.Option(help="Tokens per sequence. [default: the trained length, at most 512]"),
]
Drift = Annotated[
    list[str] | None,
    typer.Option(help="Measure again at these multiples of the trained length, such as 1,2,4."),
]
Effects = Annotated[
    int,
    typer.Option(
        help="Measure how the loss changes when a head loses its positional part, on this many "
        "sequences; 2 runs per head. [default: 0, not measured]",
        show_default=False,
    ),
]


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("atlas", cls=Command)(atlas)


def atlas(
    model: Annotated[
        str, typer.Argument(help="A run, a folder of weights, or hf:FOLDER.", metavar="MODEL")
    ],
    out: Annotated[Path, typer.Option(help="Folder to write to.")],
    text: Text = None,
    corpus: Corpus = None,
    sequences: Sequences = 8,
    length: Length = None,
    drift: Drift = None,
    effects: Effects = 0,
    viewer: Annotated[
        bool,
        typer.Option("--viewer", help="Link each head to a viewer of the first 128 tokens."),
    ] = False,
    plugin: Plugin = None,
) -> None:
    """Measure every head of a model and write a page.

    Writes atlas.html (opens from disk, sortable by any measure), heads.csv and heads.json. The page
    shows each head's attention map and kernel, the ten heads where position matters most and least,
    and what was recognised. Try it on a run:

        headscape atlas runs/cable --out atlas --effects 8
    """
    import headscape as hs
    from headscape.viewer.atlas import check_folder

    check_folder(out, reads=[path for path in (text, corpus) if path is not None])
    hs.atlas(
        model,
        out,
        read_text(text),
        corpus=corpus,
        sequences=sequences,
        length=length,
        drift=multiples(drift),
        effects=effects,
        viewer=viewer,
    )
    say(out / "atlas.html")


def multiples(words: list[str] | None) -> list[int]:
    """Return the multiples of --drift."""
    for word in words or []:
        if not (word.isdecimal() and len(word) < 4 and int(word) >= 1):
            raise InputError(f"--drift {word!r}: give whole numbers of at least 1, such as 1,2,4.")
    return [int(word) for word in words or []]
