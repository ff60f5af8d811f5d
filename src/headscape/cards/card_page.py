"""A card as one HTML page: its lines as a table, its layers and its RoPE pairs as pictures.

The page has no script and asks the network for nothing. Colours follow the reader's light or dark
setting. Text of a config is escaped everywhere.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from html import escape
from pathlib import Path
from typing import Final

from headscape.cards.card import Card, LayerKind, ranges
from headscape.cards.card_text import as_json, markdown, rows
from headscape.encodings.alibi import SLOPES
from headscape.errors import InputError
from headscape.io.html_page import html_page
from headscape.io.output_file import KINDS, FileKind, check_output, write_output

COLOURS: Final = ("#3b6fb5", "#c8702a", "#3f8f5f", "#8b5fb0", "#b5495b", "#6b7785")
"""Of kinds of layers, in their order; all are readable on light and on dark."""
STYLE: Final = """
.hs-card{--ink:#1b1f24;--soft:#57606a;--rule:#d8dce0;--paper:#fff;--mark:#fff3d6;
color:var(--ink);background:var(--paper);font:15px/1.45 system-ui,sans-serif;padding:1rem}
@media(prefers-color-scheme:dark){.hs-card{--ink:#e6e9ec;--soft:#9aa4ae;--rule:#3a424a;
--paper:#14181c;--mark:#3d3216}}
.hs-card h1{font-size:1.35rem;margin:0 0 .25rem}
.hs-card h2{font-size:1.05rem;margin:1.25rem 0 .4rem}
.hs-card p{margin:.3rem 0;color:var(--soft)}
.hs-card table{border-collapse:collapse;width:100%;table-layout:fixed}
.hs-card th,.hs-card td{text-align:left;vertical-align:top;padding:.3rem .6rem .3rem 0;
border-bottom:1px solid var(--rule);overflow-wrap:anywhere;color:var(--ink);
background:transparent}
.hs-card th:first-child{width:8.5rem;font-weight:600}
.hs-card tr.differs>*{background:var(--mark)}
.hs-card .warn{font-weight:600}
.hs-card .pictures{display:grid;gap:0 2rem;
grid-template-columns:repeat(auto-fit,minmax(min(26rem,100%),1fr))}
.hs-card svg{width:100%;max-width:44rem;height:auto;display:block}
.hs-card svg text{fill:var(--ink);font:11px system-ui,sans-serif}
.hs-card svg .soft{fill:var(--soft)}
.hs-card svg .line{stroke:var(--rule)}
.hs-card .key{display:inline-block;width:.8em;height:.8em;border-radius:2px;margin-right:.35em}
.hs-card ul{list-style:none;padding:0;margin:.4rem 0}
"""
WIDTH: Final = 560
HEIGHT: Final = 230
LEFT: Final = 64
BOTTOM: Final = 34


def page(cards: Sequence[Card]) -> str:
    """Return cards as a whole document."""
    title = " and ".join(card.name for card in cards)
    return html_page(f"{title}: position", fragment(cards), style="body{margin:0}")


def fragment(cards: Sequence[Card]) -> str:
    """Return cards as a part of a page: what a notebook shows."""
    title = escape(" and ".join(card.name for card in cards))
    pictures = "".join(f"<section>{_pictures(card, named=len(cards) > 1)}</section>"
                       for card in cards)  # fmt: skip
    return (
        f'<main class="hs-card"><style>{STYLE}</style><h1>{title}</h1>'
        "<p>What position is in every layer, from the config alone. A narrow model of the same "
        "config with random weights was built and observed; no weights were read.</p>"
        f'{_table(cards)}<div class="pictures">{pictures}</div></main>'
    )


WRITERS: Final[dict[str, Callable[[Sequence[Card]], str]]] = {
    ".html": page,
    ".md": markdown,
    ".json": as_json,
}
"""What writes a card, by the ending of its file."""


def check_card_file(path: Path | str, reads: Iterable[Path | str] = ()) -> FileKind:
    """Return the kind of file that a card is written as; refuse a file that is no card."""
    target = Path(path)
    if target.suffix not in WRITERS:
        raise InputError(f"a card is written as .html, .md or .json, not {target.name}.")
    kind = _kind_of(target.suffix[1:])
    check_output(target, kind, reads=reads)
    return kind


def save(cards: Sequence[Card], path: Path | str) -> Path:
    """Write cards as .html, .md or .json and return the path; replace nothing but a card."""
    kind, target = check_card_file(path), Path(path)
    write_output(target, WRITERS[target.suffix](cards), kind)
    return target


def _kind_of(ending: str) -> FileKind:
    if ending != "md":
        return KINDS[ending]

    def recognises(path: Path) -> bool:
        with path.open("rb") as file:
            start = file.readline(1 << 12)
        return start.startswith(b"# ") and start.rstrip().endswith(b": position")

    return FileKind("a Markdown card of headscape", recognises)


def _table(cards: Sequence[Card]) -> str:
    out = ["<table>"]
    if len(cards) > 1:
        names = "".join(f'<th scope="col">{escape(card.name)}</th>' for card in cards)
        out.append(f'<tr><th scope="col">differs?</th>{names}</tr>')
    failing = any(not each.applied for card in cards for each in card.settings)
    for label, texts, differs in rows(cards):
        mark = ' class="differs"' if differs else ""
        sign = "≠ " if differs else ""
        warn = ' class="warn"' if failing and label in {"applied", "trusted to"} else ""
        cells = "".join(f"<td{warn}>{escape(text)}</td>" for text in texts)
        out.append(f'<tr{mark}><th scope="row">{sign}{escape(label)}</th>{cells}</tr>')
    return "".join([*out, "</table>"])


def _pictures(card: Card, *, named: bool) -> str:
    out = [f"<h2>{escape(card.name)}</h2>"] if named else []
    if not card.kinds:
        return "".join(out)
    out.append("<h2>Layers</h2>")
    out.append(_strip(card))
    legend = (
        f'<li><span class="key" style="background:{_colour(number)}"></span>'
        f"{escape(_kind_text(kind))}</li>"
        for number, kind in enumerate(card.kinds)
    )
    out.append(f"<ul>{''.join(legend)}</ul>")
    for number, kind in enumerate(card.kinds):
        if kind.pairs is not None:
            out.append(_pairs_chart(card, kind, _colour(number)))
        elif kind.encoding == "alibi":
            out.append(_slopes_chart(card, kind, _colour(number)))
    return "".join(out)


def _colour(number: int) -> str:
    return COLOURS[number % len(COLOURS)]


def _kind_text(kind: LayerKind) -> str:
    shaped = [
        f"{name} {value:,}"
        for name in ("window", "chunk")
        if isinstance(value := kind.conventions.get(name), int)
    ]
    base = kind.conventions.get("base")
    shaped += [f"base {base:,.0f}"] if kind.encoding == "rope" and base else []
    named = ", ".join([kind.title, *shaped])
    return f"{named}: layer{'s' if len(kind.layers) > 1 else ''} {ranges(kind.layers)}"


def _strip(card: Card) -> str:
    """One cell per layer, in rows of at most 40."""
    per_row = min(40, card.layers)
    size = min(WIDTH / per_row, 40)
    height = min(26.0, size)
    colour = {
        layer: _colour(number) for number, kind in enumerate(card.kinds) for layer in kind.layers
    }
    cells = []
    for layer in range(card.layers):
        x, y = layer % per_row * size, layer // per_row * (height + 15)
        cells.append(
            f'<rect x="{x:.1f}" y="{y:.1f}" width="{size - 2:.1f}" height="{height:.1f}" rx="2" '
            f'fill="{colour[layer]}"><title>layer {layer + 1}</title></rect>'
        )
        if layer in {0, card.layers - 1} or (layer + 1) % 5 == 0:
            cells.append(
                f'<text class="soft" x="{x + size / 2 - 1:.1f}" y="{y + height + 11:.1f}" '
                f'text-anchor="middle">{layer + 1}</text>'
            )
    rows_of_cells = -(-card.layers // per_row)
    total = rows_of_cells * (height + 15)
    return _svg(WIDTH, total, f"{card.layers} layers by kind", cells)


def _pairs_chart(card: Card, kind: LayerKind, colour: str) -> str:
    """Wavelength of every pair, with the lengths that matter as lines."""
    assert kind.pairs is not None
    window = kind.conventions.get("window")
    marks = [("stated context", card.stated)]
    marks += [("before scaling", each.original) for each in card.settings[:1]]
    marks += [("window", window)] if isinstance(window, int) else []
    series = [(kind.pairs.wavelengths, colour, "")]
    scaled = kind.pairs.plain != kind.pairs.wavelengths
    if scaled:
        series.insert(0, (kind.pairs.plain, colour, "plain"))
    words = " Hollow: without scaling." if scaled else ""
    caption = (
        f"Tokens per turn of each RoPE pair, layer{'s' if len(kind.layers) > 1 else ''} "
        f"{ranges(kind.layers)}. Pairs above a line complete no turn within it.{words}"
    )
    return f"<h2>Pairs</h2>{_chart(series, marks, caption, 'pair')}<p>{escape(caption)}</p>"


def _slopes_chart(card: Card, kind: LayerKind, colour: str) -> str:
    """Distance at which each head's ALiBi bias reaches -1."""
    rule = str(kind.conventions["slopes"])
    slopes = SLOPES[rule](card.heads)
    if kind.conventions.get("divisor") == "sqrt_head_dim":
        slopes = [each / card.head_dim**0.5 for each in slopes]
    series = [(tuple(1 / each for each in slopes), colour, "")]
    caption = "Tokens until a head's bias reaches -1: far-sighted heads are high."
    chart = _chart(series, [("stated context", card.stated)], caption, "head")
    return f"<h2>Slopes</h2>{chart}<p>{escape(caption)}</p>"


def _chart(
    series: Sequence[tuple[Sequence[float], str, str]],
    marks: Iterable[tuple[str, int | None]],
    caption: str,
    what: str,
) -> str:
    """Points over their number on a logarithmic scale, with named horizontal lines."""
    lines = [(name, value) for name, value in marks if value]
    finite = [x for values, *_ in series for x in values if math.isfinite(x)]
    every = [math.log10(x) for x in (*finite, *(value for _, value in lines))] or [0.0]
    low, high = math.floor(min(every)), math.ceil(max(every) + 0.05)
    count = max(len(values) for values, *_ in series)

    def across(number: float) -> float:
        return LEFT + (number + 0.5) * (WIDTH - LEFT - 8) / count

    def up(value: float) -> float:
        share = (math.log10(value) - low) / max(1, high - low)
        return HEIGHT - BOTTOM - share * (HEIGHT - BOTTOM - 12)

    parts = []
    for power in range(low, high + 1):
        y = up(10.0**power)
        parts.append(f'<line class="line" x1="{LEFT}" x2="{WIDTH}" y1="{y:.1f}" y2="{y:.1f}"/>')
        if power % max(1, (high - low) // 6) == 0:
            parts.append(
                f'<text class="soft" x="{LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">'
                f"{_power(power)}</text>"
            )
    for name, value in lines:
        y = up(value)
        parts.append(
            f'<line x1="{LEFT}" x2="{WIDTH}" y1="{y:.1f}" y2="{y:.1f}" stroke="currentColor" '
            f'stroke-dasharray="5 4" opacity=".7"/><text x="{LEFT + 4}" y="{y - 4:.1f}">'
            f"{name} {value:,}</text>"
        )
    for values, colour, style in series:
        for number, each in enumerate(values):
            if not math.isfinite(each):
                continue
            paint = f'fill="none" stroke="{colour}"' if style else f'fill="{colour}"'
            title = f"{what} {number + 1}: {each:,.0f} tokens"
            parts.append(
                f'<circle cx="{across(number):.1f}" cy="{up(each):.1f}" r="2.6" {paint}>'
                f"<title>{title}</title></circle>"
            )
    step = max(1, count // 8)
    parts += [
        f'<text class="soft" x="{across(number):.1f}" y="{HEIGHT - BOTTOM + 16}" '
        f'text-anchor="middle">{number + 1}</text>'
        for number in range(0, count, step)
    ]
    parts.append(
        f'<text class="soft" x="{WIDTH - 8}" y="{HEIGHT - 4}" text-anchor="end">{what}</text>'
    )
    return _svg(WIDTH, HEIGHT, caption, parts)


def _power(power: int) -> str:
    names = {0: "1", 1: "10", 2: "100", 3: "1k", 4: "10k", 5: "100k", 6: "1M", 7: "10M", 8: "100M"}
    return names.get(power, f"1e{power}")


def _svg(width: float, height: float, label: str, parts: Iterable[str]) -> str:
    return (
        f'<svg viewBox="0 0 {width:.0f} {height:.0f}" role="img" aria-label="{escape(label)}">'
        f"{''.join(parts)}</svg>"
    )
