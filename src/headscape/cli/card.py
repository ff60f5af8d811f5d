"""`headscape card`: what position is in every layer of a model, from its config alone."""

import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from headscape.cli.command import command
from headscape.io.terminal import say

if TYPE_CHECKING:
    from headscape.cards.card import Card


@command()
def card(
    sources: Annotated[list[str], typer.Argument(metavar="MODEL...")],
    *,
    out: Path | None = None,
) -> None:
    """Say what position is in every layer, without the weights.

    Encoding, windows, sinks, temperatures, RoPE pairs that complete no turn, and whether the code
    that would run applies the long-context scaling of the config: a narrow model of the same config
    with random weights is built and observed.

    Several models are shown side by side, with the lines that differ marked.

    Examples:
        headscape card hf:Qwen/Qwen3-0.6B
        headscape card config.json longer/config.json --out card.html

    Args:
        sources: Folders with a config.json, files with its content, GGUF files, hf:smollm2 after
            `headscape fetch smollm2`, or hf:OWNER/NAME on the Hugging Face Hub, of which
            config.json alone is downloaded.
        out: File to write: .html (a page with pictures), .md or .json. [default: print the lines]
    """
    import headscape as hs
    from headscape.cards.card_page import check_card_file

    if out is not None:
        check_card_file(out, reads=[each.removeprefix("hf:") for each in sources])
    first, *others = sources
    found = hs.card(first, *others) if others else hs.card(first)
    if out is not None:
        path = found.save(out)
        advice = ["open it in a browser"] if path.suffix == ".html" else []
        # A config file or a folder without weights is no model.
        if first.startswith("hf:") and len(found.cards) == 1:
            advice.append(f"with its weights: headscape atlas {shlex.quote(first)} --out atlas")
        if advice:
            say("; ".join(advice), err=True)
        say(path)
    else:
        _print(found.cards)


def _print(cards: "Sequence[Card]") -> None:
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    from headscape.cards.card_text import rows

    table = Table(box=None, header_style="bold", pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column("")
    for each in cards:
        table.add_column(escape(each.name), overflow="fold", ratio=1)
    for label, texts, differs in rows(cards):
        table.add_row(f"{'* ' if differs else ''}{label}", *map(escape, texts))
    console = Console()
    console.print(table)
    if len(cards) > 1:
        console.print("\n* differs")
