"""What a remedy is called in other software, and a copy of a config with it.

A remedy is a setting where one set of RoPE parameters means the same: `rope_parameters` of
transformers' config.json, and the flags of vLLM, SGLang and llama.cpp. The flags are written from
their documentation and were not run.
"""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from headscape.diagnosis.changes import FIELDS, rotation_of, stretchable
from headscape.diagnosis.remedies import SEARCHED, Remedy
from headscape.encodings.rope import ntk_base
from headscape.errors import InputError
from headscape.io.files import write_text
from headscape.models.gpt2_model import GPT2Model
from headscape.models.model import Spec
from headscape.models.transformers.declared import stored_config
from headscape.models.transformers.published_model import PublishedModel

DOCUMENTED: Final = "written from its documentation, not run"
NAMED_BEFORE: Final = (
    "transformers 5 calls it rope_parameters; before that, and in software that follows it, the "
    "entry is rope_scaling, without rope_theta, which stands beside it."
)


def patch(
    remedy: Remedy,
    spec: Spec,
    trained: int,
    length: int,
    own: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Return what a remedy is called in other software; None where there is no setting for it.

    Args:
        remedy: The remedy.
        spec: The model's.
        trained: L.
        length: N.
        own: RoPE's entries of the model's config: those that a remedy does not set are kept.
    """
    found: dict[str, Any] = {
        "transformers": None,
        "vllm": None,
        "sglang": None,
        "llama.cpp": None,
        "headscape": _remedied_line(remedy, trained, length),
        "note": None,
    }
    if remedy.rope is None:
        return found
    found["note"] = _not_one_set(spec, trained)
    if found["note"] is not None:
        return found
    layer = next(layer for layer in spec.layers if layer.encoding == "rope")
    made = rope_parameters(remedy.rope, layer.conventions, trained, spec.head_dim)
    parameters = {**(own or {}), **made}
    # transformers takes dynamic NTK's trained length from max_position_embeddings.
    longest = trained if remedy.name == "dynamic" else length
    found["transformers"] = {"rope_parameters": parameters, "max_position_embeddings": longest}
    found["note"] = NAMED_BEFORE
    if remedy.name != "dynamic":
        # vLLM and SGLang multiply LongRoPE's cos and sin by these, not by attention_factor.
        same = "attention_factor" in made and made["rope_type"] == "longrope"
        for name in ("short_mscale", "long_mscale") if same else ():
            parameters = {**parameters, name: made["attention_factor"]}
        served = {"rope_parameters": parameters, "max_position_embeddings": length}
        text = json.dumps(served, sort_keys=True)
        found["vllm"] = f"--hf-overrides '{text}' --max-model-len {length}  # {DOCUMENTED}"
        found["sglang"] = (
            f"--json-model-override-args '{text}' --context-length {length}  # {DOCUMENTED}"
        )
    flags = _llama_cpp(remedy, parameters, trained)
    if flags is not None:
        found["llama.cpp"] = f"{flags} --ctx-size {length}  # {DOCUMENTED}"
    if remedy.name in {"linear", "ntk", "dynamic", "yarn"} and trained == spec.train_length:
        factor = "" if remedy.name == "dynamic" else f":{length / trained:g}"
        found["headscape"] = f"headscape evaluate MODEL --extend {remedy.name}{factor}"
    return found


def _remedied_line(remedy: Remedy, trained: int, length: int) -> str:
    """Return Python that applies a remedy."""
    more = ""
    if remedy.name == SEARCHED and remedy.rope is not None:
        divided = [divisor > 1 for divisor in remedy.rope["long_factor"]]
        more = f", first={divided.index(True)}"
    return (
        f"headscape.diagnosis.remedies.remedied("
        f'model, "{remedy.name}", {length}, trained={trained}{more})'
    )


def _not_one_set(spec: Spec, trained: int) -> str | None:
    """Return why one set of RoPE parameters does not mean the remedy; None if it does."""
    turned = [layer for layer in spec.layers if rotation_of(layer) == "rope"]
    if any(layer.encoding != "rope" for layer in turned):
        return "RoPE is a part of this encoding, so there is no config of RoPE alone."
    if len(stretchable(spec, trained)) < len(turned):
        return (
            "The remedy leaves layers with a window as they are, and one set of RoPE parameters "
            "would change them too, so no setting is given."
        )
    names = sorted(FIELDS["rope"])
    if len({tuple(str(each.conventions.get(name)) for name in names) for each in turned}) > 1:
        return "Layers have different RoPE parameters, so one set of them is not the remedy."
    return None


def rope_entries(model: GPT2Model | PublishedModel) -> dict[str, Any]:
    """Return RoPE's entries of a published model's config, such as mrope_section."""
    if not isinstance(model, PublishedModel):
        return {}
    text = _text_part(config_of(model))
    return dict(text.get("rope_parameters") or text.get("rope_scaling") or {})


def rope_parameters(
    rope: Mapping[str, Any], conventions: Mapping[str, object], trained: int, head_dim: int
) -> dict[str, Any]:
    """Return RoPE's parameters in transformers' names."""
    base, fraction = (float(str(conventions[name])) for name in ("base", "rotary_fraction"))
    partial = {} if fraction == 1 else {"partial_rotary_factor": fraction}
    kind, factor = rope["scaling"], rope.get("factor", 1.0)
    if kind == "ntk":
        larger = ntk_base(base, factor, head_dim, fraction)
        return {"rope_type": "default", "rope_theta": larger, **partial}
    made: dict[str, Any] = {"rope_type": kind, "rope_theta": base, "factor": factor, **partial}
    if kind in {"yarn", "longrope"}:
        made["original_max_position_embeddings"] = trained
    for name in ("short_factor", "long_factor"):
        if name in rope:
            made[name] = list(rope[name])
    if "attention_factor" in rope:
        made["attention_factor"] = rope["attention_factor"]
    return made


def _llama_cpp(remedy: Remedy, parameters: Mapping[str, Any], trained: int) -> str | None:
    if remedy.name == "linear":
        return f"--rope-scaling linear --rope-scale {parameters['factor']:g}"
    if remedy.name == "yarn":
        scale = f"{parameters['factor']:g}"
        return f"--rope-scaling yarn --rope-scale {scale} --yarn-orig-ctx {trained}"
    if remedy.name == "ntk":
        return f"--rope-freq-base {parameters['rope_theta']:g}"
    return None


def config_of(model: GPT2Model | PublishedModel) -> dict[str, Any]:
    """Return a published model's config as config.json has it.

    It is the file in the model's folder, or for a model without one (a GGUF file, a model in
    memory) the config that it was loaded with.
    """
    if not isinstance(model, PublishedModel):
        raise InputError(
            f"{model.spec.name} is not a model of transformers, so it has no config.json to write "
            f"a remedy into."
        )
    stored = stored_config(model)
    if stored is not None:
        return stored
    loaded: dict[str, Any] = json.loads(model.model.config.to_json_string())
    return {name: value for name, value in loaded.items() if not name.startswith("_")}


def check_apply(
    model: GPT2Model | PublishedModel,
    remedies: Sequence[str],
    folder: Path,
    trained: int,
    *,
    is_setting: bool,
) -> None:
    """Refuse, before anything runs, what `write_config` could not write.

    Args:
        model: The model that is diagnosed.
        remedies: Names of the remedies that are tried, for the message.
        folder: Where the config goes.
        trained: L.
        is_setting: Whether one of them is a setting of transformers.
    """
    text = _text_part(config_of(model))
    rope = text.get("rope_parameters") or text.get("rope_scaling") or {}
    if any(isinstance(value, Mapping) for value in rope.values()):
        raise InputError(
            f"{model.spec.name} has RoPE parameters per layer type, and a remedy is one set for "
            f"all layers, so no config can be written."
        )
    if not is_setting:
        raise InputError(
            f"none of the remedies that are tried on {model.spec.name} "
            f"({', '.join(remedies) or 'none applies'}) is a setting of transformers, so no config "
            f"can be written."
        )
    reason = _not_one_set(model.spec, trained)
    if reason is not None:
        raise InputError(f"no config of {model.spec.name} can be written. {reason}")
    _new_target(folder)


def write_config(
    config: Mapping[str, Any], folder: Path, changes: Mapping[str, Any] | None
) -> Path:
    """Write a copy of a config with a patch in it, and return its path.

    Args:
        config: What config.json says.
        folder: Where the copy goes; it must not have a config.json.
        changes: The entry "transformers" of a patch; None is refused.
    """
    if changes is None:
        raise InputError(
            "the best remedy is not a setting of transformers, so there is no config to write."
        )
    target = _new_target(folder)
    written = json.loads(json.dumps(config))
    text = _text_part(written)
    # transformers prefers the older name where both are there.
    text.pop("rope_scaling", None)
    text.update(changes)
    write_text(target, json.dumps(written, indent=2) + "\n")
    return target


def _text_part(config: Any) -> Any:
    """Return the part of a multimodal model's config that is about text; the whole of any other."""
    inner = config.get("text_config")
    return inner if isinstance(inner, Mapping) else config


def _new_target(folder: Path) -> Path:
    target = folder / "config.json"
    if target.exists():
        raise InputError(f"{target} exists already: choose a new folder.")
    return target
