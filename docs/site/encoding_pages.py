"""A page per encoding, generated: what its file and class say, pictures, cost and extrapolation."""

import inspect
import json
import re
from dataclasses import MISSING, fields
from pathlib import Path
from typing import get_args, get_type_hints

from sphinx.pycode import ModuleAnalyzer

from docs.site.pictures import draw_curves, draw_maps, shown
from headscape.encodings import ENCODINGS, WRAPPERS, Encoding, build
from headscape.encodings.base import SHARED
from headscape.encodings.catalogue import TESTED

WRAPPED = "kerple"
"""What a wrapper's page shows it around."""
ARXIV = re.compile(r"arXiv:([\d.]+\d)")
LINKED = r"[arXiv:\1](https://arxiv.org/abs/\1)"
CLAIMS = {
    "shift_invariant": "Moving all positions by a constant changes nothing.",
    "toeplitz": "The bias depends on the distance alone.",
    "pointwise": "A pair's score depends on no other pair.",
    "context_dependent": "The bias depends on the tokens.",
}
STICKS = """These are random scores, which use up the stick after a few hundred keys; the kernel
reads no farther. With scores that leave some of it at every key the ratio is {ratio:.2f} at 4,096
tokens."""


def write(folder: Path, docs: Path, panels: int) -> list[str]:
    """Write every page and its pictures, maps of `panels` heads; return the names of the pages."""
    folder.mkdir()
    costs = json.loads((docs / "data/costs.json").read_text())
    sticks = json.loads((docs / "data/variants.json").read_text())["ratios"]["sticks that last"]
    notes = {"stick-breaking": STICKS.format(ratio=sticks)}
    page_of_results = (docs / "results.md").read_text()
    results, later = extrapolation(page_of_results), growth(page_of_results)
    names = {name: name for name in ENCODINGS} | {name: f"{name}+{WRAPPED}" for name in WRAPPERS}
    for page, name in names.items():
        encoding = build(name, heads=12, head_dim=16, width=192, train_length=512)
        parts = [
            f"# {encoding.title}",
            f"`{name}`, {ARXIV.sub(LINKED, encoding.paper)}",
            f"```text\n{encoding.formula}\n```",
            source_notes(encoding),
            TESTED[page].sentence,
            pictures(encoding, page, folder, panels),
            conventions(type(encoding)),
            claims(encoding),
            cost("nope" if encoding.at_input else name, costs),
            *([notes[page]] if page in notes else []),
            extrapolates(encoding.title, results, later),
        ]
        (folder / f"{page}.md").write_text("\n\n".join(parts) + "\n")
    return list(names)


def by_file() -> dict[str, str]:
    """Return the page that a source file's name leads to: that of its first encoding."""
    pages: dict[str, str] = {}
    for name, kind in (ENCODINGS | WRAPPERS).items():
        pages.setdefault(f"{kind.__module__.rpartition('.')[2]}.py", name)
    return pages


def source_notes(encoding: Encoding) -> str:
    """Return the docstring of the encoding's file, which explains the formula, after its title."""
    module = inspect.getmodule(type(encoding))
    assert module is not None
    notes = inspect.cleandoc(module.__doc__ or "").partition("\n")[2]
    return f"{notes.strip()}\n\nSource: `{module.__name__.replace('.', '/')}.py`."


def pictures(encoding: Encoding, page: str, folder: Path, panels: int) -> str:
    """Draw the pictures and return their section."""
    found = shown(encoding)
    if found.flat:
        return "## Pictures\n\nAt initialisation position changes no score, so all maps are flat."
    draw_maps(found, folder / f"images/{page}-heads.png", panels)
    draw_curves(found, folder / f"images/{page}-curves.png")
    return f"""## Pictures

{found.note} Not trained; 12 heads, 128 tokens. Queries run down, keys across, and hidden keys are
blank.

![Maps of some heads](images/{page}-heads.png)

![Mean over tokens against distance, a line per head](images/{page}-curves.png)"""


def conventions(kind: type[Encoding]) -> str:
    """Return every field of the config: default, choices and docstring."""
    config = kind.config_type
    notes = {
        name: " ".join(lines).strip()
        for base in reversed(config.__mro__[:-1])
        for (owner, name), lines in ModuleAnalyzer.for_module(base.__module__)
        .find_attr_docs()
        .items()
        if owner == base.__name__
    }
    hints = get_type_hints(config)
    lines = ["## Conventions", ""]
    # The encoding's own fields come before those that every encoding has.
    for item in sorted(fields(config), key=lambda item: item.name in SHARED):
        choices = [f"`{one!r}`" for one in get_args(hints[item.name]) if isinstance(one, str)]
        default = "none" if item.default is MISSING else f"`{item.default!r}`"
        one_of = f" (one of {', '.join(choices)})" if choices else ""
        lines.append(f"- `{item.name}`, by default {default}{one_of}: {notes.get(item.name, '')}")
    return "\n".join(lines if fields(config) else [*lines, "This encoding has no options."])


def claims(encoding: Encoding) -> str:
    """Return the claims; the tests check that each holds, and that each denied one does not."""
    rows = [
        f"| {name.replace('_', '-')} | {'yes' if holds else 'no'} | {CLAIMS[name]} |"
        for name, holds in encoding.claims().items()
    ]
    return "\n".join(["## Claims", "", "| claim | holds | meaning |", "|---|---|---|", *rows])


def cost(name: str, costs: dict[str, dict[str, dict[str, float]]]) -> str:
    """Return the time of attention with this encoding over plain attention's."""
    found = costs["ratios"].get(name)
    if found is None:
        return "## Cost\n\nNot measured."
    lengths = list(found)
    cells = " | ".join(f"{found[length]:.2f}" for length in lengths)
    return f"""## Cost

Time of forward and backward over that of torch's `scaled_dot_product_attention` without position;
rotation, stream and bias included. {costs["machine"]}; made by `{costs["command"]}`.

| tokens | {" | ".join(lengths)} |
|---|{"---:|" * len(lengths)}
| ratio | {cells} |"""


def extrapolation(page: str) -> dict[str, dict[str, str]]:
    """Read the first table of docs/results.md: method, length, perplexity."""
    first = page.partition("<!-- second table -->")[0]
    rows = re.findall(r"^\| (?:length|\d+) \|.*\|$", first, re.MULTILINE)
    head, *body = [[cell.strip() for cell in row.strip("|").split("|")] for row in rows]
    found: dict[str, dict[str, str]] = {method: {} for method in head[1:]}
    for length, *cells in body:
        for method, cell in zip(head[1:], cells, strict=True):
            found[method].setdefault(length, cell)
    return found


def growth(page: str) -> dict[str, list[str]]:
    """Read the tables of growth in the second part of docs/results.md: the cells by method."""
    second = page.partition("<!-- second table -->")[2]
    rows = re.findall(r"^\| `(.+?)` \| (.*) \|$", second, re.MULTILINE)
    return {method: cells.split(" | ") for method, cells in rows}


def extrapolates(
    title: str, results: dict[str, dict[str, str]], later: dict[str, list[str]]
) -> str:
    """Return what the results say of the encoding past its training length."""
    parts = [*perplexities(title, results), *grown(title, later)]
    if not parts:
        parts = ["Not among the methods of [the results](../results.md)."]
    return "\n\n".join(["## Length extrapolation", *parts])


def grown(title: str, later: dict[str, list[str]]) -> list[str]:
    """Return the encoding's row of the results' second part."""
    if title not in later:
        return []
    return [
        f"""Perplexity of nano models trained at 512 tokens for fewer steps, with Muon, and what it
is multiplied by at longer lengths. [How, and what holds, degrades and breaks
mean](../results.md#windows-layers-without-position-temperatures).

| seeds | 512 | 2x | 4x | 8x | 16x | |
|---:|---:|---:|---:|---:|---:|---|
| {" | ".join(later[title])} |"""
    ]


def perplexities(title: str, results: dict[str, dict[str, str]]) -> list[str]:
    """Return the encoding's perplexities by length, wrapped forms included."""
    methods = {m: row for m, row in results.items() if title in (m, m.split("+")[0])}
    if not methods:
        return []
    lengths = list(next(iter(methods.values())))
    rows = [
        f"| {method} | {' | '.join(row[length] for length in lengths)} |"
        for method, row in methods.items()
    ]
    table = "\n".join(
        [f"| method | {' | '.join(lengths)} |", f"|---|{'---:|' * len(lengths)}", *rows]
    )
    return [
        f"""Perplexity of nano models trained at 512 tokens, by tested length; mean ± standard
deviation over seeds. [All methods, and how they were measured](../results.md).

{table}"""
    ]
