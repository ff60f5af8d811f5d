"""Whether a published model does what its config declares: RoPE's scaling, its tables, its window.

Declared is what config.json says, active is what the model computes. A setting whose key is
misspelled, whose table was made before it was set or which a library ignores is declared and not
active; nothing else shows it, because the model runs as well as before up to its trained length.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import torch
from torch import Tensor

from headscape.call.definition import AttentionCall
from headscape.io.files import read_json
from headscape.models.transformers.layer_reading import LISTS, NTK, NUMBERS
from headscape.models.transformers.published_model import PublishedModel

READ: Final = {
    "rope_type", "type", "rope_theta", "original_max_position_embeddings", "attention_factor",
    "partial_rotary_factor", "mscale", "mscale_all_dim", "llama_4_scaling_beta", "mrope_section",
    NTK, *NUMBERS, *LISTS,
}  # fmt: skip
"""Entries of the RoPE parameters that transformers or we read."""
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
    if any(isinstance(value, Mapping) for value in rope.values()):
        layered = DeclaredSetting(
            name="rope_parameters", declared="one set per layer type", active="not compared"
        )
        found = [layered]
    else:
        found = [*_scaling(model, rope), *_lengths(config, rope), *_table(model, rope)]
    return [*found, *_window(model, config, min(reach or LONGEST_WINDOW, LONGEST_WINDOW))]


def _declared(model: PublishedModel) -> Mapping[str, Any]:
    folder = Path(str(getattr(model.model, "name_or_path", "") or ""))
    if str(folder) not in {"", "."} and (folder / "config.json").is_file():
        return read_json(folder / "config.json")
    described: dict[str, Any] = model.model.config.to_dict()
    return described


def _scaling(model: PublishedModel, rope: Mapping[str, Any]) -> list[DeclaredSetting]:
    """Compare the type and the factor with those of the layer's rotation."""
    conventions = next(
        (layer.conventions for layer in model.spec.layers if layer.encoding == "rope"), None
    )
    kind = str(rope.get("rope_type", rope.get("type", "default")))
    factor = _number(rope.get("factor"))
    unknown = sorted(str(key) for key in set(rope) - READ)
    if conventions is None:
        return []
    active = str(conventions["scaling"])
    active_factor = float(str(conventions["factor"]))
    wants = kind != "default" or (factor is not None and factor != 1) or bool(unknown)
    fault, text = None, ""
    if wants and active in {"none", "default"} and NTK not in rope:
        because = (
            f"{unknown[0]!r} is not an entry that transformers reads"
            if unknown
            else f"the type is {kind!r}"
        )
        fault = "inactive"
        text = (
            f"The config declares RoPE's scaling ({_shown(rope)}), and the model turns queries "
            f"and keys without it: {because}."
        )
    rows = [
        DeclaredSetting(name="RoPE scaling", declared=kind, active=active, fault=fault, text=text),
        DeclaredSetting(name="factor", declared=_text(factor), active=_text(active_factor)),
    ]
    if rope.get("attention_factor") is not None or conventions.get("attention_factor") is not None:
        rows.append(
            DeclaredSetting(
                name="attention factor",
                declared=_text(rope.get("attention_factor")),
                active=_text(conventions.get("attention_factor")),
            )
        )
    return rows


def _lengths(config: Mapping[str, Any], rope: Mapping[str, Any]) -> list[DeclaredSetting]:
    """Compare the original length times the factor with the length that the config promises."""
    original = _number(rope.get("original_max_position_embeddings"))
    factor, promised = _number(rope.get("factor")), _number(config.get("max_position_embeddings"))
    kind = str(rope.get("rope_type", rope.get("type", "default")))
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
    config = model.model.config.get_text_config(decoder=False)
    for module in model.model.modules():
        kept = getattr(module, "inv_freq", None)
        if "RotaryEmbedding" not in type(module).__name__ or not isinstance(kept, Tensor):
            continue
        try:
            fresh = type(module)(config).inv_freq.to(kept)
        except (TypeError, AttributeError, KeyError, ValueError):
            return []
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
    types = config.get("layer_types") or []
    layer = next((n for n, kind in enumerate(types) if "sliding" in str(kind)), 0)
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
    text = (
        f"The config declares a window of {size} tokens, and a query of layer {layer + 1} {sees}."
    )
    return [DeclaredSetting(**row, fault="window", text=text)]


def _number(value: object) -> float | None:
    known = isinstance(value, int | float) and not isinstance(value, bool)
    return float(value) if known else None  # type: ignore[arg-type]


def _text(value: object) -> str:
    return "not set" if value is None else f"{value:g}" if isinstance(value, float) else str(value)


def _shown(rope: Mapping[str, Any]) -> str:
    plain = {key: value for key, value in rope.items() if not isinstance(value, list | tuple)}
    return ", ".join(f"{key} {value}" for key, value in sorted(plain.items()))
