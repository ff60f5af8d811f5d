"""What to do: the ranking of remedies in one sentence, and the setting that applies the best one.

Remedies are ranked by their mean loss past the trained length. Those that hide most of a long text
(window with sinks, chunks) cannot retrieve from it, however low their loss, and are named apart.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from headscape.diagnosis.loss_by_position import THRESHOLD, LossTable, numbers
from headscape.diagnosis.remedies import Remedy
from headscape.errors import InputError
from headscape.io import atomic
from headscape.io.json_file import read_json
from headscape.measures.interval import FEWEST, estimate
from headscape.models.model import Spec

DOCUMENTED = "written from its documentation, not run"


@dataclass(frozen=True, kw_only=True, eq=False)
class Tried:
    """A remedy and its losses."""

    remedy: Remedy
    losses: LossTable

    def row(self, own: LossTable) -> dict[str, Any]:
        """Return its numbers beside those of the unchanged model `own`: mean, low, high."""
        return {
            "name": self.remedy.name,
            "title": self.remedy.title,
            "text": self.remedy.text,
            "forgets": self.remedy.forgets,
            "loss": numbers(estimate(self.losses.past())),
            "gain": numbers(estimate(own.past() - self.losses.past())),
            "excess": numbers(estimate(self.losses.excess().mean(axis=1))),
            "cost": numbers(estimate((self.losses.short - own.short).mean(axis=1))),
            "holds_to": self.losses.holds_to(),
            "bands": self.losses.bands(),
        }


def ranked(tried: Sequence[Tried]) -> list[Tried]:
    """Return the remedies from the lowest mean loss past the trained length."""
    return sorted(tried, key=lambda each: float(each.losses.past().mean()))


def helps(gain: Sequence[float | None]) -> bool:
    """Return whether a gain is shown: its interval is above 0; without one, above THRESHOLD."""
    mean, low, _ = gain
    assert mean is not None
    return low > 0 if low is not None else mean > THRESHOLD


def alike(best: Tried, others: Sequence[Tried]) -> list[Tried]:
    """Return the remedies whose difference from the best has an interval that contains 0."""
    same = []
    for other in others:
        _, low, _ = numbers(estimate(other.losses.past() - best.losses.past()))
        if low is not None and low <= 0:
            same.append(other)
    return same


def sentence(own: LossTable, tried: Sequence[Tried]) -> str:
    """Return the ranking with its uncertainty."""
    plan = own.plan
    count = len(plan.windows)
    sure = "" if count >= FEWEST else f" There is no interval: {count} windows are fewer than 6."
    if own.holds_to() >= plan.length:
        return (
            f"The model holds up to {plan.length:,} tokens: no band of positions is shown to be "
            f"more than {THRESHOLD} nats worse than the same tokens with a short context. Nothing "
            f"needs to be mended.{sure}"
        )
    keeping = ranked([each for each in tried if not each.remedy.forgets])
    helping = [each for each in keeping if helps(each.row(own)["gain"])]
    if not helping:
        return f"No remedy that keeps the whole text in view lowers the loss.{sure}{_apart(tried)}"
    best = helping[0]
    row = best.row(own)
    mended = (
        "which mends it"
        if (row["excess"][0] or 0) <= THRESHOLD
        else f"which still leaves {row['excess'][0]:.2f} nats of excess"
    )
    same = alike(best, helping[1:])
    told = ""
    if same:
        names = ", ".join(each.remedy.title for each in same)
        told = f"; these cannot be told apart from it: {names}"
    elif count >= FEWEST and len(keeping) > 1:
        told = f"; the next, {keeping[1].remedy.title}, is worse beyond the interval"
    return (
        f"{_begin(best.remedy.title)} is best: its loss past {plan.trained:,} tokens is "
        f"{shown(row['gain'])} nats lower than the unchanged model's, {mended}, and costs "
        f"{shown(row['cost'], sign=True)} nats at {plan.short:,} tokens{told}.{sure}{_apart(tried)}"
    )


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


def best_of(own: LossTable, tried: Sequence[Tried]) -> Tried | None:
    """Return the remedy that the sentence names; None if the model holds or none helps."""
    if own.holds_to() >= own.plan.length:
        return None
    keeping = ranked([each for each in tried if not each.remedy.forgets])
    return next((each for each in keeping if helps(each.row(own)["gain"])), None)


def patch(remedy: Remedy, spec: Spec, trained: int, length: int) -> dict[str, Any]:
    """Return what a remedy is called in other software; None where there is no setting for it."""
    found: dict[str, Any] = {
        "transformers": None,
        "vllm": None,
        "sglang": None,
        "llama.cpp": None,
        "headscape": f'headscape.diagnosis.remedies.remedied(model, "{remedy.name}", {length})',
    }
    if remedy.rope is None:
        return found
    layer = next(layer for layer in spec.layers if layer.encoding == "rope")
    parameters = rope_parameters(remedy.rope, layer.conventions, trained, spec.head_dim)
    # transformers takes dynamic NTK's trained length from max_position_embeddings.
    longest = {} if remedy.name == "dynamic" else {"max_position_embeddings": length}
    found["transformers"] = {"rope_parameters": parameters, **longest}
    served = json.dumps(found["transformers"], sort_keys=True)
    found["vllm"] = f"--hf-overrides '{served}' --max-model-len {length}  # {DOCUMENTED}"
    found["sglang"] = (
        f"--json-model-override-args '{served}' --context-length {length}  # {DOCUMENTED}"
    )
    flags = _llama_cpp(remedy, parameters, trained)
    if flags is not None:
        found["llama.cpp"] = f"{flags} --ctx-size {length}  # {DOCUMENTED}"
    if remedy.name in {"linear", "ntk", "dynamic", "yarn"}:
        factor = "" if remedy.name == "dynamic" else f":{length / trained:g}"
        found["headscape"] = f"headscape evaluate MODEL --extend {remedy.name}{factor}"
    return found


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


def write_config(source: Path, folder: Path, changes: Mapping[str, Any] | None) -> Path:
    """Write a copy of a model's config.json with a patch in it, and return its path."""
    if changes is None:
        raise InputError(
            "the best remedy is not a setting of transformers, so there is no config to write."
        )
    if not (source / "config.json").is_file():
        raise InputError(
            f"{source} has no config.json of transformers, so no copy of it can be written."
        )
    target = folder / "config.json"
    if target.exists():
        raise InputError(f"{target} exists already: choose a new folder.")
    config = read_json(source / "config.json")
    # transformers prefers the older name where both are there.
    config.pop("rope_scaling", None)
    config.update(changes)
    atomic.write_text(target, json.dumps(config, indent=2) + "\n")
    return target
