"""What long-context scaling a config asks for, and whether the code that would run applies it.

A narrow model runs twice with the same weights, once from the config as it is and once from the
config without the setting, at positions up to the stated context. If the scores of no layer
change, the setting has no effect, whatever the reason: a misspelt key, a type that a second key
overrides, a class that does not read it.
"""

import copy
import inspect
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import torch
from jaxtyping import Float64
from torch import Tensor

from headscape.call.definition import shared
from headscape.cards.narrow_model import VOCABULARY, PublishedConfig, narrow_model
from headscape.errors import InputError, unknown
from headscape.models.loaded import eval_mode
from headscape.models.transformers.attention_watch import AttentionWatch
from headscape.models.transformers.declared import unread_keys
from headscape.models.transformers.layer_reading import rotates
from headscape.models.transformers.observed_call import ObservedCall
from headscape.models.transformers.published_model import PublishedModel, body_of

TITLES: Final = {
    "linear": "linear scaling",
    "dynamic": "dynamic NTK",
    "ntk": "NTK",
    "yarn": "YaRN",
    "llama3": "Llama 3 scaling",
    "longrope": "LongRoPE",
    "su": "LongRoPE",
    "proportional": "proportional scaling",
}
"""Scalings by the names that configs use."""
NAME: Final = re.compile(
    r"rope|yarn|ntk|rotary|context.?ext|long.?context|scal+ing$", re.IGNORECASE
)
"""Names of entries that may be a long-context setting."""
FACTOR: Final = re.compile(r"(rope|yarn|ntk|rotary)\w*(factor|scal\w*|type)$", re.IGNORECASE)
"""Names of entries that are one by themselves, without an object around them."""
UNSCALED: Final = (None, "default", "mrope")
"""Kinds of RoPE parameters that stretch nothing: M-RoPE has three position ids per token."""
ORIGINAL: Final = "original_max_position_embeddings"
SAME: Final = 1e-5
"""Largest difference of scores, relative to the largest score, that is rounding."""


@dataclass(frozen=True, kw_only=True)
class Setting:
    """An entry of a config that asks for longer contexts."""

    path: tuple[str, ...]
    """Its keys in config.json."""
    kind: str | None
    """yarn, linear ...; None where it names none."""
    factor: float | None
    original: int | None
    """The context length before scaling, where it says so."""
    applied: bool
    """Whether scores change with it."""
    reason: str
    """What the check found, in a sentence."""

    @property
    def title(self) -> str:
        """The setting in words: YaRN x4 over 32,768 tokens."""
        kind = TITLES.get(self.kind or "", self.kind or "a scaling without a type")
        times = "" if self.factor is None else f" x{self.factor:g}"
        over = "" if self.original is None else f" over {self.original:,} tokens"
        return kind + times + over


@dataclass(frozen=True, kw_only=True, eq=False)
class Turning:
    """How fast the pairs of a layer turn, and what multiplies cos and sin."""

    frequencies: Float64[np.ndarray, " m"]
    """Radians per token of each pair."""
    factor: float


@dataclass(frozen=True, kw_only=True, eq=False)
class LayerScores:
    """Scores of one layer at far positions, and its rotation if it hands one over."""

    scores: Tensor
    turning: Turning | None
    block: int | None
    """Its place in the stack, blocks without attention counted, where the module knows it."""


def settings_of(
    config: PublishedConfig, model: Any, longest: int, attention: Sequence[str]
) -> list[Setting]:
    """Return every long-context setting of a config with the verdict on the code.

    Args:
        config: The config as it is written.
        model: Its narrow model.
        longest: The context length up to which positions are compared.
        attention: The names of the attention modules that were read, by layer.
    """
    with_it = far_scores(model, longest, attention)
    return [
        _judged(config, model, path, value, with_it, longest, attention)
        for path, value in _candidates(config.raw)
    ]


def unknown_scaling(config: PublishedConfig) -> InputError | None:
    """Return the error for a rope_type that transformers does not know, or None."""
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    known = (*filter(None, UNSCALED), *ROPE_INIT_FUNCTIONS)
    for path, value in _candidates(config.raw):
        kind = _kind(value) if isinstance(value, Mapping) else None
        if kind is not None and kind not in known:
            advice = str(unknown("rope_type", kind, known))
            return InputError(f"{config.name} asks in {'.'.join(path)} for an {advice}")
    return None


def unread_paths(
    model: PublishedModel, settings: Sequence[Setting], raw: Mapping[str, Any]
) -> list[str]:
    """Return the keys inside of settings that nothing reads, with their paths.

    Args:
        model: The narrow model, as it was read.
        settings: The long-context settings of its config.
        raw: The config as it is written.
    """
    found = []
    for setting in settings:
        inner: Any = raw
        for key in setting.path:
            inner = inner[key]
        if isinstance(inner, Mapping):
            plain = {key: each for key, each in inner.items() if not isinstance(each, Mapping)}
            found += [".".join((*setting.path, key)) for key in unread_keys(model, plain)]
    return found


def far_scores(model: Any, longest: int, attention: Sequence[str]) -> dict[int, LayerScores]:
    """Return every attention layer's scores at 24 positions between 0 and `longest`, by layer."""
    body = body_of(model)
    modules = [body.get_submodule(name) for name in attention]
    positions = _positions(longest)
    found: dict[int, LayerScores] = {}

    def on_call(layer: int, call: ObservedCall) -> None:
        scores = call.scale * call.q @ shared(call.k, call.heads).mT
        if call.bias is not None:
            scores = scores + call.bias
        block = getattr(call.module, "layer_idx", None)
        found[layer] = LayerScores(scores=scores, turning=_turning(call), block=block)

    at = torch.Generator().manual_seed(1)
    tokens = torch.randint(3, VOCABULARY, (1, len(positions)), generator=at)
    known = inspect.signature(body.forward).parameters
    if "input_ids" not in known:
        return {}
    more: dict[str, Any] = {"use_cache": False} if "use_cache" in known else {}
    if "position_ids" in known:
        more["position_ids"] = positions[None]
    with torch.no_grad(), eval_mode(model), AttentionWatch(body, on_call, modules=modules):
        body(tokens, **more)
    return found


def _positions(longest: int) -> Tensor:
    """0, 1, 2 and further positions, each a fixed factor beyond the one before."""
    steps = torch.logspace(0, math.log10(max(longest - 1, 23)), 23, dtype=torch.float64)
    every = [0]
    for step in steps.round().long().tolist():
        every.append(max(int(step), every[-1] + 1))
    return torch.tensor(every)


def _turning(call: ObservedCall) -> Turning | None:
    if call.rotation is None or not isinstance(call.rotation[0], Tensor) or not rotates(call):
        return None
    cos, sin = (part.double().flatten(0, -3)[0] for part in call.rotation)
    width = cos.shape[-1]
    pairs = slice(None)
    if width % 2 == 0 and torch.equal(cos[:, : width // 2], cos[:, width // 2 :]):
        pairs = slice(width // 2)
    elif width % 2 == 0 and torch.equal(cos[:, ::2], cos[:, 1::2]):
        pairs = slice(0, None, 2)
    # Position 1 is the second of `_positions`, and no pair turns more than half a turn there.
    cos, sin = cos[1, pairs], sin[1, pairs]
    factor = float(torch.hypot(cos, sin)[0])
    return Turning(frequencies=torch.atan2(sin, cos).numpy(), factor=factor)


def _candidates(
    raw: Mapping[str, Any], path: tuple[str, ...] = ()
) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Yield entries that look like a long-context setting, with their keys."""
    for key, value in raw.items():
        here = (*path, key)
        if not isinstance(key, str) or key.endswith(("vision_config", "audio_config")):
            continue
        if isinstance(value, Mapping):
            if _asks(key, value):
                yield here, value
            elif not NAME.search(key):
                yield from _candidates(value, here)
        elif FACTOR.fullmatch(key) and not isinstance(value, bool) and _stretches(value):
            yield here, value


def _stretches(value: object) -> bool:
    if isinstance(value, int | float):
        return value > 1
    return isinstance(value, str) and value.lower() in TITLES


def _asks(key: str, value: Mapping[str, Any]) -> bool:
    """Whether an object asks for longer contexts: it names a scaling, or a factor above 1."""
    inner = [value, *(each for each in value.values() if isinstance(each, Mapping))]
    named = any(_kind(each) not in UNSCALED for each in inner)
    grown = any(
        isinstance(each.get("factor"), int | float) and each["factor"] > 1 for each in inner
    )
    return (named or grown) if NAME.search(key) else _kind(value) in TITLES


def _kind(value: Mapping[str, Any]) -> str | None:
    """The scaling that an object names; where two keys disagree, the one that is no default."""
    named = [value.get(key) for key in ("rope_type", "type", "scaling_type", "name", "method")]
    texts = [each for each in named if isinstance(each, str)]
    return next((each for each in texts if each != "default"), texts[0] if texts else None)


def _number(value: object, key: str) -> float | None:
    """A number of a setting, at the top of it or in the part of one kind of layer."""
    if not isinstance(value, Mapping):
        return None
    for each in (value, *(inner for inner in value.values() if isinstance(inner, Mapping))):
        found = each.get(key)
        if isinstance(found, int | float) and not isinstance(found, bool):
            return float(found)
    return None


def _judged(
    config: PublishedConfig,
    model: Any,
    path: tuple[str, ...],
    value: object,
    with_it: dict[int, LayerScores],
    longest: int,
    attention: Sequence[str],
) -> Setting:
    parts = [value] if isinstance(value, Mapping) else []
    parts += [each for each in parts[0].values() if isinstance(each, Mapping)] if parts else []
    kinds = [_kind(each) for each in parts]
    kind = next((each for each in kinds if each not in UNSCALED), None)
    factor = _number(value, "factor")
    if not parts:
        kind, factor = (value, None) if isinstance(value, str) else (None, float(value))  # type: ignore[arg-type]
    original = _number(value, ORIGINAL)
    if original is None and kind in {"longrope", "su"}:
        # Phi-3's configs state it beside the factors of each pair, which stand for one factor.
        original = _number(config.raw, ORIGINAL)
        stated = _number(config.raw, "max_position_embeddings")
        factor = stated / original if factor is None and stated and original else factor
    changed = _changed_layers(config, model, path, with_it, longest, attention)
    applied = bool(changed)
    architecture = type(model).__name__
    entry = ".".join(path)
    if applied:
        which = "every layer" if len(changed) == len(with_it) else f"{len(changed)} layers"
        reason = f"{architecture} applies {entry}: without it, {which} would score differently."
    else:
        reason = f"{architecture} does not apply {entry}: {_why(config, path, value, kind)}."
    return Setting(
        path=path, kind=kind, factor=factor, applied=applied, reason=reason,
        original=None if original is None else int(original),
    )  # fmt: skip


def _changed_layers(
    config: PublishedConfig,
    model: Any,
    path: tuple[str, ...],
    with_it: dict[int, LayerScores],
    longest: int,
    attention: Sequence[str],
) -> list[int]:
    """Return the layers whose scores differ without an entry of the config."""
    without = plain_scores(config, model, path, longest, attention)
    if without is None:
        return list(with_it)
    changed = [
        layer for layer, each in with_it.items() if _differs(each.scores, without[layer].scores)
    ]
    turned = [layer for layer in changed if _turns_differ(with_it[layer], without[layer])]
    # Scores also change because an earlier layer's did; where angles are known, they decide.
    return turned if any(each.turning for each in with_it.values()) else changed


def plain_scores(
    config: PublishedConfig,
    model: Any,
    path: tuple[str, ...],
    longest: int,
    attention: Sequence[str],
) -> dict[int, LayerScores] | None:
    """Return `far_scores` of the same weights without an entry; None if nothing is built then."""
    try:
        other = narrow_model(_plain(config, path))
    except InputError:
        return None
    weights = model.state_dict()
    if {name: each.shape for name, each in other.state_dict().items()} != {
        name: each.shape for name, each in weights.items()
    }:
        return None
    other.load_state_dict(weights)
    return far_scores(other, longest, attention)


def _plain(config: PublishedConfig, path: tuple[str, ...]) -> PublishedConfig:
    """Return a config without a setting, but with the base and rotary share that are part of it.

    Left out, rope_scaling would be the default of the class, which may be a scaling (GPT-OSS).
    """
    if path[-1] not in {"rope_parameters", "rope_scaling"}:
        return config.without(path)
    raw = copy.deepcopy(dict(config.raw))
    outer: Any = raw
    for key in path[:-1]:
        outer = outer[key]
    value = outer[path[-1]]
    outer[path[-1]] = _unscaled(value) if isinstance(value, Mapping) else {"rope_type": "default"}
    return PublishedConfig(name=config.name, raw=raw)


def _unscaled(value: Mapping[str, Any]) -> dict[str, Any]:
    """Return what of RoPE parameters is no scaling: base, rotary share and sections."""
    parts = {key: _unscaled(each) for key, each in value.items() if isinstance(each, Mapping)}
    same: tuple[str, ...] = (
        "rope_theta",
        "partial_rotary_factor",
        "mrope_section",
        "mrope_interleaved",
    )
    if "llama_4_scaling_beta" in value:  # a temperature, which needs the length where it begins
        same = (*same, "llama_4_scaling_beta", ORIGINAL)
    kept = {key: value[key] for key in same if key in value}
    return {**parts, **kept} if parts else {"rope_type": "default", **kept}


def _turns_differ(ours: LayerScores, others: LayerScores) -> bool:
    if ours.turning is None or others.turning is None:
        return ours.turning is not others.turning
    same = np.allclose(ours.turning.frequencies, others.turning.frequencies, rtol=SAME, atol=0)
    return not same or abs(ours.turning.factor - others.turning.factor) > SAME


def _differs(ours: Tensor, others: Tensor) -> bool:
    if ours.shape != others.shape:
        return True
    return bool((ours - others).abs().amax() > SAME * ours.abs().amax())


def _why(config: PublishedConfig, path: tuple[str, ...], value: object, kind: str | None) -> str:
    """Say why an entry has no effect."""
    key, entries = path[-1], value if isinstance(value, Mapping) else {}
    if key not in {"rope_scaling", "rope_parameters"}:
        return f"{key} is not a key that it reads; the keys are rope_scaling and rope_parameters"
    type_keys = {name: entries[name] for name in ("rope_type", "type") if name in entries}
    if len(set(map(str, type_keys.values()))) > 1:
        return f"rope_type is {type_keys['rope_type']!r} and wins over type {type_keys['type']!r}"
    if kind in UNSCALED:
        return "it names no rope_type, so the plain frequencies are used"
    if _number(value, "factor") in {None, 1.0} and kind in {"linear", "yarn", "dynamic"}:
        return "its factor is 1"
    if len(path) == 1 and config.raw.get("text_config"):
        return "the text part of the model has its own entry in text_config"
    return "its attention does not read the scaled frequencies"
