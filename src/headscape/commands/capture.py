"""`headscape capture`: what every head does with one sequence, as a file."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from headscape.capture.record import Sequence
    from headscape.train import Run


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("capture")(capture)


def capture(
    run: Annotated[Path, typer.Argument(help="A run that `headscape train` made.")],
    layers: Annotated[
        str, typer.Option(help="last, all, or numbers from 1 such as 1,3,5-8.")
    ] = "last",
    heads: Annotated[str, typer.Option(help="all, or numbers from 1.")] = "all",
    quantities: Annotated[
        str,
        typer.Option(
            help="Any of content (scaled q.k), bias (final - content), final (before the softmax), "
            "weights (after it)."
        ),
    ] = "content,bias,final,weights",
    length: Annotated[
        int | None, typer.Option(help="Tokens of the sequence. [default: the training length]")
    ] = None,
    seed: Annotated[int, typer.Option(help="Which random window of the validation text.")] = 0,
    text: Annotated[
        Path | None, typer.Option(help="Read the sequence from a text file instead.")
    ] = None,
    document: Annotated[
        int | None, typer.Option(help="Take validation document N, counted from 0, instead.")
    ] = None,
    step: Annotated[
        int | None, typer.Option(help="Checkpoint to use. [default: the newest good one]")
    ] = None,
    resolution: Annotated[
        int | None,
        typer.Option(
            help="Reduce each map to this many cells a side (mean, min, max) while it is "
            "computed; needed for long sequences."
        ),
    ] = None,
    window: Annotated[
        str | None,
        typer.Option(
            metavar="Q0:Q1,K0:K1", help="With --resolution: keep these queries and keys exactly."
        ),
    ] = None,
    path: Annotated[str, typer.Option(help="Attention path below the captured layers.")] = "auto",
    out: Annotated[
        Path | None, typer.Option(help="File to write. [default: RUN/capture.safetensors]")
    ] = None,
) -> None:
    """Record content scores, positional bias, final scores and weights of chosen heads.

    Memory is of order block x length: with --resolution, 16,384 tokens and more are no problem.
    """
    from rich.progress import Progress, TimeRemainingColumn

    from headscape.attention.attend import parse_path
    from headscape.capture.record import record
    from headscape.capture.select import chosen
    from headscape.capture.tap import Request
    from headscape.gpt2 import weights
    from headscape.train import Run

    attention_path = parse_path(path)
    held = Run.open(run, step)
    shape = held.model.config
    request = Request(
        layers=chosen(layers, shape.layers, "layer"),
        heads=chosen(heads, shape.heads, "head"),
        quantities=tuple(quantities.split(",")),
        resolution=resolution,
        window=None if window is None else _window(window),
    )
    sequence = _sequence(
        held, shape.train_length if length is None else length, seed, text, document
    )
    rows = len(sequence.tokens) * len(request.layers)
    with Progress(*Progress.get_default_columns()[:-1], TimeRemainingColumn()) as bar:
        task = bar.add_task("capturing", total=rows)
        result = record(
            held.model,
            sequence,
            request,
            preset=held.config.preset,
            trained=True,
            tokenizer=held.tokenizer,
            provenance={
                "run": held.folder.name,
                "step": held.step,
                "checkpoint_hash": weights.read_json(held.checkpoint / weights.HEADER).get(
                    "sha256"
                ),
            },
            path=attention_path,
            progress=lambda done: bar.advance(task, done),
        )
    out = out or run / "capture.safetensors"
    result.save(out)
    typer.echo(f"{out}; draw it with: headscape draw {out}")


def _sequence(
    run: "Run", length: int, seed: int, text: Path | None, document: int | None
) -> "Sequence":
    from headscape.capture.record import from_text, sample, window_of
    from headscape.errors import InputError
    from headscape.text.corpus.corpus import open_corpus
    from headscape.text.corpus.reading import read_documents
    from headscape.text.dataset import default_cache
    from headscape.text.tokens.shards import open_shards

    if text is not None and document is not None:
        raise InputError(f"--text {text} and --document {document}: give one of them.")
    if text is not None:
        if not text.is_file():
            raise InputError(f"there is no file {text}.")
        whole = "".join(part.text for part in read_documents(text, text.name))
        return from_text(whole, run.tokenizer, length, text.name)
    corpus = open_corpus(run.config.corpus, default_cache())
    shard = open_shards(corpus, run.tokenizer, default_cache()).validation
    if document is None:
        return sample(shard.tokens, length, seed, run.config.corpus)
    documents = len(shard.offsets) - 1
    if not 0 <= document < documents:
        raise InputError(f"document {document} is not there: validation has 0 to {documents - 1}.")
    start, stop = int(shard.offsets[document]), int(shard.offsets[document + 1])
    return window_of(shard.tokens[start:stop], length, document, run.config.corpus)


def _window(text: str) -> tuple[slice, slice]:
    from headscape.errors import InputError

    try:
        (q0, q1), (k0, k1) = ((int(edge) for edge in part.split(":")) for part in text.split(","))
    except ValueError:
        raise InputError(f"--window {text!r} is not of the form Q0:Q1,K0:K1.") from None
    return slice(q0, q1), slice(k0, k1)
