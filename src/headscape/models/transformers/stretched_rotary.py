"""A published RoPE model with its frequencies stretched, weights shared and not copied.

The rotary modules are made again from a config with other RoPE parameters. The result is read and
checked like any other model, so a family that computes its angles elsewhere is refused.
"""

import copy
from typing import Any

from headscape.errors import InputError
from headscape.models.transformers.published_model import PublishedModel
from headscape.models.transformers.rotary_reader import NTK, rope_parameters


def stretched_published(
    model: PublishedModel, name: str, kind: str, factor: float, trained: int
) -> PublishedModel:
    """Return the model, called `name`, with `kind` (linear, ntk, dynamic, yarn) applied."""
    shared = {id(weight): weight for weight in model.model.parameters()}
    twin = copy.deepcopy(model.model, shared)
    config = twin.config.get_text_config(decoder=False)
    plain = rope_parameters(config, 0)
    # transformers keeps one set of parameters, or one per layer type under the type's name.
    if "rope_theta" not in (getattr(config, "rope_parameters", None) or {}):
        raise _refusal(model)
    if plain.get("rope_type", "default") != "default":
        raise InputError(
            f"{model.spec.name} stretches its frequencies already ({plain['rope_type']}): leave "
            f"the extension out."
        )
    fraction = float(plain.get("partial_rotary_factor") or 1.0)
    dims = round(model.spec.head_dim * fraction)
    if dims <= 2 and kind in {"ntk", "dynamic"}:
        raise InputError(
            f"{kind!r} stretches the base, which needs a rotary width above 2, and "
            f"{model.spec.name} has {dims}: choose linear or yarn."
        )
    config.rope_parameters = {**plain, **_changes(kind, factor, trained, dims, plain)}
    if not _renew(twin, config):
        raise _refusal(model)
    return PublishedModel(twin, name, model.tokenizer, trained=model.spec.trained)


def _refusal(model: PublishedModel) -> InputError:
    return InputError(
        f"{model.spec.name} is a {type(model.model).__name__}, whose rotary frequencies "
        f"cannot be stretched."
    )


def _changes(
    kind: str, factor: float, trained: int, dims: int, plain: dict[str, Any]
) -> dict[str, Any]:
    """The RoPE parameters of an extension, in transformers' names."""
    if kind == "ntk":
        # transformers has no name for it: it is a larger base. The reader gets both numbers back.
        base = plain["rope_theta"]
        larger = base * factor ** (dims / (dims - 2))
        return {"rope_theta": larger, NTK: {"base": base, "factor": factor}}
    original = {"original_max_position_embeddings": trained} if kind == "yarn" else {}
    return {"rope_type": kind, "factor": factor, **original}


def _renew(model: Any, config: Any) -> bool:
    """Make every rotary module again; return whether there is one."""
    found = False
    for parent in list(model.modules()):
        for name, child in list(parent.named_children()):
            if "RotaryEmbedding" in type(child).__name__ and hasattr(child, "inv_freq"):
                setattr(parent, name, type(child)(config).to(model.device))
                found = True
    return found
