"""`headscape train`: train a model on a text."""

import os
from pathlib import Path
from typing import Annotated

import typer

from headscape.cli.parsing import Command, Plugin
from headscape.io.terminal import say


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("train", cls=Command)(train)


def train(
    out: Annotated[Path, typer.Option(help="Folder of the run.")],
    preset: Annotated[
        str | None,
        typer.Option(
            help="nano (for two CPU cores), mini, tiny, small, medium, large, xl, "
            "paper-tiny-1024, paper-small-512, paper-small-1024, paper-medium-1024. "
            "[default: nano]"
        ),
    ] = None,
    encoding: Annotated[
        str | None,
        typer.Option(
            help="Position encoding, or a schedule of layers such as rope:window=128,nope; "
            "see `headscape encodings`. [default: rope]"
        ),
    ] = None,
    field: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=VALUE", help="Field of the encoding; repeatable."),
    ] = None,
    scale: Annotated[
        str | None,
        typer.Option(
            help="Scale of q.k: head_dim (1/sqrt(head_dim)), width (1/sqrt(width)) or one (none)."
        ),
    ] = None,
    corpus: Annotated[
        str | None,
        typer.Option(
            help="stdlib, a file or folder (.txt .md .py .jsonl, .gz .zst), wikitext-103, "
            "fineweb-edu, hf:DATASET[:CONFIG], task:NAME (with --tokenizer bytes)."
        ),
    ] = None,
    tokenizer: Annotated[str | None, typer.Option(help="bytes, bpe:N or gpt2.")] = None,
    context_length: Annotated[int | None, typer.Option(help="Tokens in a training window.")] = None,
    batch_size: Annotated[
        int | None, typer.Option(help="Windows per micro-batch of one process.")
    ] = None,
    tokens_per_step: Annotated[
        int | None, typer.Option(help="Tokens per update, over all processes.")
    ] = None,
    steps: Annotated[int | None, typer.Option(help="Number of updates.")] = None,
    minutes: Annotated[float | None, typer.Option(help="Training time instead of steps.")] = None,
    optimizer: Annotated[str | None, typer.Option(help="adamw or muon.")] = None,
    lr: Annotated[float | None, typer.Option(help="Peak learning rate.")] = None,
    seed: Annotated[
        int | None, typer.Option(help="Random seed of initial weights and data order.")
    ] = None,
    checkpoint_every: Annotated[int | None, typer.Option(help="Steps between checkpoints.")] = None,
    keep_every: Annotated[
        int | None, typer.Option(help="Keep checkpoints at multiples of this many steps.")
    ] = None,
    validate_every: Annotated[
        int | None, typer.Option(help="Steps between validation losses.")
    ] = None,
    path: Annotated[
        str | None, typer.Option(help="Attention implementation; see `headscape doctor`.")
    ] = None,
    distributed: Annotated[
        str | None, typer.Option(help="ddp or fsdp, when started by torchrun.")
    ] = None,
    compile_model: Annotated[
        bool | None, typer.Option("--compile", help="Apply torch.compile to the model.")
    ] = None,
    tensorboard: Annotated[
        bool | None, typer.Option("--tensorboard", help="Also write TensorBoard events.")
    ] = None,
    config: Annotated[
        Path | None, typer.Option(help="A config.toml to repeat, instead of a preset.")
    ] = None,
    resume: Annotated[
        bool,
        typer.Option(
            "--resume",
            help="Continue the run in --out; with --preset or --config, start it if there is none.",
        ),
    ] = False,
    plugin: Plugin = None,
) -> None:
    """Train a GPT-2 with any position encoding on any text.

    The run's folder contains its complete config, metrics, checkpoints and provenance. After
    Ctrl-C or a kill, `--resume` continues the run with the same result. Several processes:
    `torchrun --nproc-per-node 8 -m headscape.cli train ...`.

    Progress goes to stderr. The folder of the finished run goes to stdout.
    """
    from headscape.encodings.registry import parse_field
    from headscape.errors import InputError
    from headscape.training import train as run

    if preset is not None and config is not None:
        raise InputError(f"--preset {preset} and --config {config}: give one of them.")
    result = run(
        config or preset,
        out=out,
        resume=resume,
        encoding=encoding,
        encoding_fields=dict(map(parse_field, field)) if field else None,
        scale=scale,
        corpus=corpus,
        tokenizer=tokenizer,
        context_length=context_length,
        batch_size=batch_size,
        tokens_per_step=tokens_per_step,
        steps=steps,
        minutes=minutes,
        optimizer=optimizer,
        lr=lr,
        seed=seed,
        checkpoint_every=checkpoint_every,
        keep_every=keep_every,
        validate_every=validate_every,
        path=path,
        distributed=distributed,
        compile=compile_model,
        tensorboard=tensorboard,
    )
    if not result.finished:
        raise typer.Exit(130)
    # Under torchrun every process gets here.
    if os.environ.get("RANK", "0") == "0":
        say(result.folder)
