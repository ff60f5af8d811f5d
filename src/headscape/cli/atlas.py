"""`headscape atlas`: every head of a model, measured, as a page."""

from pathlib import Path

from headscape.cli.command import command
from headscape.cli.parsing import read_text
from headscape.errors import InputError
from headscape.io.terminal import say


@command()
def atlas(
    model: str,
    *,
    out: Path,
    text: str | None = None,
    corpus: str | None = None,
    sequences: int = 8,
    length: int | None = None,
    drift: list[str] | None = None,
    effects: int = 0,
    viewer: bool = False,
) -> None:
    """Measure every head of a model and write a page.

    Writes atlas.html (opens from disk, sortable by any measure), heads.csv and heads.json. The page
    shows each head's attention map and kernel, the ten heads where position matters most and least,
    and what was recognised. Try it on a run:

        headscape atlas runs/cable --out atlas --effects 8

    Args:
        model: A run, a folder of weights, or hf:FOLDER.
        out: Folder to write to.
        text: Measure on a text file; - reads standard input.
        corpus: Measure on the validation side of a corpus: stdlib, a file or a folder. [default:
            the text that a run was trained with]
        sequences: Sequences to measure on; intervals are over them, from 6 on.
        length: Tokens per sequence. [default: the trained length, at most 512]
        drift: Measure again at these multiples of the trained length, such as 1,2,4.
        effects: Measure how the loss changes when a head loses its positional part, on this many
            sequences; 2 runs per head.
        viewer: Link each head to a viewer of the first 128 tokens.
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
