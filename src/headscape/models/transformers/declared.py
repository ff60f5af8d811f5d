"""Whether a published model does what its config declares: RoPE's scaling, its tables, its window.

Declared is what config.json says, active is what the model computes: conventions, which
layer_reading.py found by repeating each layer's own rotated queries and keys. Only
conventions are compared; a card also compares scores with those of a model without the setting. A
setting whose key is misspelled, whose table was made before it was set or which a library ignores
is declared and not active; nothing else shows it, because the model runs as well as before up to
its trained length.
"""

import inspect
import math
import re
import sys
from collections.abc import Mapping
from copy import copy
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import torch
from torch import Tensor

from headscape.call.definition import AttentionCall
from headscape.encodings.rope import RoPE
from headscape.io.files import read_json
from headscape.models.transformers.layer_reading import LISTS, NTK, NUMBERS
from headscape.models.transformers.published_model import PublishedModel

ROPE_KEYS: Final = {
    "rope_type", "type", "rope_theta", "original_max_position_embeddings", "attention_factor",
    "partial_rotary_factor", "llama_4_scaling_beta", "mrope_section", "mrope_interleaved",
    NTK, *NUMBERS, *LISTS,
}  # fmt: skip
"""Entries of the RoPE parameters that transformers or we read; others depend on the family."""
IGNORED: Final = {"finetuned", "max_position_embeddings"}
"""Entries that describe a scaling and ask for nothing."""
ALIASES: Final = {"default": "none", "mrope": "none", "su": "longrope"}
ENTRY: Final = r"(?:\[|get\(|pop\(|attr\([\w.]+,)\s*[\"']KEY[\"']"
"""Code that takes an entry from a mapping."""
FIELD: Final = r"^ +KEY\s*:|\.KEY\b"
"""Code that declares or reads a field of a config."""
NAME: Final = r"[\"']KEY[\"']"
SCALES: Final = re.compile(r"rope|rotary|yarn|ntk", re.IGNORECASE)
"""Names of entries of a config that may ask for a scaling."""
WITHIN: Final = 1e-3
"""Relative difference up to which two factors count as equal."""
LONGEST_WINDOW: Final = 8192
"""Windows longer than this are not tried out."""


@dataclass(frozen=True, kw_only=True)
class DeclaredSetting:
    """One setting, as declared and as active."""

    name: str
    declared: str
    active: str
    fault: str | None = None
    """inactive, applied-twice, original-length, table or window; None if they agree."""
    text: str = ""
    """The fault in a sentence."""


@dataclass(frozen=True, kw_only=True)
class _Active:
    """What RoPE layers with the same conventions do."""

    conventions: Mapping[str, Any]
    attention_factor: float
    """The multiplier of cos and sin."""
    encoding: RoPE
    """The rotation as it was read off the layer."""


def settings(
    model: PublishedModel, declared: Mapping[str, Any] | None = None, *, reach: int | None = None
) -> list[DeclaredSetting]:
    """Return RoPE's and the window's settings of a published model, with what is wrong.

    Args:
        model: The model.
        declared: The config that was meant, as config.json has it; by default that of the model's
            folder, or of the model in memory.
        reach: Longest text that may be run to try a window out; None is LONGEST_WINDOW.
    """
    config = _declared(model) if declared is None else declared
    text_config = config.get("text_config")
    config = text_config if isinstance(text_config, Mapping) else config
    rope = config.get("rope_parameters") or config.get("rope_scaling") or {}
    layers = _layers(model)
    every = [active for _, active in layers]
    found = _unread(model, config) if every else []
    if any(isinstance(value, Mapping) for value in rope.values()):
        for kind, own in rope.items():
            if isinstance(own, Mapping):
                some = [active for name, active in layers if name == kind]
                found += _layered(model, str(kind), own, some, has_rope=bool(layers))
    else:
        theta = {name: config[name] for name in ("rope_theta",) if name in config}
        found += [
            *_scaling(model, {**theta, **rope}, every),
            *_lengths(config, rope),
            *_table(model, rope),
        ]
    longest = LONGEST_WINDOW if reach is None else min(reach, LONGEST_WINDOW)
    return [*found, *_window(model, config, longest)]


def stored_folder(model: PublishedModel) -> Path | None:
    """Return the folder with a model's config.json and tokenizer; None for a model without one.

    A GGUF file may be beside the config of a different model.
    """
    path = str(getattr(model.model, "name_or_path", "") or "")
    file = Path(path) / "config.json"
    if not path or not file.is_file():
        return None
    same = read_json(file).get("model_type") == model.model.config.model_type
    return Path(path) if same else None


def stored_config(model: PublishedModel) -> dict[str, Any] | None:
    """Return the config.json in a model's folder; None for a model without one."""
    folder = stored_folder(model)
    return None if folder is None else read_json(folder / "config.json")


def _declared(model: PublishedModel) -> Mapping[str, Any]:
    described: dict[str, Any] = stored_config(model) or model.model.config.to_dict()
    return described


def unread_keys(model: PublishedModel, rope: Mapping[str, Any]) -> list[str]:
    """Return the entries of RoPE parameters that neither transformers nor the family reads."""
    unknown = sorted(map(str, set(rope) - ROPE_KEYS - IGNORED))
    return [key for key in unknown if not _is_read(model, key, ENTRY)]


def _layers(model: PublishedModel) -> list[tuple[str | None, _Active]]:
    """Return the type of every RoPE layer, where the config has types, and what it does."""
    types = getattr(model.config, "layer_types", None)
    found: list[tuple[str | None, _Active]] = []
    every = zip(model.readings, model.spec.layers, model.attention, strict=True)
    for number, (reading, spec, module) in enumerate(every):
        if not isinstance(reading.encoding, RoPE):
            continue
        place = getattr(module, "layer_idx", None)
        kind = types[number if place is None else place] if types else None
        active = _Active(
            conventions=spec.conventions,
            attention_factor=reading.encoding.attention_factor(),
            encoding=reading.encoding,
        )
        found.append((getattr(module, "rope_layer_type", kind), active))
    return found


def _is_read(model: PublishedModel, key: str, pattern: str) -> bool:
    """Return whether the code that runs a model has `pattern`, with the name of an entry as KEY."""
    parts = (model.model, model.body, model.model.config, model.config)
    files = {type(part).__module__ for part in parts}
    files |= {"transformers.modeling_rope_utils"} if pattern == ENTRY else set()
    wanted = re.compile(pattern.replace("KEY", re.escape(key)), re.MULTILINE)
    return any(wanted.search(inspect.getsource(sys.modules[file])) for file in files)


def _unread(model: PublishedModel, config: Mapping[str, Any]) -> list[DeclaredSetting]:
    """Return the entries beside RoPE's own that ask for a scaling and that nothing reads."""
    found = []
    for key, value in config.items():
        asks = SCALES.search(key) and value and key not in {"rope_parameters", "rope_scaling"}
        if asks and not _is_read(model, key, ENTRY) and not _is_read(model, key, FIELD):
            text = f"The config has an entry {key!r}, which transformers does not read."
            row = {"name": key, "declared": _text(value)[:60], "active": "not read"}
            found.append(DeclaredSetting(**row, fault="inactive", text=text))
    return found


def _layered(
    model: PublishedModel,
    kind: str,
    rope: Mapping[str, Any],
    some: list[_Active],
    *,
    has_rope: bool,
) -> list[DeclaredSetting]:
    """Compare the RoPE parameters of one type of layers with what these layers do."""
    if some:
        return [replace(row, name=f"{row.name} ({kind})") for row in _scaling(model, rope, some)]
    types = getattr(model.config, "layer_types", None) or ()
    known = {*types, *(getattr(each, "rope_layer_type", None) for each in model.attention)}
    row = {"name": f"RoPE scaling ({kind})", "declared": _shown(rope), "active": "not compared"}
    if kind in known or not has_rope or _is_read(model, kind, NAME):
        return [DeclaredSetting(**row)]
    text = f"The config has RoPE parameters for layers of type {kind!r}, and there are none."
    return [DeclaredSetting(**{**row, "active": "no such layers"}, fault="inactive", text=text)]


def _scaling(
    model: PublishedModel, rope: Mapping[str, Any], every: list[_Active]
) -> list[DeclaredSetting]:
    """Compare RoPE's declared parameters with what layers do that should all have them.

    In a model whose layers differ, such as Gemma 3's old configs, one layer that has them is
    enough.
    """
    if not every:
        return []
    kind = _kind(rope)
    factor = _number(rope.get("factor"))
    unknown = unread_keys(model, rope)
    actives = [each for each in every if each.conventions["scaling"] == kind] or every
    active = actives[0]
    done, done_factor = str(active.conventions["scaling"]), float(active.conventions["factor"])
    asks = (factor is not None and factor != 1) or bool(unknown)
    fault, text = None, ""
    shown = str(rope.get("rope_type", rope.get("type", "default")))
    if NTK in rope:
        return [DeclaredSetting(name="RoPE scaling", declared=shown, active=done)]
    if (done != kind and (done == "none" or kind != "none")) or (kind == "none" and asks):
        because = (
            f"{unknown[0]!r} is not an entry that transformers reads"
            if unknown
            else f"the type is {'default' if kind == 'none' else kind!r}"
        )
        without = "without it" if done == "none" else f"by {done} scaling"
        fault = "inactive"
        text = (
            f"The config declares RoPE's scaling ({_shown(rope)}), and the model turns queries "
            f"and keys {without}: {because}."
        )
    elif unknown:
        fault = "inactive"
        text = f"RoPE's parameters have an entry {unknown[0]!r}, which transformers does not read."
    rows = [
        DeclaredSetting(name="RoPE scaling", declared=shown, active=done, fault=fault, text=text)
    ]
    # A scaling that is not active has no numbers to compare.
    same = done == kind != "none"
    rows.append(_compared("factor", factor, done_factor, compare=same))
    factors = [each.attention_factor for each in actives]
    declared = _number(rope.get("attention_factor"))
    if declared is not None:
        rows.append(_compared("attention factor", declared, *factors, compare=done == kind))
    elif same:
        rows += _implied_factor(rope, actives)
    bases = [float(each.conventions["base"]) for each in every]
    if _number(rope.get("rope_theta")) is not None:
        rows.append(_compared("rope_theta", _number(rope["rope_theta"]), *bases))
    return rows


def _implied_factor(rope: Mapping[str, Any], actives: list[_Active]) -> list[DeclaredSetting]:
    """Compare the multiplier of cos and sin with the one that the declared type of scaling implies.

    That is 0.1 ln(factor) + 1 or its mscale form for YaRN, sqrt(1 + ln(factor) / ln(original
    length)) for LongRoPE, and 1 for the others. [] if it is 1 and active.
    """
    names = ("mscale", "mscale_all_dim")
    own: dict[str, Any] = {key: _number(rope[key]) for key in names if key in rope}
    usual = copy(actives[0].encoding)
    usual.config = replace(usual.config, attention_factor=None, **own)
    implied, active = usual.attention_factor(), [each.attention_factor for each in actives]
    agrees = any(math.isclose(each, implied, rel_tol=WITHIN) for each in active)
    if agrees and implied == 1:
        return []
    kind = str(actives[0].conventions["scaling"])
    row = {
        "name": "attention factor",
        "declared": f"not set, {implied:.4g} for {kind}",
        "active": f"{active[0]:.4g}",
    }
    if agrees:
        return [DeclaredSetting(**row)]
    text = (
        f"The config declares {kind} scaling without an attention factor, which implies "
        f"{implied:.4g}, and the model multiplies cos and sin by {active[0]:.4g}."
    )
    return [DeclaredSetting(**row, fault="inactive", text=text)]


def _compared(
    name: str, declared: float | None, *active: float, compare: bool = True
) -> DeclaredSetting:
    """Return a number as declared and as active; it is inactive if no layer has it."""
    row = {"name": name, "declared": _text(declared), "active": _text(active[0])}
    agrees = [declared is not None and math.isclose(x, declared, rel_tol=WITHIN) for x in active]
    if declared is None or not compare or any(agrees):
        return DeclaredSetting(**row)
    text = f"The config declares {name} {declared:g}, and the model's is {active[0]:g}."
    return DeclaredSetting(**row, fault="inactive", text=text)


def _kind(rope: Mapping[str, Any]) -> str:
    """Return the declared scaling as our encodings call it."""
    kind = str(rope.get("rope_type", rope.get("type")) or "default")
    # Old configs of Phi-3 say "su" or "yarn".
    return "longrope" if "long_factor" in rope else ALIASES.get(kind, kind)


def _lengths(config: Mapping[str, Any], rope: Mapping[str, Any]) -> list[DeclaredSetting]:
    """Compare the original length times the factor with the length that the config promises."""
    original = _number(rope.get("original_max_position_embeddings"))
    factor, promised = _number(rope.get("factor")), _number(config.get("max_position_embeddings"))
    kind = _kind(rope)
    if original is None or promised is None:
        return []
    row = {
        "name": "original length",
        "declared": f"{original:g}",
        "active": f"{promised:g} promised",
    }
    ratio = promised / original
    if ratio < 1 - WITHIN:
        text = (
            f"The original length of {original:g} tokens is more than the {promised:g} that "
            f"max_position_embeddings promises."
        )
        return [DeclaredSetting(**row, fault="original-length", text=text)]
    # Llama 3's factor is not the ratio of its lengths: 8 for 8,192 to 131,072 tokens.
    if factor is None or kind not in {"yarn", "linear"} or ratio <= factor * (1 + WITHIN):
        return [DeclaredSetting(**row)]
    if math.isclose(ratio, factor * factor, rel_tol=WITHIN):
        text = (
            f"max_position_embeddings promises {promised:g} tokens, {original:g} times the factor "
            f"{factor:g} twice: the frequencies are stretched for {original * factor:g}."
        )
        return [DeclaredSetting(**row, fault="applied-twice", text=text)]
    text = (
        f"max_position_embeddings promises {promised:g} tokens, and the original length of "
        f"{original:g} times the factor {factor:g} is {original * factor:g}."
    )
    return [DeclaredSetting(**row, fault="original-length", text=text)]


def _table(model: PublishedModel, rope: Mapping[str, Any]) -> list[DeclaredSetting]:
    """Compare the frequencies that the model keeps with those of its config."""
    config = model.config
    # These two replace the table when a text is long, and keep the one that was made.
    made = "original_inv_freq" if _kind(rope) in {"dynamic", "longrope"} else "inv_freq"
    for module in model.body.modules():
        kept = getattr(module, made, None)
        if "RotaryEmbedding" not in type(module).__name__ or not isinstance(kept, Tensor):
            continue
        try:
            kind: Any = type(module)
            fresh: Tensor = kind(config).inv_freq.to(kept)
        except (TypeError, AttributeError, KeyError, ValueError):
            return [
                DeclaredSetting(name="frequencies", declared="as the config", active="not compared")
            ]
        if fresh.shape != kept.shape:
            continue
        still = (fresh == 0) & (kept == 0)
        ratio = (fresh.double() / kept.double()).masked_fill(still, 1.0).cpu()
        row = {"name": "frequencies", "declared": "as the config", "active": "as the config"}
        if bool(((ratio - 1).abs() <= WITHIN).all()):
            return [DeclaredSetting(**row)]
        row["active"] = f"divided by {float(ratio.max()):.4g} more"
        factor = _number(rope.get("factor"))
        if factor is not None and factor != 1 and abs(float(ratio.max()) / factor - 1) <= WITHIN:
            text = f"The frequencies are divided by the factor {factor:g} twice."
            return [DeclaredSetting(**row, fault="applied-twice", text=text)]
        text = (
            f"The table of frequencies is not that of the config: they differ by a factor of up "
            f"to {float(ratio.max()):.4g}."
        )
        return [DeclaredSetting(**row, fault="table", text=text)]
    return []


def _window(model: PublishedModel, config: Mapping[str, Any], reach: int) -> list[DeclaredSetting]:
    """Compare the declared window with the keys that a late query sees."""
    declared = _number(config.get("sliding_window"))
    if declared is None or config.get("use_sliding_window") is False:
        return []
    size = int(declared)
    row = {"name": "window", "declared": str(size)}
    if size + 1 > reach:
        return [DeclaredSetting(**row, active="not reached")]
    types = getattr(model.config, "layer_types", None)
    places = [getattr(module, "layer_idx", n) for n, module in enumerate(model.attention)]
    every = types or config.get("layer_types") or ["sliding"] * (max(places) + 1)
    kinds = [str(every[place]) if place < len(every) else "" for place in places]
    layer = next((n for n, kind in enumerate(kinds) if "sliding" in kind), None)
    if layer is None:
        return [DeclaredSetting(**row, active="in no layer")]
    calls: list[AttentionCall] = []
    tokens = torch.full((1, size + 1), 1, dtype=torch.int64)
    model.observe(tokens, [layer], lambda _, call: calls.append(call))
    seen = int(calls[0].visible.block(slice(size, size + 1)).count(
        calls[0].positions.block(slice(size, size + 1))
    )[0, 0])  # fmt: skip
    row["active"] = str(seen) if seen <= size else "none"
    if seen == size:
        return [DeclaredSetting(**row)]
    sees = "sees every key" if seen > size else f"sees {seen} keys"
    which = f"layer {layer} (counted from 0)"
    text = f"The config declares a window of {size} tokens, and a query of {which} {sees}."
    return [DeclaredSetting(**row, fault="window", text=text)]


def _number(value: object) -> float | None:
    known = isinstance(value, int | float) and not isinstance(value, bool)
    return float(value) if known else None  # type: ignore[arg-type]


def _text(value: object) -> str:
    return "not set" if value is None else f"{value:g}" if isinstance(value, float) else str(value)


def _shown(rope: Mapping[str, Any]) -> str:
    plain = {key: value for key, value in rope.items() if not isinstance(value, list | tuple)}
    return ", ".join(f"{key} {value}" for key, value in sorted(plain.items()))
