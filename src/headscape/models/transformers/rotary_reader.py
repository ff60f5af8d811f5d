"""RoPE in published models: which of our conventions rotates q and k as the model does.

Base and scaling come from the config. Pairing and rotary width are found by trying them on the
model's own q and k, so they do not depend on what a family is called.
"""

from typing import Any

import torch
from torch import Tensor

from headscape.call.positions import Positions
from headscape.encodings import Encoding, Shape, Side, make
from headscape.errors import InputError
from headscape.models.transformers.observed_call import ObservedCall
from headscape.models.transformers.rounding import rotation_agrees

SCALINGS = {
    "default": "none",
    "linear": "linear",
    "dynamic": "dynamic",
    "yarn": "yarn",
    "llama3": "llama3",
    "longrope": "longrope",
    "proportional": "proportional",
}
"""transformers' name of a scaling -> ours."""
NUMBERS = ("factor", "beta_fast", "beta_slow", "low_freq_factor", "high_freq_factor", "truncate")
LISTS = ("short_factor", "long_factor")
NTK = "headscape_ntk"
"""Entry of the RoPE parameters of a model that models/stretched.py gave a larger base."""


def rotates(call: ObservedCall) -> bool:
    """Whether the model changes q by position; False in a layer without position."""
    if call.unrotated is None:
        return False
    # A rotation changes a pair of dims by the size of its angle. A product of matrices of a
    # different batch size, as q is when a model is loaded, differs by roundings.
    gap = (call.q - call.unrotated[0]).abs().amax()
    return bool(gap > 64 * torch.finfo(call.q.dtype).eps * call.q.abs().amax())


def read_rotary(
    call: ObservedCall, config: Any, layer: int, shape: Shape, temperature: dict[str, Any]
) -> Encoding | None:
    """RoPE with the conventions that reproduce this layer's rotation, or None.

    `temperature` contains the fields of the layer's temperature.
    """
    # In a model that mixes attention with other layers, the module knows its place among them.
    place = getattr(call.module, "layer_idx", None)
    parameters = rope_parameters(config, layer if place is None else place)
    scaling = SCALINGS.get(str(parameters.get("rope_type", "default")))
    if scaling is None or call.unrotated is None:
        return None
    fields: dict[str, Any] = {
        name: bool(parameters[name]) if name == "truncate" else _number(parameters, name)
        for name in NUMBERS
        if scaling != "none" and parameters.get(name) is not None
    }
    fields |= {name: tuple(parameters[name]) for name in LISTS if scaling == "longrope"}
    fields |= {
        "scaling": scaling,
        "base": _number(parameters, "rope_theta", 10_000.0),
        **temperature,
    }
    original = parameters.get("original_max_position_embeddings")
    if scaling != "none" and original:
        fields["trained_length"] = int(_number(parameters, "original_max_position_embeddings"))
    if scaling == "longrope" and "factor" not in fields and original:
        fields["factor"] = config.max_position_embeddings / original
    fields |= {"scaling": "ntk", **parameters[NTK]} if NTK in parameters else {}
    for fraction in _fractions(call, config, parameters):
        for pairing in ("halves", "interleaved"):
            found = _try(call, shape, {**fields, "rotary_fraction": fraction, "pairing": pairing})
            if found is not None:
                return found
    return None


def rope_parameters(config: Any, layer: int) -> dict[str, Any]:
    """The RoPE settings of one layer, from a config that may have one set per layer type."""
    found = dict(getattr(config, "rope_parameters", None) or {})
    types = getattr(config, "layer_types", None)
    if types is not None and isinstance(found.get(types[layer]), dict):
        found = dict(found[types[layer]])
    if "mrope_section" in found:
        raise InputError(
            f"{config.model_type} uses M-RoPE, which rotates by three positions per token: "
            f"Headscape reads models with one position per token."
        )
    return found


def _number(parameters: dict[str, Any], name: str, default: float | None = None) -> float:
    value = default if parameters.get(name) is None else parameters[name]
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise InputError(f"{name} in the config's rope_parameters must be a number, got {value!r}.")
    return float(value)


def _try(call: ObservedCall, shape: Shape, fields: dict[str, Any]) -> Encoding | None:
    try:
        encoding = make("rope", shape, _with_factor(call, shape, fields))
    except InputError:
        return None
    positions = Positions.span(call.q.shape[2], call.k.shape[2], on=call.q.device)
    assert call.unrotated is not None
    q, k = call.unrotated
    asking, asked = Side(positions.q, "query"), Side(positions.k, "key")
    same = rotation_agrees(encoding.rotate(q, asking), call.q)
    same = same and rotation_agrees(encoding.rotate(k, asked), call.k)
    return encoding if same else None


def _with_factor(call: ObservedCall, shape: Shape, fields: dict[str, Any]) -> dict[str, Any]:
    """Add the factor on cos and sin where it is not the default: cos is that factor at angle 0."""
    if call.rotation is None or not isinstance(call.rotation[0], Tensor):
        return fields
    factor = float(call.rotation[0].flatten(0, -3)[0, 0].max())
    default = make("rope", shape, fields).attention_factor()  # type: ignore[operator]
    return fields if abs(factor - default) < 1e-6 else {**fields, "attention_factor": factor}


def _fractions(call: ObservedCall, config: Any, parameters: dict[str, Any]) -> list[float]:
    """The shares of the head dim that may be rotated, likeliest first."""
    head_dim = call.q.shape[-1]
    found: list[float] = []
    if parameters.get("rope_type") == "proportional":
        # The whole head is rotated, most of its pairs by the angle 0.
        return [(_number(parameters, "partial_rotary_factor", 1.0) or 1.0)]
    if call.rotation is not None:
        width = call.rotation[0].shape[-1]
        found += [width / head_dim, 2 * width / head_dim]
    if getattr(config, "rotary_dim", None):
        found.append(config.rotary_dim / head_dim)
    found += [(_number(parameters, "partial_rotary_factor", 1.0) or 1.0), 1.0]
    return [share for share in dict.fromkeys(found) if 0 < share <= 1]
