"""A card's lines, as Markdown and as JSON."""

import json
import math
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import headscape
from headscape.cards.card import Card, LayerKind, Pairs, ranges
from headscape.io.table_text import markdown_text

Lines = dict[str, str]
"""What a card says, by label."""


def lines(card: Card) -> Lines:
    """Return what a card says, line by line, from the whole model to its kinds of layers."""
    found = {
        "model": card.architecture,
        "size": _size(card),
        "stated context": "none" if card.stated is None else f"{card.stated:,} tokens",
        "position": _position(card),
        "window": _shaping(card, "window", "tokens"),
        "chunk": _shaping(card, "chunk", "tokens"),
        "sink": _shaping(card, "sink"),
        "temperature": _temperature(card),
        "softcap": _shaping(card, "softcap"),
        "score scale": _scale(card),
        "rotation": _rotation(card),
        "slow pairs": _slow(card),
        "scaling": "; ".join(each.title for each in card.settings) or "none",
        "applied": _applied(card),
        "trusted to": _trusted(card),
    }
    values = [str(kind.conventions.get("values", "")) for kind in card.kinds]
    if any(values):
        found["values"] = _by_kind(card, values)
    if reach := _reach(card):
        found["reach"] = reach
    if card.notes:
        found["note"] = " ".join(card.notes)
    return found


def _size(card: Card) -> str:
    keys = "" if card.key_heads == card.heads else f" over {card.key_heads} key heads"
    return (
        f"{card.layers} layers, {card.heads} heads{keys} of {card.head_dim} dims, "
        f"width {card.width:,}"
    )


def _by_kind(card: Card, texts: Sequence[str]) -> str:
    """Join what kinds of layers say, with their layers where they differ."""
    groups: dict[str, list[int]] = {}
    for kind, text in zip(card.kinds, texts, strict=True):
        if text:
            groups.setdefault(text, []).extend(kind.layers)
    if len(groups) == 1 and sum(map(len, groups.values())) == card.layers:
        return next(iter(groups))
    return "; ".join(f"{text} in {_layers(sorted(each))}" for text, each in groups.items())


def _layers(layers: Sequence[int]) -> str:
    return f"layer{'s' if len(layers) > 1 else ''} {ranges(layers)}"


def _position(card: Card) -> str:
    return _by_kind(card, [kind.title for kind in card.kinds]) or "not read"


def _shaping(card: Card, name: str, unit: str = "") -> str:
    texts = []
    for kind in card.kinds:
        value = kind.conventions.get(name)
        if not kind.encoding or not value:
            texts.append("")
        elif value is True:
            texts.append("learned")
        else:
            texts.append(f"{value:,} {unit}".strip())
    return _by_kind(card, texts) or "none"


def _temperature(card: Card) -> str:
    texts = []
    for kind in card.kinds:
        name = kind.conventions.get("temperature", "none")
        if name == "none":
            texts.append("")
            continue
        rate, start = (kind.conventions.get(f"temperature_{each}") for each in ("rate", "start"))
        texts.append(f"{name}, rate {rate}, from {start:,} tokens")
    return _by_kind(card, texts) or "none"


def _scale(card: Card) -> str:
    texts = []
    for kind in card.kinds:
        scale = kind.conventions.get("scale")
        if scale == "head_dim":
            texts.append(f"1/sqrt({card.head_dim})")
        elif scale == "one":
            texts.append("1")
        else:
            texts.append("" if scale is None else f"{scale:.6g}")
    return _by_kind(card, texts) or "not read"


def _rotation(card: Card) -> str:
    return _by_kind(card, [_rotated(kind, card.head_dim) for kind in card.kinds]) or "none"


def _rotated(kind: LayerKind, head_dim: int) -> str:
    if kind.pairs is None:
        return ""
    parts = []
    if kind.encoding == "rope":
        parts = [f"pairs as {kind.conventions['pairing']}", f"base {kind.conventions['base']:,.0f}"]
    share = "all" if kind.rotated == head_dim else f"{kind.rotated} of"
    parts.append(f"{share} {head_dim} dims")
    if kind.pairs.factor != 1:
        parts.append(f"cos and sin times {kind.pairs.factor:.4g}")
    return ", ".join(parts)


def _slow(card: Card) -> str:
    return _by_kind(card, [_slow_of(card, kind) for kind in card.kinds]) or "none"


def _slow_of(card: Card, kind: LayerKind) -> str:
    """The pairs that never complete a turn within what a layer sees."""
    pairs, window = kind.pairs, kind.conventions.get("window")
    if pairs is None or card.stated is None:
        return ""
    if isinstance(window, int) and window < card.stated:
        return _never(pairs, window, "its window of ")
    text = _never(pairs, card.stated)
    original = next((each.original for each in card.settings if each.original), None)
    if pairs.plain != pairs.wavelengths and original:
        text += f", before scaling {_never(pairs, original, plain=True)}"
    return text


def _never(pairs: Pairs, length: int, of: str = "", *, plain: bool = False) -> str:
    slow = pairs.never_turn(length, plain=plain)
    which = f" ({ranges(slow)})" if slow else ""
    every = len(pairs.wavelengths)
    return f"{len(slow)} of {every}{which} complete no turn in {of}{length:,} tokens"


def _applied(card: Card) -> str:
    if not card.settings:
        return "nothing to apply"
    said = " ".join(each.reason for each in card.settings)
    effects = dict.fromkeys(_slower(kind.pairs) for kind in card.kinds if kind.pairs)
    shown = [each for each in effects if each]
    return f"{said} {'; '.join(shown)}." if shown else said


def _slower(pairs: Pairs) -> str:
    """How many pairs scaling made slower, and by how much at most."""
    grown = [new / old for new, old in zip(pairs.wavelengths, pairs.plain, strict=True)
             if math.isfinite(new)]  # fmt: skip
    slower = [each for each in grown if each > 1.001]
    if not slower:
        return ""
    return f"{len(slower)} of {len(grown)} pairs turn slower, by at most {max(slower):.3g}"


def _trusted(card: Card) -> str:
    length = card.trust.length
    return f"{'unknown' if length is None else f'{length:,} tokens'}. {card.trust.reason}"


def _reach(card: Card) -> str:
    """How far a token can look through all layers, if each of them has a window."""
    attending = [kind for kind in card.kinds if kind.encoding]
    windows = [kind.conventions.get("window") for kind in attending]
    sizes = [window for window in windows if isinstance(window, int)]
    if not windows or len(sizes) < len(windows):
        return ""
    reach = sum((size - 1) * len(kind.layers) for size, kind in zip(sizes, attending, strict=True))
    return f"{reach:,} tokens back through all windows, if every layer passes on what it saw"


def rows(cards: Sequence[Card]) -> list[tuple[str, list[str], bool]]:
    """Return label, the text of every card, and whether the texts differ."""
    every = [lines(card) for card in cards]
    labels = dict.fromkeys(label for each in every for label in each)
    found = []
    for label in labels:
        texts = [each.get(label, "") for each in every]
        found.append((label, texts, len(set(texts)) > 1))
    return found


def markdown(cards: Sequence[Card]) -> str:
    """Return cards as a Markdown table; of several, lines that differ are bold."""
    names = [markdown_text(card.name) for card in cards]
    out = [f"# {' and '.join(names)}: position", ""]
    out += ["|  | " + " | ".join(names) + " |", "|---" * (len(cards) + 1) + "|"]
    for label, texts, differs in rows(cards):
        shown = f"**{label}**" if differs else label
        cells = " | ".join(markdown_text(text) for text in texts)
        out.append(f"| {shown} | {cells} |")
    if len(cards) > 1:
        out += ["", "Lines in bold differ."]
    return "\n".join(out) + "\n"


def as_json(cards: Sequence[Card]) -> str:
    """Return cards as JSON: `about`, and per model its lines and every number behind them."""
    about = {"card": 1, "headscape": headscape.__version__}
    models = [{**_plain(asdict(card)), "lines": lines(card)} for card in cards]
    differing = [label for label, _, differs in rows(cards) if differs]
    whole: dict[str, Any] = {"about": about, "models": models}
    if len(cards) > 1:
        whole["differing"] = differing
    return json.dumps(whole, indent=1, ensure_ascii=False, allow_nan=False) + "\n"


def _plain(value: Any) -> Any:
    """Return a value that JSON can contain: an infinite wavelength is null."""
    if isinstance(value, dict):
        return {str(key): _plain(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(each) for each in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value
