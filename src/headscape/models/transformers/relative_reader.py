"""Relative attention in published models: a layer's own parameters in our encodings.

The bias that the model itself computes decides whether a layer is recognised.
"""

from typing import Any

from torch import Tensor, nn

from headscape.call.bias import dense
from headscape.call.positions import Positions
from headscape.encodings import Encoding, Shape, make
from headscape.errors import InputError
from headscape.models.transformers.attention_call import ObservedCall
from headscape.models.transformers.rounding import allowance, bias_agrees


def read_relative(
    call: ObservedCall, body: nn.Module, config: Any, shape: Shape
) -> Encoding | None:
    """The encoding around the layer's parameters if it gives the layer's bias, or None."""
    assert call.relative is not None
    assert call.bias is not None
    fields, tensors = dict(call.relative.fields), dict(call.relative.tensors)
    if call.relative.shared is not None:
        tensors[call.relative.shared] = _first(body, call.relative.shared)
    if getattr(config, "clamp_len", -1) > 0:
        fields["clamp"] = config.clamp_len
    try:
        encoding = make(call.relative.name, shape, fields).to(call.q)
    except InputError:
        return None
    encoding.load_published(tensors)
    encoding.requires_grad_(requires_grad=False)
    positions = Positions.span(call.q.shape[2], call.k.shape[2], on=call.q.device)
    bias = call.bias_of(encoding, positions)
    assert bias is not None
    within = allowance(call.q.dtype)
    same = bias_agrees(dense(bias, positions), call.bias, call.seen(), within=within)
    return encoding if same else None


def _first(body: nn.Module, name: str) -> Tensor:
    """Return the first parameter of a model whose name ends like this."""
    return next(value for path, value in body.named_parameters() if path.endswith(name))
