"""Temperatures of published models: factors of a query's scores that grow with its position.

Llama 4 multiplies the queries of its layers without RoPE, Ministral 3 and Mistral 4 those of every
layer. The config states the rule; `same_growth` compares it with what the model does.
"""

from typing import Any

import torch

from headscape.call.positions import Positions
from headscape.encodings import Encoding
from headscape.models.transformers.attention_call import ObservedCall
from headscape.models.transformers.rounding import allowance


def temperature_fields(call: ObservedCall, config: Any) -> dict[str, Any]:
    """Return the fields of the temperature that the config states for a layer, or none."""
    module: Any = call.module
    if getattr(module, "attn_temperature_tuning", None) and not getattr(module, "use_rope", True):
        return _fields("llama4", module.attn_scale, module.floor_scale)
    parameters = getattr(config, "rope_parameters", None) or {}
    if parameters.get("llama_4_scaling_beta"):
        start = parameters["original_max_position_embeddings"]
        return _fields("ministral", parameters["llama_4_scaling_beta"], start)
    return {}


def same_growth(call: ObservedCall, encoding: Encoding) -> bool:
    """Return whether the model's queries grow with position as the encoding's temperature does."""
    if call.growth is None:
        return call.shares_position
    positions = Positions.span(len(call.growth), on=call.growth.device)
    factor = encoding.temperature(positions.q)
    expected = torch.ones_like(call.growth) if factor is None else factor[0, 0] / factor[0, 0, 0]
    within = max(1e-4, allowance(call.q.dtype))
    same = (call.growth - expected).abs().amax() <= within * expected.amax()
    return call.shares_position and bool(same)


def _fields(kind: str, rate: float, start: float) -> dict[str, Any]:
    return {"temperature": kind, "temperature_rate": float(rate), "temperature_start": int(start)}
