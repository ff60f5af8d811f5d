"""`headscape train`: from text to a trained model."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from headscape.train import TrainConfig


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("train")(train)


def train(
    out: Annotated[Path, typer.Option(help="The run's folder.")],
    preset: Annotated[
        str | None,
        typer.Option(
            help="nano (default: two minutes on two cores), mini, tiny, small, medium, large, xl; "
            "paper-tiny-1024, paper-small-512, paper-small-1024, paper-medium-1024."
        ),
    ] = None,
    encoding: Annotated[
        str | None,
        typer.Option(help="See `headscape encodings`. [default: rope]"),
    ] = None,
    field: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=VALUE", help="A field of the encoding; repeatable."),
    ] = None,
    scale: Annotated[
        str | None, typer.Option(help="q.k times 1/sqrt of head_dim or width, or one.")
    ] = None,
    corpus: Annotated[
        str | None,
        typer.Option(
            help="stdlib, a file or folder (.txt .md .py .jsonl, .gz .zst), wikitext-103, "
            "fineweb-edu, hf:DATASET[:CONFIG], task:NAME (with --tokenizer bytes)."
        ),
    ] = None,
    tokenizer: Annotated[str | None, typer.Option(help="bytes, bpe:N or gpt2.")] = None,
    length: Annotated[int | None, typer.Option(help="Tokens in a training window.")] = None,
    batch: Annotated[
        int | None, typer.Option(help="Windows taken through the model at once.")
    ] = None,
    tokens_per_step: Annotated[
        int | None, typer.Option(help="Tokens between two updates, over all processes.")
    ] = None,
    steps: Annotated[int | None, typer.Option(help="Updates to make.")] = None,
    minutes: Annotated[float | None, typer.Option(help="Time to train instead of steps.")] = None,
    rate: Annotated[float | None, typer.Option(help="Highest learning rate.")] = None,
    seed: Annotated[int | None, typer.Option(help="Of weights and data order.")] = None,
    checkpoint_every: Annotated[int | None, typer.Option(help="Steps between checkpoints.")] = None,
    keep_every: Annotated[
        int | None, typer.Option(help="Checkpoints at multiples of this stay for good.")
    ] = None,
    validate_every: Annotated[
        int | None, typer.Option(help="Steps between validation losses.")
    ] = None,
    path: Annotated[
        str | None, typer.Option(help="Attention path; see `headscape doctor`.")
    ] = None,
    distributed: Annotated[
        str | None, typer.Option(help="ddp or fsdp, when started by torchrun.")
    ] = None,
    compile_model: Annotated[bool | None, typer.Option("--compile", help="torch.compile.")] = None,
    tensorboard: Annotated[
        bool | None, typer.Option("--tensorboard", help="Write TensorBoard events too.")
    ] = None,
    config: Annotated[
        Path | None, typer.Option(help="A config.toml instead of a preset: re-run it.")
    ] = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Go on with the run in --out, or begin it there.")
    ] = False,
) -> None:
    """Train a GPT-2 with any encoding on any text.

    The run's folder holds its complete config, metrics, checkpoints and provenance. Stop it with
    Ctrl-C or kill it: `--resume` continues the very same run. Several processes:
    `torchrun --nproc-per-node 8 -m headscape.cli train ...`.
    """
    from headscape.train import run

    changes: dict[str, Any] = {
        "encoding": encoding,
        "scale": scale,
        "corpus": corpus,
        "tokenizer": tokenizer,
        "length": length,
        "batch": batch,
        "tokens_per_step": tokens_per_step,
        "steps": steps,
        "minutes": minutes,
        "rate": rate,
        "seed": seed,
        "checkpoint_every": checkpoint_every,
        "keep_every": keep_every,
        "validate_every": validate_every,
        "path": path,
        "distributed": distributed,
        "compile": compile_model,
        "tensorboard": tensorboard,
    }
    if field:
        changes["encoding_fields"] = dict(map(_field, field))
    given = {name: value for name, value in changes.items() if value is not None}
    going_on = resume and preset is None and config is None and (out / run.CONFIG).is_file()
    start = out / run.CONFIG if going_on else config
    result = run.train(_config(preset, start, given), out=out, resume=resume)
    if not result.finished:
        raise typer.Exit(130)


def _config(preset: str | None, file: Path | None, given: "dict[str, Any]") -> "TrainConfig":
    """A preset or a file, with what was given on the command line put over it."""
    from dataclasses import replace

    from headscape.errors import InputError
    from headscape.train.config import config_file, presets

    if file is None:
        return presets.preset(preset or "nano", **given)
    if preset is not None:
        raise InputError(f"--preset {preset} and --config {file}: give one of them.")
    return replace(config_file.read(file), **given)


def _field(text: str) -> "tuple[str, object]":
    """NAME=VALUE; a value that TOML can read is read as such, any other is a word."""
    import tomllib

    from headscape.errors import InputError

    name, equals, value = text.partition("=")
    if not equals:
        raise InputError(f"--field {text!r} is not of the form NAME=VALUE.")
    try:
        return name, tomllib.loads(f"value = {value}")["value"]
    except tomllib.TOMLDecodeError:
        return name, value
