"""`headscape encodings`: the table of encodings, or one of them in full."""

import ast
import inspect
import textwrap
from dataclasses import fields
from typing import TYPE_CHECKING, Annotated, get_args, get_type_hints

import typer

from headscape.commands.parsing import Command, Plugin
from headscape.errors import InputError

if TYPE_CHECKING:
    from headscape.encodings import Encoding


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("encodings", cls=Command)(encodings)


def encodings(
    name: Annotated[
        str | None, typer.Argument(help="One encoding, such as alibi or dapev2+kerple.")
    ] = None,
    of: Annotated[
        str | None,
        typer.Option(help="Print what a model uses, layer by layer: a run, a folder, hf:FOLDER."),
    ] = None,
    plugin: Plugin = None,
) -> None:
    """Print every encoding: paper, formula, parameters, claims; or one with all its fields.

    Claims: S the bias does not change when all positions move by a constant, T it depends on the
    distance alone, P a pair's score depends on no other pair, C it depends on the tokens.
    """
    if of is not None:
        if name is not None:
            raise InputError(f"give an encoding ({name}) or --of a model, not both.")
        _layers(of)
    elif name is None:
        _table()
    else:
        _one(name)


def _table() -> None:
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    from headscape.encodings import encodings as rows

    table = Table(box=None, header_style="bold", pad_edge=False)
    for heading in ("name", "paper", "formula", "parameters", "claims"):
        table.add_column(
            heading,
            justify="right" if heading == "parameters" else "left",
            overflow="fold",
            no_wrap=heading in {"name", "claims"},
        )
    for row in rows():
        table.add_row(
            row.name,
            escape(row.paper),
            escape(row.formula),
            f"{row.parameters:,}",
            row.letters,
        )
    console = Console()
    console.print(table)
    console.print(
        "\nA is the scaled q.k; i, j the positions of query and key; h the head. Parameters per "
        "layer (learned: per model) of GPT-2 Small trained at 512.\nClaims: S shift-invariant, "
        "T Toeplitz, P pointwise, C context-dependent. dape and dapev2 wrap any additive "
        "encoding, nope or rope: dapev2+cable.\n`headscape encodings NAME` lists the fields.",
        highlight=False,
    )


def _layers(source: str) -> None:
    """Print the encoding and conventions of every layer, equal neighbours in one line."""
    import headscape
    from headscape.heads.recognised import recognised

    for line in recognised(headscape.load(source).spec):
        typer.echo(line)


def _one(name: str) -> None:
    from rich.console import Console

    from headscape.encodings import encoding_type

    encoding = _small(name)
    console = Console(highlight=False)
    console.print(f"[bold]{name}[/]  {encoding.paper}", soft_wrap=True)
    console.print(encoding.formula, markup=False, soft_wrap=True)
    console.print(f"{_parameters(encoding):,} parameters; claims: {_words(encoding)}\n")
    held = encoding.conventions()
    for part in encoding_type(name):
        if part is None:
            continue
        notes = _field_notes(part.config_type)
        hints = get_type_hints(part.config_type)
        for item in fields(part.config_type):
            options = [repr(one) for one in get_args(hints[item.name]) if isinstance(one, str)]
            choice = f"   (one of {', '.join(options)})" if options else ""
            console.print(f"  [bold]{item.name}[/] = {held[item.name]!r}{choice}", soft_wrap=True)
            console.print(
                textwrap.indent(notes.get(item.name, ""), " " * 6), markup=False, soft_wrap=True
            )
    if not held:
        console.print("  no fields")


def _small(name: str) -> "Encoding":
    """The encoding in one layer of GPT-2 Small, the paper's model."""
    from headscape.encodings import build

    return build(name, heads=12, head_dim=64, width=768, train_length=512)


def _parameters(encoding: "Encoding") -> int:
    return sum(parameter.numel() for parameter in encoding.parameters())


def _words(encoding: "Encoding") -> str:
    return ", ".join(
        claim.replace("_", "-") if held else f"not {claim.replace('_', '-')}"
        for claim, held in encoding.claims().items()
    )


def _field_notes(config: type) -> dict[str, str]:
    """The docstring under each field of a dataclass, which Python itself does not keep."""
    [body] = ast.parse(textwrap.dedent(inspect.getsource(config))).body
    assert isinstance(body, ast.ClassDef)
    notes = {}
    for field, note in zip(body.body, body.body[1:], strict=False):
        if (
            isinstance(field, ast.AnnAssign)
            and isinstance(field.target, ast.Name)
            and isinstance(note, ast.Expr)
            and isinstance(note.value, ast.Constant)
        ):
            notes[field.target.id] = str(note.value.value)
    return notes
