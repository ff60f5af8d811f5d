"""`headscape encodings`: the table of encodings, one of them in full, or a schedule of layers."""

import textwrap
from itertools import groupby
from typing import TYPE_CHECKING, get_args, get_type_hints

import typer

from headscape.cli.command import command, docstrings
from headscape.cli.opening import model_options, open_models
from headscape.errors import InputError
from headscape.io.terminal import say

if TYPE_CHECKING:
    from headscape.encodings.registry import Entry


@command(fields=model_options)
def encodings(context: typer.Context, name: str | None = None, *, of: str | None = None) -> None:
    """List all encodings, one in full, or the layers of a schedule.

    The table has paper, formula, parameters and claims. Claims: S (shift-invariant), adding a
    constant to all positions changes no score. The others are about what position adds to q.k: T
    (Toeplitz), it depends on the distance alone; P (pointwise), it depends on no other pair; C
    (context-dependent), it depends on the tokens. Encodings of the input, learned and sinusoidal,
    add nothing to q.k, which is the same at every distance.

    Examples:
        headscape encodings alibi
        headscape encodings gemma3
        headscape encodings --of runs/cable

    Args:
        context: The command line as it was parsed.
        name: One encoding, such as alibi or dapev2+kerple, or a schedule of layers, such as
            rope:window=512*5,rope or cohere2.
        of: Print what a model uses, layer by layer: a run, a folder, hf:FOLDER.
    """
    from headscape.encodings.registry import is_schedule

    if of is not None:
        if name is not None:
            raise InputError(f"give an encoding ({name}) or --of a model, not both.")
        _layers(context, of)
    elif name is None:
        _table()
    elif is_schedule(name):
        _schedule(name)
    else:
        _one(name)


def _table() -> None:
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    from headscape.encodings import list_encodings as rows
    from headscape.encodings.registry import SHIPPED

    table = Table(box=None, header_style="bold", pad_edge=False)
    for heading in ("name", "paper", "formula", "parameters", "claims"):
        table.add_column(
            heading,
            justify="right" if heading == "parameters" else "left",
            overflow="fold",
            no_wrap=heading in {"name", "claims"},
        )
    for row in rows():
        texts = map(escape, (row.paper, row.formula))
        table.add_row(row.name, *texts, f"{row.parameters:,}", row.letters)
    console = Console()
    console.print(table)
    console.print(
        "\nA is the scaled q.k; i, j the positions of query and key; h the head. Parameters per "
        "layer (learned: per model) of GPT-2 Small trained at 512.\nClaims: S shift-invariant, "
        "T Toeplitz, P pointwise, C context-dependent. dape and dapev2 wrap any additive "
        "encoding, nope or rope: dapev2+cable.\n`headscape encodings NAME` lists the fields. "
        "Layers may differ: rope:window=128*3,nope, or by a model's name, "
        f"{', '.join(SHIPPED)}.\n`headscape encodings cohere2` lists the layers.",
        highlight=False,
    )


def _layers(context: typer.Context, source: str) -> None:
    """Print the encoding and conventions of every layer, equal neighbours in one line."""
    import headscape
    from headscape.measures.measure_model import recognised

    [opened] = open_models(context, [source])
    for line in recognised(headscape.load(opened).spec):
        say(line)


def _schedule(pattern: str) -> None:
    """Print the layers of a schedule's pattern, equal neighbours in one line."""
    from headscape.encodings import list_encodings as rows
    from headscape.encodings.registry import NOTE, SHIPPED, parse

    period = rows(pattern)
    shipped = SHIPPED.get(pattern.partition(":")[0])
    say(pattern if shipped is None else f"{pattern}  {shipped.title}")
    if shipped is not None:
        say(f"pattern: {_pattern(parse(pattern))}")
        say(NOTE)
    count = len(period)
    if count > 1:
        say(f"{count} layers, repeated: a model's layers must be a multiple of {count}.")
    say()
    last = 0
    for (name, fields), same in groupby(period, key=lambda row: (row.name, row.fields)):
        first, last = last + 1, last + len(list(same))
        span = f"layer {first}" if first == last else f"layers {first}-{last}"
        span = "every layer" if count == 1 else span
        listed = ", ".join(f"{key} = {value!r}" for key, value in fields.items())
        say(f"  {span:<12} {name:<10} {listed}".rstrip())
    names = ", ".join(
        f"`headscape encodings {name}`" for name in dict.fromkeys(row.name for row in period)
    )
    say(f"\nFields that are not listed have their defaults; see {names}.")


def _pattern(entries: "list[Entry]") -> str:
    """Return a schedule written out, equal neighbours as one entry."""
    parts = []
    for (name, fields), same in groupby(entries, key=lambda entry: (entry.name, entry.fields)):
        values = {key: str(x).lower() if isinstance(x, bool) else x for key, x in fields.items()}
        times = len(list(same))
        written = "".join(f":{key}={value}" for key, value in values.items())
        parts.append(f"{name}{written}" + (f"*{times}" if times > 1 else ""))
    return ",".join(parts)


def _one(name: str) -> None:
    from rich.console import Console

    from headscape.encodings import build, kinds
    from headscape.encodings.base import SHARED

    # In one layer of GPT-2 Small, the paper's model.
    encoding = build(name, heads=12, head_dim=64, width=768, train_length=512)
    parameters = sum(parameter.numel() for parameter in encoding.parameters())
    claims = ", ".join(
        claim.replace("_", "-") if claimed else f"not {claim.replace('_', '-')}"
        for claim, claimed in encoding.claims().items()
    )
    console = Console(highlight=False)
    console.print(f"[bold]{name}[/]  {encoding.paper}", soft_wrap=True)
    console.print(encoding.formula, markup=False, soft_wrap=True)
    console.print(f"{parameters:,} parameters; claims: {claims}\n", soft_wrap=True)
    values = encoding.conventions()
    config_types = [kind.config_type for kind in kinds(name).all]
    notes = {field: note for kind in config_types for field, note in docstrings(kind).items()}
    hints = {field: hint for kind in config_types for field, hint in get_type_hints(kind).items()}
    # The encoding's own fields come before those that every encoding has.
    for field in sorted(values, key=lambda field: field in SHARED):
        options = [repr(one) for one in get_args(hints[field]) if isinstance(one, str)]
        choice = f"   (one of {', '.join(options)})" if options else ""
        console.print(f"  [bold]{field}[/] = {values[field]!r}{choice}", soft_wrap=True)
        console.print(textwrap.indent(notes.get(field, ""), " " * 6), markup=False, soft_wrap=True)
