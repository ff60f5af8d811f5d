"""`headscape doctor`: what this machine has, and which attention path each encoding takes."""

import typer

from headscape.cli.command import command
from headscape.errors import InputError

MAX_LENGTH = 16_384
"""Longest trial sequence; some encodings are tried with a dense bias."""


@command()
def doctor(*, length: int = 128) -> None:
    """Print which attention path each encoding takes here, and why.

    Examples:
        headscape doctor

    Args:
        length: Tokens of the trial sequence.
    """
    import platform

    import torch
    from rich.console import Console
    from rich.table import Table

    from headscape.encodings import ENCODINGS
    from headscape.kernels import attend
    from headscape.kernels.native import adapter, ops

    if not 2 <= length <= MAX_LENGTH:
        raise InputError(f"--length must be from 2 to {MAX_LENGTH}, got {length}.")
    console = Console(highlight=False, soft_wrap=True)
    console.print(f"Python {platform.python_version()}, torch {torch.__version__}")
    console.print(f"{platform.machine()}, {torch.get_num_threads()} threads")
    console.print(f"GPU: {torch.cuda.get_device_name() if torch.cuda.is_available() else 'none'}")
    console.print(f"attention paths: {', '.join(map(_path, attend.KERNELS))}")
    missing = adapter.available()
    error = 0.0
    if missing is None:
        console.print(f"native kernel: {ops.instructions()}, {ops.library_path()}")
        error = adapter.largest_error()
        agrees = "agrees with" if error <= adapter.TOLERANCE else "DIFFERS FROM"
        console.print(f"self-check: {agrees} the reference, largest relative error {error:.0e}")
    else:
        console.print(f"native kernel: no, {missing}")
    table = Table(box=None, header_style="bold", pad_edge=False)
    for heading in ("encoding", "training", "decoding", "why no earlier path (training)"):
        table.add_column(heading)
    for name in [*ENCODINGS, "dape+kerple", "dapev2+kerple", "dapev2+cable"]:
        table.add_row(name, *_choices(name, length))
    console.print(table)
    if error > adapter.TOLERANCE:
        raise typer.Exit(1)


def _path(name: str) -> str:
    """Return the name of a path and when `auto` considers it."""
    from headscape.kernels.attend import KERNELS

    auto = KERNELS[name].auto
    return name if auto == "anywhere" else f"{name} ({'by name' if auto == 'never' else auto})"


def _choices(name: str, length: int) -> tuple[str, str, str]:
    import torch

    from headscape.call.definition import AttentionCall
    from headscape.gpt2 import GPT2, Cache, preset
    from headscape.kernels.attend import KERNELS, Choice, choose

    model = GPT2(preset("nano", layers=1, vocabulary=8, train_length=length, encoding=name))
    tokens = torch.zeros(1, length, dtype=torch.long)
    taken: list[Choice] = []

    def watch(_: int, inputs: AttentionCall) -> None:
        taken.append(choose(inputs))

    model.hidden(tokens, watch=watch)
    with torch.no_grad():
        cache = Cache()
        model.hidden(tokens[:, :-1], cache=cache)
        model.hidden(tokens[:, -1:], cache=cache, watch=watch)
    reasons = "; ".join(
        f"{path}: {why}" for path, why in taken[0].passed_over.items() if KERNELS[path].learns
    )
    return taken[0].path, taken[1].path, reasons
