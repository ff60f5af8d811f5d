"""What position is in every layer of a model, and the context it can be trusted to.

A narrow model of the same config is read as any published model is (models/transformers), so the
lines say what the code does and not what the config's keys are called.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path
from typing import Any, overload

import numpy as np

from headscape.cards.long_context import (
    Setting,
    Turning,
    far_scores,
    plain_scores,
    settings_of,
    unknown_scaling,
    unread_paths,
)
from headscape.cards.narrow_model import (
    PublishedConfig,
    head_dim_of,
    narrow_model,
    read_config,
)
from headscape.encodings import Shape, make
from headscape.encodings.registry import title
from headscape.encodings.rope import RoPEConfig
from headscape.errors import InputError
from headscape.models.model import LayerSpec
from headscape.models.transformers.layer_reading import UNKNOWN, trained_length
from headscape.models.transformers.model_folder import explained
from headscape.models.transformers.open_published import (
    import_transformers,
    quiet,
    wrap_published,
)
from headscape.models.transformers.published_model import body_of


@dataclass(frozen=True, kw_only=True)
class Pairs:
    """How fast the pairs of a RoPE layer turn."""

    wavelengths: tuple[float, ...]
    """Tokens per turn of each pair, slowest last; infinite for a pair that stands still."""
    plain: tuple[float, ...]
    """The same without scaling."""
    factor: float
    """Multiplier of cos and sin."""

    def never_turn(self, length: int, *, plain: bool = False) -> tuple[int, ...]:
        """Return the pairs, counted from 0, that complete no turn within `length` tokens."""
        waves = self.plain if plain else self.wavelengths
        return tuple(pair for pair, wave in enumerate(waves) if wave > length)


@dataclass(frozen=True, kw_only=True)
class LayerKind:
    """What one or more equal layers do with position."""

    layers: tuple[int, ...]
    """Counted from 0."""
    encoding: str
    """Name in the table of encodings, `unknown`, or "" for a layer without attention heads."""
    title: str
    """What the card calls it."""
    conventions: Mapping[str, object] = field(default_factory=dict)
    """The encoding's fields, and the score scale."""
    pairs: Pairs | None = None
    """Of a layer that rotates queries and keys."""
    rotated: int | None = None
    """Dims of a head that are rotated."""


@dataclass(frozen=True, kw_only=True)
class Trust:
    """The context length that a config gives reason to trust."""

    length: int | None
    """In tokens; None where the config states none."""
    reason: str


@dataclass(frozen=True, kw_only=True)
class Card:
    """What position is in every layer of a model, from its config alone.

    A notebook shows it as a page; `to_markdown`, `to_html`, `to_json` and `save` give it elsewhere.
    """

    name: str
    architecture: str
    """The class of transformers that would run."""
    heads: int
    key_heads: int
    head_dim: int
    width: int
    stated: int | None
    """The context length that the config states."""
    causal: bool
    kinds: tuple[LayerKind, ...]
    """Every kind of layer, in the order of the first of each."""
    settings: tuple[Setting, ...]
    """Long-context settings of the config."""
    trust: Trust
    notes: tuple[str, ...] = ()

    @property
    def layers(self) -> int:
        """The number of layers, those without attention heads included."""
        return sum(len(kind.layers) for kind in self.kinds)

    @property
    def cards(self) -> "tuple[Card, ...]":
        """The card itself, as the only one of a comparison."""
        return (self,)

    def to_markdown(self) -> str:
        """Return the card as Markdown."""
        from headscape.cards.card_text import markdown

        return markdown([self])

    def to_json(self) -> str:
        """Return the card as JSON."""
        from headscape.cards.card_text import as_json

        return as_json([self])

    def to_html(self) -> str:
        """Return the card as one page with pictures that opens from disk."""
        from headscape.cards.card_page import page

        return page([self])

    def save(self, path: Path | str) -> Path:
        """Write the card as .html, .md or .json and return the path."""
        from headscape.cards.card_page import save

        return save([self], path)

    def _repr_html_(self) -> str:
        from headscape.cards.card_page import fragment

        return fragment([self])


@dataclass(frozen=True)
class CardComparison:
    """Cards side by side; a line that differs is marked."""

    cards: tuple[Card, ...]

    def to_markdown(self) -> str:
        """Return the cards as one Markdown table."""
        from headscape.cards.card_text import markdown

        return markdown(self.cards)

    def to_json(self) -> str:
        """Return the cards as JSON."""
        from headscape.cards.card_text import as_json

        return as_json(self.cards)

    def to_html(self) -> str:
        """Return the cards as one page."""
        from headscape.cards.card_page import page

        return page(self.cards)

    def save(self, path: Path | str) -> Path:
        """Write the cards as .html, .md or .json and return the path."""
        from headscape.cards.card_page import save

        return save(self.cards, path)

    def _repr_html_(self) -> str:
        from headscape.cards.card_page import fragment

        return fragment(self.cards)


@overload
def card(source: object, /) -> Card: ...
@overload
def card(source: object, other: object, /, *more: object) -> CardComparison: ...
def card(source: object, /, *others: object) -> Card | CardComparison:
    """Return what position is in every layer of a model, from its config alone.

    No weights are read. A narrow model of the same config with random weights is built and
    observed, so a setting that the code ignores is found.

    Args:
        source: A folder, hf:ID of the Hugging Face Hub, a config.json, its content as a dict, a
            GGUF file, a transformers config or model, or what `load` returned.
        *others: More models; the cards are then shown side by side.

    Example:
        >>> import headscape as hs
        >>> config = {"model_type": "llama", "num_hidden_layers": 2, "hidden_size": 256,
        ...           "num_attention_heads": 4, "max_position_embeddings": 4096}
        >>> card = hs.card(config)
        >>> card.kinds[0].title, card.trust.length
        ('RoPE', 4096)
    """
    cards = tuple(_card(read_config(each)) for each in (source, *others))
    return CardComparison(cards) if others else cards[0]


def _card(config: PublishedConfig) -> Card:
    failure = "builds, but does not run"
    with (
        quiet(import_transformers()),
        explained(Path(config.name), failure, runs_ours=True),
    ):
        return _described(config)


def _described(config: PublishedConfig) -> Card:
    text = config.text()
    try:
        model = narrow_model(config)
    except InputError as error:
        raise unknown_scaling(config) or error from error
    stated = trained_length(text)
    reach = stated or 4096
    published = wrap_published(model, None)
    read, named = published.spec, {each: name for name, each in body_of(model).named_modules()}
    attention = [named[each] for each in published.attention]
    settings = settings_of(config, model, reach, attention)
    observed = far_scores(model, reach, attention)
    turnings = {layer: each.turning for layer, each in observed.items()}
    blocks = [each.block for each in observed.values()]
    applied = [each for each in settings if each.applied]
    plain = dict(turnings)
    if applied:
        bare = plain_scores(config, model, applied[0].path, reach, attention)
        plain = {layer: each.turning for layer, each in (bare or {}).items()} or plain
    head_dim = head_dim_of(text)
    kinds = _kinds(text, blocks, read.layers, head_dim, turnings, plain)
    notes = []
    unread = unread_paths(published, settings, config.raw)
    if unread:
        notes.append(f"transformers does not know {', '.join(unread)}.")
    if "text_config" in config.raw:
        notes.append("Only the text part of the model is described.")
    notes += _more_about(text)
    heads = int(text.num_attention_heads)
    return Card(
        name=config.name,
        architecture=type(model).__name__,
        heads=heads,
        key_heads=int(getattr(text, "num_key_value_heads", None) or heads),
        head_dim=head_dim,
        width=int(text.hidden_size),
        stated=stated,
        causal=read.causal,
        kinds=kinds,
        settings=tuple(settings),
        trust=_trust(stated, settings, kinds),
        notes=tuple(notes),
    )


def _more_about(text: Any) -> list[str]:
    """Return what else the card says: M-RoPE's sections, a sparse indexer."""
    found = []
    sections = (getattr(text, "rope_parameters", None) or {}).get("mrope_section")
    if sections:
        found.append(
            f"M-RoPE: {', '.join(map(str, sections))} pairs turn by a token's place in time, "
            f"height and width. In text the three are equal, and it is RoPE."
        )
    compressed = sorted({str(each) for each in _types(text) if "compressed" in str(each)})
    if compressed:
        found.append(
            f"Layers of {' and '.join(compressed).replace('_', ' ')} also read compressed keys, "
            f"which are no tokens: what they see of older text is not described."
        )
    chosen = getattr(text, "index_topk", None)
    if isinstance(chosen, int):
        found.append(f"A sparse indexer chooses the {chosen:,} keys that a query reads.")
    return found


def _kinds(
    text: Any,
    blocks: Sequence[int | None],
    specs: Sequence[LayerSpec],
    head_dim: int,
    turnings: Mapping[int, Turning | None],
    plain: Mapping[int, Turning | None],
) -> tuple[LayerKind, ...]:
    """Return the kinds of layers in the order of the first of each."""
    places = _places(blocks, len(specs), text)
    found: dict[int, LayerKind] = {}
    for order, (place, spec) in enumerate(zip(places, specs, strict=True)):
        turning = turnings.get(order) if spec.encoding in {"rope", UNKNOWN} else None
        pairs = _pairs(turning, plain.get(order)) or _own_pairs(spec, head_dim, text)
        conventions = {key: each for key, each in spec.conventions.items() if key != "key_heads"}
        found[place] = LayerKind(
            layers=(place,),
            encoding=spec.encoding,
            title="position not recognised" if spec.encoding == UNKNOWN else title(spec.encoding),
            conventions=conventions,
            pairs=pairs,
            rotated=None if pairs is None else 2 * len(pairs.wavelengths),
        )
    for place in set(range(int(text.num_hidden_layers))) - set(found):
        found[place] = LayerKind(layers=(place,), encoding="", title=_mixer(text, place))
    groups: dict[str, list[LayerKind]] = {}
    for place in sorted(found):
        kind = found[place]
        same = repr((kind.title, kind.encoding, sorted(kind.conventions.items()), kind.pairs))
        groups.setdefault(same, []).append(kind)
    return tuple(
        LayerKind(**{**vars(group[0]), "layers": tuple(each.layers[0] for each in group)})
        for group in groups.values()
    )


def _places(blocks: Sequence[int | None], attending: int, text: Any) -> Sequence[int]:
    """Return the place of every attention layer in the stack."""
    layers = int(text.num_hidden_layers)
    if attending == layers:
        return range(layers)
    known = [block for block in blocks if isinstance(block, int) and block < layers]
    if len(known) == attending == len(set(known)):
        return known
    types = list(_types(text))
    for kind in ("hybrid", "attention"):
        if types.count(kind) == attending:
            return [place for place, each in enumerate(types) if each == kind]
    raise InputError(
        f"{text.model_type} has {layers} layers, of which {attending} have attention, and does not "
        f"say which: a card cannot place them."
    )


def _mixer(text: Any, place: int) -> str:
    """Return what a layer without attention heads is called."""
    types = _types(text)
    return "no attention heads" if not types else str(types[place]).replace("_", " ")


def _types(text: Any) -> Sequence[str]:
    return getattr(text, "layer_types", None) or getattr(text, "layers_block_type", None) or ()


def _pairs(turning: Turning | None, plain: Turning | None) -> Pairs | None:
    if turning is None:
        return None
    return Pairs(
        wavelengths=_waves(turning.frequencies),
        plain=_waves((plain or turning).frequencies),
        factor=round(turning.factor, 6),
    )


def _own_pairs(spec: LayerSpec, head_dim: int, text: Any) -> Pairs | None:
    """Return the pairs of a layer that was read as RoPE but hands over no angles."""
    if spec.encoding != "rope" or spec.conventions.get("learned_frequencies"):
        return None
    names = RoPEConfig.__dataclass_fields__
    fields = {key: each for key, each in spec.conventions.items() if key in names}
    length = trained_length(text) or 1
    shape = Shape(heads=1, head_dim=head_dim, width=head_dim, train_length=length, causal=True)
    rope: Any = make("rope", shape, fields)
    plain: Any = make("rope", shape, {**fields, "scaling": "none", "attention_factor": None})
    return Pairs(
        wavelengths=_waves(rope.frequencies(length).numpy()),
        plain=_waves(plain.frequencies(length).numpy()),
        factor=rope.attention_factor(),
    )


def _waves(frequencies: np.ndarray) -> tuple[float, ...]:
    # Five digits: frequencies are read off cos and sin in float32.
    return tuple(
        math.inf if each < 1e-12 else float(f"{2 * math.pi / each:.5g}")
        for each in np.abs(frequencies)
    )


def _trust(stated: int | None, settings: Sequence[Setting], kinds: Sequence[LayerKind]) -> Trust:
    """Return the length that can be trusted, and why."""
    ignored = [each for each in settings if not each.applied]
    applied = [each for each in settings if each.applied]
    if ignored and not applied:
        length, why = _untrusted(stated, ignored[0])
        return Trust(length=length, reason=f"{ignored[0].reason} {why}")
    if applied:
        return _scaled(stated, applied[0])
    if stated is None:
        return Trust(length=None, reason="The config states no context length.")
    names = {kind.encoding for kind in kinds if kind.encoding}
    if "learned" in names:
        why = "its table of positions ends there"
    elif names == {"alibi"}:
        why = "the config states it; ALiBi is defined beyond, and nothing says it was trained there"
    elif names <= {"nope", ""}:
        why = "the config states it, and no layer encodes a position that could run out"
    elif names == {"t5"}:
        why = "the config states it; its buckets put all far distances into one"
    else:
        why = "the config states it, and no scaling is configured for longer texts"
    return Trust(length=stated, reason=_sentence(why))


def _untrusted(stated: int | None, setting: Setting) -> tuple[int | None, str]:
    if setting.original is not None:
        length = setting.original if stated is None else min(stated, setting.original)
        return (
            length,
            f"The setting itself names {setting.original:,} tokens as the trained length.",
        )
    if stated is None:
        return None, "The config states no context length."
    if setting.factor:
        return int(stated / setting.factor), (
            f"The stated {stated:,} tokens may be {setting.factor:g} times the trained length."
        )
    return stated, "The config states this length."


def _scaled(stated: int | None, setting: Setting) -> Trust:
    """Return what an applied scaling gives reason to trust."""
    reached = None
    if setting.factor is not None and setting.original is not None:
        reached = int(setting.factor * setting.original)
    if setting.kind in {"yarn", "linear"} and reached is not None:
        why = f"{setting.title} is applied"
        if stated is not None and stated > reached:
            why += f", and the config states {stated:,}, which it does not reach"
        elif stated is not None and stated < reached:
            why += f"; the config states {stated:,}, where servers may stop"
        return Trust(length=reached, reason=_sentence(why))
    if setting.kind == "dynamic" and stated is not None:
        why = (
            "the config states it; beyond, dynamic scaling changes the frequencies with the length"
        )
        return Trust(length=stated, reason=_sentence(why))
    if stated is None:
        return Trust(length=reached, reason=_sentence(f"{setting.title} is applied"))
    return Trust(
        length=stated, reason=_sentence(f"the config states it, and {setting.title} is applied")
    )


def _sentence(text: str) -> str:
    return text[0].upper() + text[1:] + "."


def ranges(layers: Sequence[int]) -> str:
    """Return layers counted from 1, neighbours joined: 1-3, 5."""
    runs = groupby(enumerate(layers), key=lambda each: each[1] - each[0])
    parts = []
    for _, run in runs:
        members = [layer + 1 for _, layer in run]
        parts.append(str(members[0]) if len(members) == 1 else f"{members[0]}-{members[-1]}")
    return ", ".join(parts)
