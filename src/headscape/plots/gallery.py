"""The page beside the figures: `index.html`, plain HTML with its style inside.

It works from disk, makes no network request, runs no script, follows the reader's light or dark
setting and prints. Every path on it is relative to its folder, so the folder can be moved. The same
entries give the same bytes. `entries.json` beside it lets a later run keep the figures of earlier
ones: `merge(read_entries(folder), new)`.

A caption is made from what was captured, so that a figure cannot say what its data does not. It
names the method, the quantity, the layer (counted from 1), the model, the sequence and the
conventions, and says whether the pattern depends on the context: as a number where it was measured,
otherwise as what the encoding's formula says.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from html import escape
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

from headscape.captures.capture_file import Capture
from headscape.captures.labels import encoding_name, shown_conventions
from headscape.errors import InputError
from headscape.io.html_page import html_page
from headscape.io.output_file import KINDS, check_output, write_output
from headscape.measures.context import ContextDependence
from headscape.measures.measures import Measures

PAGE: Final = "index.html"
ENTRIES: Final = "entries.json"

STYLE: Final = """\
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
figcaption { margin: .9rem 0 .6rem; overflow-wrap: anywhere; }
.viewer { font-weight: 600; }
.files { display: flex; flex-wrap: wrap; gap: .3rem 1rem; margin: 0 0 .6rem; }
details { border-top: 1px solid var(--line); padding: .5rem 0; }
summary { cursor: pointer; color: var(--quiet); }
.wide { overflow-x: auto; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; font-size: .9rem; }
th, td { text-align: right; padding: .25rem .7rem; border-bottom: 1px solid var(--line);
  white-space: nowrap; }
thead th { white-space: normal; vertical-align: bottom; }
dl { display: grid; grid-template-columns: minmax(6rem, max-content) 1fr; gap: .2rem 1rem;
  margin: .5rem 0; }
dt { color: var(--quiet); }
dd { margin: 0; min-width: 0; }
code { font: .88em/1.5 ui-monospace, "DejaVu Sans Mono", monospace; overflow-wrap: anywhere; }
footer { border-top: 1px solid var(--line); margin-top: 2rem; padding-top: 1rem; }
@media (max-width: 30rem) {
  body { padding: 1.25rem .75rem 3rem; }
  section { padding: .9rem; }
  dl { grid-template-columns: 1fr; }
  dd { margin-bottom: .5rem; }
}
@media print { section { break-inside: avoid; border: 0; padding: 0; } nav { display: none; } }
"""


@dataclass(frozen=True, kw_only=True)
class GalleryEntry:
    """One figure on the page."""

    name: str
    """Unique on the page and used as the anchor, for example `figure-12-alibi`."""
    title: str
    """For example `Figure 12: ALiBi`."""
    number: int | None = None
    """The figure's number in the paper; numbered figures come first, in order."""
    image: str
    """The picture to show, relative to the page."""
    alt: str
    """What the picture shows, for those who cannot see it."""
    caption: str
    measures: Measures | None = None
    files: Mapping[str, str] = field(default_factory=dict)
    """Label to path relative to the page: PNG, SVG, PDF, measures, capture."""
    viewer: str | None = None
    """Address of this figure in a viewer page, relative to the page; None for no link."""
    made: Mapping[str, str] = field(default_factory=dict)
    """How it was made: command, seed, steps, versions."""


def write_gallery(
    folder: Path,
    entries: Sequence[GalleryEntry],
    title: str,
    provenance: Mapping[str, str],
    about: str = "",
) -> Path:
    """Write the page and its entries into `folder` and return the page's path.

    `about` says below the title what the figures show.
    """
    stored = [
        asdict(replace(each, measures=None))
        | {"measures": each.measures and json.loads(each.measures.to_json())}
        for each in entries
    ]
    path = folder / PAGE
    check_gallery(folder)
    text = json.dumps(stored, indent=1, ensure_ascii=False) + "\n"
    write_output(folder / ENTRIES, text, KINDS["json"])
    write_output(path, _page(entries, title, provenance, about), KINDS["html"])
    return path


def check_gallery(folder: Path) -> None:
    """Refuse a folder whose index.html or entries.json is not a gallery's."""
    check_output(folder / ENTRIES, KINDS["json"])
    check_output(folder / PAGE, KINDS["html"])


def read_entries(folder: Path) -> list[GalleryEntry]:
    """Return the entries of the page in `folder` whose pictures exist; none without a page."""
    path = folder / ENTRIES
    if not path.is_file():
        return []
    try:
        entries = [
            GalleryEntry(
                **each | {"measures": measures and Measures.from_json(json.dumps(measures))}
            )
            for each in json.loads(path.read_text(encoding="utf-8"))
            for measures in [each["measures"]]
        ]
    except (ValueError, TypeError, KeyError) as error:
        raise InputError(f"{path} is damaged ({error}); delete it to start a new page.") from error
    return [each for each in entries if (folder / each.image).is_file()]


def merge(earlier: Sequence[GalleryEntry], new: Sequence[GalleryEntry]) -> list[GalleryEntry]:
    """Return all entries, a new one in place of an earlier one of the same name.

    Numbered figures come first, by number; the others follow in the order they were made.
    """
    by_name = {each.name: each for each in (*earlier, *new)}
    return sorted(by_name.values(), key=lambda each: (each.number is None, each.number or 0))


def _page(
    entries: Sequence[GalleryEntry], title: str, provenance: Mapping[str, str], about: str
) -> str:
    contents = "".join(
        f'<li><a href="#{escape(each.name)}">{escape(each.title)}</a></li>\n' for each in entries
    )
    body = (
        f"<header>\n<h1>{escape(title)}</h1>\n{_opening(entries, about)}"
        f'<nav aria-label="Figures">\n<ol>\n{contents}</ol>\n</nav>\n</header>\n'
        f"<main>\n{''.join(_section(each) for each in entries)}{_columns(entries)}</main>\n"
        f"<footer>\n<h2>How this page was made</h2>\n{_pairs(provenance)}</footer>\n"
    )
    return html_page(title, body, style=STYLE)


def _opening(entries: Sequence[GalleryEntry], about: str) -> str:
    """Return what the figures show, and the way into the viewer, where there is one."""
    said = f"<p>{escape(about)}</p>\n" if about else ""
    page = next((each.viewer.partition("#")[0] for each in entries if each.viewer), None)
    if page is not None:
        said += (
            f'<p><a class="viewer" href="{escape(page)}">Open all heads in the viewer</a>: zoom, '
            "read every value, compare two encodings.</p>\n"
        )
    return said


def _section(entry: GalleryEntry) -> str:
    links = "".join(
        f'<a href="{_address(path)}">{escape(label)}</a>\n' for label, path in entry.files.items()
    )
    viewer = (
        f'<p><a class="viewer" href="{escape(entry.viewer)}">Open in the viewer</a></p>\n'
        if entry.viewer
        else ""
    )
    measures = "" if entry.measures is None else _table(entry.measures, entry.title)
    return (
        f'<section id="{escape(entry.name)}" aria-labelledby="{escape(entry.name)}-title">\n'
        f'<h2 id="{escape(entry.name)}-title">{escape(entry.title)}</h2>\n<figure>\n'
        f'<a href="{_address(entry.image)}"><img src="{_address(entry.image)}" '
        f'alt="{escape(entry.alt)}" loading="lazy"></a>\n'
        f"<figcaption>{escape(entry.caption)}</figcaption>\n</figure>\n"
        f'{viewer}<p class="files">{links}</p>\n{measures}'
        f"<details>\n<summary>How it was made</summary>\n{_pairs(entry.made)}</details>\n"
        "</section>\n"
    )


def _table(measures: Measures, title: str) -> str:
    return (
        f'<details>\n<summary>Measures per head</summary>\n<div class="wide" tabindex="0" '
        f'role="region" aria-label="Measures of {escape(title)}">\n'
        f"{measures.to_html(first=1)}</div>\n"
        '<p><a href="#columns">What the columns mean</a></p>\n</details>\n'
    )


def _columns(entries: Sequence[GalleryEntry]) -> str:
    """Return a section that explains the columns of the tables above it."""
    columns = [one for each in entries if each.measures for one in each.measures.columns()]
    if not columns:
        return ""
    said = "".join(
        f"<dt>{escape(one.label)}</dt><dd>{escape(one.text)}</dd>\n"
        for one in {one.name: one for one in columns}.values()
    )
    return (
        '<section id="columns" aria-labelledby="columns-title">\n'
        '<h2 id="columns-title">What the columns mean</h2>\n'
        f"<p>Layers and heads count from 1.</p>\n<dl>\n{said}</dl>\n</section>\n"
    )


def _pairs(pairs: Mapping[str, str]) -> str:
    rows = "".join(
        f"<dt>{escape(name)}</dt><dd><code>{escape(value)}</code></dd>\n"
        for name, value in pairs.items()
    )
    return f"<dl>\n{rows}</dl>\n"


def _address(path: str) -> str:
    return escape(quote(path))


_QUANTITIES: Final[Mapping[str, str]] = {
    "content": "content scores (scaled q·k before any position)",
    "bias": "positional bias (final score minus scaled q·k)",
    "final": "final attention scores (pre-softmax)",
    "weights": "attention weights",
}


def caption(
    capture: Capture,
    layer: int,
    quantity: str,
    measures: Measures | None = None,
) -> str:
    """Return the caption of a figure of `quantity` in `layer`, counted from 0."""
    heads = "head" if len(capture.heads) == 1 else "heads"
    place = f"{_layer(capture, layer)} of {_model(capture)}"
    shown = f"{_QUANTITIES[quantity]} of {len(capture.heads)} {heads}"
    name = encoding_name(capture)
    parts = [f"{name}: {shown}, {place}."]
    about = capture.about(layer)
    if about["shows"] == "final" and quantity in {"bias", "final"}:
        parts.append(
            f"{about.get('title', name)} adds no bias: these are the final scores."
            if quantity == "final"
            else f"{about.get('title', name)} adds no bias: shown is what it changed in the scores."
        )
    if about["shows"] == quantity == "weights":
        parts.append(f"{about.get('title', name)} adds no bias: position acts on the weights.")
    parts.append(_sequence(capture))
    if capture.resolution is not None:
        parts.append(f"Each cell is the mean of its entries, {capture.resolution} cells a side.")
    if about["conventions"]:
        parts.append(f"Conventions: {_listed(about['conventions'])}.")
    parts.append(_context(capture, layer, quantity, _found(measures, layer)))
    return " ".join(parts)


def _layer(capture: Capture, layer: int) -> str:
    count, title = capture.model.get("layers"), capture.about(layer).get("title")
    which = "" if title is None else f", {title},"
    if count is None:
        return f"layer {layer + 1}{which}"
    return (
        f"final layer ({count} of {count}){which}"
        if layer + 1 == count
        else f"layer {layer + 1} of {count}{which}"
    )


def _model(capture: Capture) -> str:
    state = "trained" if capture.trained else "untrained"
    step = capture.provenance.get("step")
    if capture.trained and step is not None:
        state += f" for {step:,} steps"
    model = capture.model
    trained_at = model.get("train_length")
    length = f" at length {trained_at}" if capture.trained and trained_at else ""
    return f"the {model.get('preset', 'custom')} model ({state}{length})"


def _sequence(capture: Capture) -> str:
    known = [
        f"{name} {capture.sequence[name]}"
        for name in ("corpus", "document", "offset", "seed")
        if capture.sequence.get(name) is not None
    ]
    source = f" ({', '.join(known)})" if known else ""
    return f"One sequence of {capture.length:,} {capture.unit}{source}."


def _listed(conventions: Mapping[str, Any]) -> str:
    shown = shown_conventions(conventions)
    return ", ".join(f"{name} {value}" for name, value in shown.items())


def _found(measures: Measures | None, layer: int) -> ContextDependence | None:
    return None if measures is None else measures.context.get(layer)


def _context(capture: Capture, layer: int, quantity: str, found: ContextDependence | None) -> str:
    if found is None:
        if quantity != "bias":
            return "Scores of queries and keys vary with the input; how much was not measured."
        depends = capture.about(layer)["claims"].get("context_dependent")
        claim = "depends on" if depends else "does not depend on"
        return f"By its formula the bias {claim} the context; not measured here."
    what = {"bias": "bias", "weights": "attention"}.get(quantity, "score")
    over = f"of the {what}'s variance over {found.sequences} sequences"
    if found.overall == 0:
        return (
            f"Context-independent: the {what} is uniform across {capture.unit}; "
            f"the input explains exactly 0 {over}."
        )
    share, low, high = (f"{100 * each:.3g}%" for each in (found.overall, *found.interval))
    return (
        f"Context-dependent: the {what} varies across {capture.unit}; "
        f"the input explains {share} {over} (95% interval {low} to {high})."
    )
