"""`headscape atlas` and `headscape measure`: every head, measured, as a page or as a table."""

import shlex
from pathlib import Path
from typing import Annotated

import typer

from headscape.cli.command import command
from headscape.cli.opening import model_options, open_models
from headscape.cli.parsing import chosen_text, refuse_unused
from headscape.errors import InputError
from headscape.io.output_file import KINDS, check_output, write_output
from headscape.io.terminal import say


@command(fields=model_options)
def atlas(
    context: typer.Context,
    model: str,
    *,
    out: Path,
    prompt: str | None = None,
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
    and what was recognised.

    Examples:
        headscape atlas runs/cable --out atlas --effects 8
        headscape atlas hf:smollm2 --text text.txt --length 128 --out atlas

    Args:
        context: The command line as it was parsed.
        model: A run, a folder of weights, hf:FOLDER, or hf:OWNER/NAME on the Hugging Face Hub.
        out: Folder to write to.
        prompt: Measure on this text.
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
    [opened] = open_models(context, [model])
    hs.atlas(
        opened,
        out,
        chosen_text(prompt, text),
        corpus=corpus,
        sequences=sequences,
        length=length,
        drift=multiples(drift),
        effects=effects,
        viewer=viewer,
    )
    words = "--prompt 'The cat sat on the mat'"
    say(
        f"open it in a browser; look at a head: headscape view {shlex.quote(model)} {words}",
        err=True,
    )
    say(out / "atlas.html")


def multiples(words: list[str] | None) -> list[int]:
    """Return the multiples of --drift."""
    for word in words or []:
        if not (word.isdecimal() and len(word) < 4 and int(word) >= 1):
            raise InputError(f"--drift {word!r}: give whole numbers of at least 1, such as 1,2,4.")
    return [int(word) for word in words or []]


FORMS = ("csv", "json", "md")
OF_A_MODEL = ("prompt", "text", "corpus", "sequences", "length", "drift", "effects")


@command(fields=model_options)
def measure(
    context: typer.Context,
    sources: Annotated[list[str], typer.Argument(metavar="CAPTURE...|MODEL")],
    *,
    quantity: str | None = None,
    prompt: str | None = None,
    text: str | None = None,
    corpus: str | None = None,
    sequences: int = 8,
    length: int | None = None,
    drift: list[str] | None = None,
    effects: int = 0,
    kind: str | None = None,
    csv: bool = False,
    out: Path | None = None,
) -> None:
    """Print one row per layer and head, both counted from 1.

    Captures: position share, reach, the most similar head; several go below each other. A model:
    kernel, slash, sink, reach, entropy, induction and more, over many sequences, with intervals in
    CSV and JSON. `headscape atlas` shows the same as a page.

    Examples:
        headscape measure cat.safetensors
        headscape measure runs/cable --effects 8 --out heads.csv

    Args:
        context: The command line as it was parsed.
        sources: Files that `headscape capture` wrote, or one model: a run, a folder of weights,
            hf:FOLDER, or hf:OWNER/NAME on the Hugging Face Hub.
        quantity: Captures: content, bias or final; the viewer shows those of the bias.
            [default: bias; final for RoPE]
        prompt: A model: measure on this text.
        text: A model: measure on a text file; - reads standard input.
        corpus: A model: measure on the validation side of a corpus: stdlib, a file or a folder.
            [default: the text that a run was trained with]
        sequences: A model: sequences to measure on; intervals are over them, from 6 on.
        length: A model: tokens per sequence. [default: the trained length, at most 512]
        drift: A model: measure again at these multiples of the trained length, such as 1,2,4.
        effects: A model: measure how the loss changes when a head loses its positional part, on
            this many sequences; 2 runs per head.
        kind: Only heads of this kind: previous, current or next token, slash, sink, induction,
            duplicate token, retrieval.
        csv: Print CSV instead of a table for reading.
        out: Write to this .csv, .json or .md file instead.
    """
    import headscape as hs
    from headscape.measures.measures import written

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
        [opened] = open_models(context, sources)
        measured = hs.load(opened).measures(
            chosen_text(prompt, text),
            corpus=corpus,
            sequences=sequences,
            length=length,
            drift=multiples(drift),
            effects=effects,
        )
        table = written({sources[0]: measured}, form, kind)
    else:
        refuse_unused(context, (), OF_A_MODEL, "measuring captures")
        open_models(context, sources)
        table = _of_captures(sources, form, quantity, kind)
    if out is None:
        say(table, nl=False)
    else:
        write_output(out, table, KINDS[form])
        given = shlex.join(sources)
        page, viewer = f"headscape atlas {given} --out atlas", f"headscape view {given}"
        say(f"as a page: {page}" if of_model else f"look at them: {viewer}", err=True)
        say(out)


def _of_captures(paths: list[str], form: str, quantity: str | None, kind: str | None) -> str:
    import headscape as hs
    from headscape.captures.capture_file import CAPTURE
    from headscape.measures.measures import written

    for path in map(Path, paths):
        if path.is_file() and path.suffix != ".safetensors" and not CAPTURE.recognises(path):
            raise InputError(
                f"{path} is not a capture: `headscape measure MODEL --text {path}` measures a "
                f"model on a text."
            )
    measured = {path: hs.Capture.load(path).measures(quantity) for path in paths}
    return written(measured, form, kind)
