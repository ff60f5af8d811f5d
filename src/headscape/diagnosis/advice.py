"""What to do: the ranking of remedies in one sentence, and the setting that applies the best one.

Remedies are ranked by their mean loss past the trained length. Those that hide most of a long text
(window with sinks, chunks) cannot retrieve from it, however low their loss, and are named apart.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from headscape.diagnosis.changes import FIELDS, rotation_of, stretchable
from headscape.diagnosis.far_positions import FarTable
from headscape.diagnosis.loss_by_position import THRESHOLD, LossTable, numbers
from headscape.diagnosis.remedies import SEARCHED, Remedy
from headscape.diagnosis.retrieval import Answers
from headscape.errors import InputError
from headscape.io.files import read_json, write_text
from headscape.measures.interval import FEWEST, estimate
from headscape.models.gpt2_model import GPT2Model
from headscape.models.model import Spec
from headscape.models.transformers.published_model import PublishedModel

DOCUMENTED = "written from its documentation, not run"
NAMED_BEFORE = (
    "transformers 5 calls it rope_parameters; before that, and in software that follows it, the "
    "entry is rope_scaling, without rope_theta, which stands beside it."
)


@dataclass(frozen=True, kw_only=True, eq=False)
class Tried:
    """A remedy with its losses and answers."""

    remedy: Remedy
    losses: LossTable | FarTable
    answers: Answers

    def row(self, own: LossTable | FarTable) -> dict[str, Any]:
        """Return its numbers beside those of the unchanged model `own`: mean, low, high."""
        return {
            "name": self.remedy.name,
            "title": self.remedy.title,
            "text": self.remedy.text,
            "forgets": self.remedy.forgets,
            "is_setting": self.remedy.rope is not None,
            "loss": numbers(estimate(self.losses.past())),
            "gain": numbers(estimate(own.past() - self.losses.past())),
            "excess": numbers(estimate(self.losses.excess().mean(axis=1))),
            "cost": numbers(estimate((self.losses.short - own.short).mean(axis=1))),
            "holds_to": self.losses.holds_to(),
            "bands": self.losses.bands(),
            "retrieval": self.answers,
        }


def ranked(tried: Sequence[Tried]) -> list[Tried]:
    """Return the remedies from the lowest mean loss past the trained length."""
    return sorted(tried, key=lambda each: float(each.losses.past().mean()))


def helps(gain: Sequence[float | None]) -> bool:
    """Return whether a gain is shown: its interval is above 0; without one, above THRESHOLD."""
    mean, low, _ = gain
    assert mean is not None
    return low > 0 if low is not None else mean > THRESHOLD


def not_worse(best: Tried, others: Sequence[Tried]) -> list[Tried]:
    """Return the remedies whose loss minus the best one's is not above 0 by its interval."""
    return [
        other for other in others if not estimate(other.losses.past() - best.losses.past())[1] > 0
    ]


def sentence(
    own: LossTable, tried: Sequence[Tried], unchanged: LossTable | FarTable | None = None
) -> str:
    """Return the ranking with its uncertainty.

    Args:
        own: The unchanged model's losses by position, which say whether it holds.
        tried: The remedies.
        unchanged: What the remedies are compared with, where that is not `own`.
    """
    plan = own.plan
    base = own if unchanged is None else unchanged
    count = len(base.past())
    if own.holds_to() >= plan.length:
        return (
            f"The model holds up to {plan.length:,} tokens: no band of positions is shown to be "
            f"more than {THRESHOLD} nats worse than the same tokens with a short context. Nothing "
            f"needs to be mended.{_sure(len(own.past()))}"
        )
    sure = _sure(count)
    keeping = ranked([each for each in tried if not each.remedy.forgets])
    helping = [each for each in keeping if helps(each.row(base)["gain"])]
    if not helping:
        return f"No remedy that keeps the whole text in view lowers the loss.{sure}{_apart(tried)}"
    best = helping[0]
    row = best.row(base)
    where = f"past {plan.trained:,} tokens" if isinstance(base, LossTable) else "at far positions"
    mended = (
        "which mends it"
        if (row["excess"][0] or 0) <= THRESHOLD
        else f"which still leaves {row['excess'][0]:.2f} nats of excess"
    )
    others = [each for each in keeping if each is not best]
    rest = ""
    if count >= FEWEST and others:
        same = not_worse(best, others)
        names = ", ".join(each.remedy.title for each in same)
        rest = (
            f"; these are not shown to be worse: {names}"
            if same
            else "; every other one that keeps the text in view is worse beyond its interval"
        )
    return (
        f"{_begin(best.remedy.title)} is best: its loss {where} is "
        f"{shown(row['gain'])} nats lower than the unchanged model's, {mended}, and costs "
        f"{shown(row['cost'], sign=True)} nats at {plan.short:,} tokens{rest}.{sure}{_apart(tried)}"
    )


def _sure(count: int) -> str:
    if count >= FEWEST:
        return ""
    windows = "1 window is" if count == 1 else f"{count} windows are"
    return f" There is no interval: {windows} fewer than {FEWEST}."


def _begin(title: str) -> str:
    """Return a title at the beginning of a sentence."""
    return title[:1].upper() + title[1:]


def _apart(tried: Sequence[Tried]) -> str:
    forgetting = ranked([each for each in tried if each.remedy.forgets])
    if not forgetting:
        return ""
    first = forgetting[0]
    return (
        f" {_begin(first.remedy.title)}, which hides most of the text, "
        f"has a loss of {first.losses.past().mean():.2f}."
    )


def shown(value: Sequence[float | None], *, sign: bool = False) -> str:
    """Return mean and interval as text."""
    form = "+.3f" if sign else ".3f"
    mean, low, high = value
    if mean is None:
        return "-"
    if low is None or high is None:
        return format(mean, form)
    return f"{mean:{form}} [{low:{form}}, {high:{form}}]"


def best_of(
    own: LossTable,
    tried: Sequence[Tried],
    unchanged: LossTable | FarTable | None = None,
    *,
    setting: bool = False,
) -> Tried | None:
    """Return the remedy that the sentence names; None if the model holds or none helps.

    Args:
        own: The unchanged model's losses by position.
        tried: The remedies.
        unchanged: What the remedies are compared with, where that is not `own`.
        setting: Whether to take the best of those only that a config of transformers can have.
    """
    if own.holds_to() >= own.plan.length:
        return None
    base = own if unchanged is None else unchanged
    keeping = ranked([each for each in tried if not each.remedy.forgets])
    some = [each for each in keeping if each.remedy.rope is not None or not setting]
    return next((each for each in some if helps(each.row(base)["gain"])), None)


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
        dims = int(head_dim * fraction + 1e-9)
        larger = base * factor ** (dims / (dims - 2))
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
    loaded: dict[str, Any] = json.loads(model.model.config.to_json_string())
    folder = Path(str(getattr(model.model, "name_or_path", "") or "."))
    if str(folder) != "." and (folder / "config.json").is_file():
        stored = read_json(folder / "config.json")
        # A GGUF file may lie beside the config of a different model.
        if stored.get("model_type") == loaded.get("model_type"):
            return stored
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
