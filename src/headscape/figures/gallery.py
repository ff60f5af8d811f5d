"""The page beside the figures: `index.html`, plain HTML with its style inside.

It works from disk, asks the network for nothing, runs no script, follows the reader's light or dark
setting and prints. Every path on it is relative to its folder, so the folder can be moved. The same
entries give the same bytes.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from html import escape
from pathlib import Path
from typing import Final
from urllib.parse import quote

from headscape.arrays.measures import Measures
from headscape.io.atomic import write_text


@dataclass(frozen=True, kw_only=True)
class Entry:
    """One figure on the page."""

    name: str
    """Used as the anchor, for example `figure-12-alibi`."""
    title: str
    """For example `Figure 12: ALiBi`."""
    image: str
    """The picture to show, relative to the page."""
    alt: str
    """What the picture shows, for those who cannot see it."""
    caption: str
    measures: Measures | None = None
    files: Mapping[str, str] = field(default_factory=dict)
    """Label to path relative to the page: PNG, SVG, PDF, measures, capture."""
    made: Mapping[str, str] = field(default_factory=dict)
    """How it was made: command, seed, steps, versions."""


def write_gallery(
    folder: Path, entries: Sequence[Entry], title: str, provenance: Mapping[str, str]
) -> Path:
    """Write `folder`/index.html and say where it is."""
    contents = "".join(
        f'<li><a href="#{escape(each.name)}">{escape(each.title)}</a></li>\n' for each in entries
    )
    text = (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        '<meta name="color-scheme" content="light dark">\n'
        f"<title>{escape(title)}</title>\n<style>\n{_STYLE}</style>\n</head>\n<body>\n"
        f"<header>\n<h1>{escape(title)}</h1>\n"
        f'<nav aria-label="Figures">\n<ol>\n{contents}</ol>\n</nav>\n</header>\n'
        f"<main>\n{''.join(_section(each) for each in entries)}</main>\n"
        f"<footer>\n<h2>How this page was made</h2>\n{_pairs(provenance)}</footer>\n"
        "</body>\n</html>\n"
    )
    path = folder / "index.html"
    write_text(path, text)
    return path


def _section(entry: Entry) -> str:
    links = " ".join(
        f'<a href="{_address(path)}">{escape(label)}</a>' for label, path in entry.files.items()
    )
    measures = "" if entry.measures is None else _table(entry.measures, entry.title)
    made = _pairs(entry.made)
    return (
        f'<section id="{escape(entry.name)}" aria-labelledby="{escape(entry.name)}-title">\n'
        f'<h2 id="{escape(entry.name)}-title">{escape(entry.title)}</h2>\n<figure>\n'
        f'<a href="{_address(entry.image)}"><img src="{_address(entry.image)}" '
        f'alt="{escape(entry.alt)}" loading="lazy"></a>\n'
        f"<figcaption>{escape(entry.caption)}</figcaption>\n</figure>\n"
        f'<p class="files">{links}</p>\n{measures}'
        f"<details>\n<summary>How it was made</summary>\n{made}</details>\n</section>\n"
    )


def _table(measures: Measures, title: str) -> str:
    names, rows = measures.rows()
    head = "".join(f'<th scope="col">{escape(name)}</th>' for name in names)
    body = "".join(
        f'<tr><th scope="row">{escape(row[0])}</th>'
        + "".join(f"<td>{escape(cell)}</td>" for cell in row[1:])
        + "</tr>\n"
        for row in rows
    )
    return (
        f'<details>\n<summary>Measures per head</summary>\n<div class="wide" tabindex="0" '
        f'role="region" aria-label="Measures of {escape(title)}">\n<table>\n'
        f"<thead><tr>{head}</tr></thead>\n<tbody>\n{body}</tbody>\n</table>\n</div>\n</details>\n"
    )


def _pairs(pairs: Mapping[str, str]) -> str:
    rows = "".join(
        f"<dt>{escape(name)}</dt><dd><code>{escape(value)}</code></dd>\n"
        for name, value in pairs.items()
    )
    return f"<dl>\n{rows}</dl>\n"


def _address(path: str) -> str:
    return escape(quote(path))


_STYLE: Final = """\
:root { --ground: #fbfbf9; --ink: #1b1f24; --quiet: #57606a; --line: #d8dce0; --link: #0b57a4;
  --card: #ffffff; }
@media (prefers-color-scheme: dark) {
  :root { --ground: #14171a; --ink: #e6e8ea; --quiet: #a3abb3; --line: #363c42; --link: #8ec5ff;
    --card: #1c2024; }
}
* { box-sizing: border-box; }
body { margin: 0 auto; max-width: 60rem; padding: 2rem 1.25rem 4rem; background: var(--ground);
  color: var(--ink); font: 1rem/1.55 system-ui, "Segoe UI", Roboto, "DejaVu Sans", sans-serif; }
h1 { font-size: 1.9rem; line-height: 1.2; margin: 0 0 1rem; }
h2 { font-size: 1.3rem; margin: 0 0 .75rem; }
a { color: var(--link); }
a:focus-visible, summary:focus-visible, .wide:focus-visible { outline: 3px solid var(--link);
  outline-offset: 2px; }
nav ol { list-style: none; padding: 0; margin: 0; display: flex; flex-wrap: wrap;
  gap: .4rem 1.2rem; }
section { background: var(--card); border: 1px solid var(--line); border-radius: .6rem;
  padding: 1.25rem; margin: 1.5rem 0; scroll-margin-top: 1rem; }
figure { margin: 0; }
figure img { display: block; width: 100%; height: auto; background: #fff; border-radius: .3rem; }
figcaption { margin: .9rem 0 .6rem; }
.files { display: flex; flex-wrap: wrap; gap: .3rem 1rem; margin: 0 0 .6rem; }
details { border-top: 1px solid var(--line); padding: .5rem 0; }
summary { cursor: pointer; color: var(--quiet); }
.wide { overflow-x: auto; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; font-size: .9rem; }
th, td { text-align: right; padding: .25rem .7rem; border-bottom: 1px solid var(--line);
  white-space: nowrap; }
thead th { white-space: normal; vertical-align: bottom; }
dl { display: grid; grid-template-columns: max-content 1fr; gap: .2rem 1rem; margin: .5rem 0; }
dt { color: var(--quiet); }
dd { margin: 0; min-width: 0; }
code { font: .88em/1.5 ui-monospace, "DejaVu Sans Mono", monospace; overflow-wrap: anywhere; }
footer { border-top: 1px solid var(--line); margin-top: 2rem; padding-top: 1rem; }
@media print { section { break-inside: avoid; border: 0; padding: 0; } nav { display: none; } }
"""
