"""`headscape train`: train a model on a text.

Its options, such as --lr, are the fields of training/config.py and gpt2/model_config.py.
"""

import os
import shlex
from pathlib import Path

import typer

from headscape.cli.command import FIELDS, Fields, command
from headscape.errors import InputError
from headscape.io.terminal import say

SECTIONS = {
    "layers": "Model",
    "corpus": "Text",
    "context_length": "Schedule",
    "optimizer": "Optimizer",
    "checkpoint_every": "Checkpoints and validation",
    "precision": "Machine",
}
"""Sections of the help by their first field; the others belong to the section they stand in."""


def _fields() -> Fields:
    from headscape.gpt2.model_config import ModelConfig
    from headscape.training.config import TrainConfig, flat

    defaults = flat(TrainConfig())
    return Fields(
        classes=(ModelConfig, TrainConfig),
        defaults={name: defaults[name] for name in defaults if name != "preset"},
        label=TrainConfig.preset,
        sections=SECTIONS,
        flags={"encoding_fields": "--field"},
    )


@command(fields=_fields)
def train(
    context: typer.Context,
    *,
    out: Path,
    preset: str | None = None,
    config: Path | None = None,
    resume: bool = False,
) -> None:
    """Train a GPT-2 with any position encoding on any text.

    The run's folder contains its complete config, metrics, checkpoints and provenance. After
    Ctrl-C or a kill, `--resume` continues the run with the same result. Several processes:
    `torchrun --nproc-per-node 8 -m headscape.cli train ...`.

    Progress goes to stderr. The folder of the finished run goes to stdout.

    Examples:
        headscape train --encoding cable --out runs/cable
        headscape train --encoding rope:window=128,nope --out runs/mixed

    Args:
        context: The command line as it was parsed.
        out: Folder of the run.
        preset: nano (for two CPU cores), mini, tiny, small, medium, large, xl, paper-tiny-1024,
            paper-small-512, paper-small-1024, paper-medium-1024. Options below change its fields.
            [default: nano]
        config: A config.toml instead of a preset: one that a run wrote, to repeat it, or a preset
            and the fields that differ.
        resume: Continue the run in --out; with --preset or --config, start it if there is none.
    """
    from headscape.encodings.registry import parse_field
    from headscape.training import train as run

    settings = context.meta[FIELDS]
    if preset is not None and config is not None:
        raise InputError(f"--preset {preset} and --config {config}: give one of them.")
    if settings["encoding_fields"]:
        settings["encoding_fields"] = dict(map(parse_field, settings["encoding_fields"]))
    result = run(config or preset, out=out, resume=resume, **settings)
    # Under torchrun every process gets here.
    first = os.environ.get("RANK", "0") == "0"
    if not result.finished:
        if first:
            say(f"continue with: headscape train --resume --out {out}", err=True)
        raise typer.Exit(130)
    if first:
        folder = shlex.quote(str(result.folder))
        say(f"look at it: headscape view {folder}; score it: headscape evaluate {folder}", err=True)
        say(result.folder)
