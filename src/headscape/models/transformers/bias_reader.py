"""Biases of published models: which encoding of ours gives what a layer adds to its scores.

    alibi      BLOOM adds m j, MPT m (j - longest), Falcon m j rounded to bfloat16 and divided by
               sqrt(head dim). All equal -m (i - j) up to a constant per query, which the softmax
               ignores.
    buckets    T5 and mT5 have one table in the first layer, umT5 one in every layer, MPNet and
               LayoutLMv3 one in their encoder.
    relative   the layer's own parameters in one of our encodings that read queries and keys

The bias that the model itself computes decides whether a layer is recognised.
"""

from typing import Any

import torch
from torch import Tensor, nn

from headscape.call.bias import dense
from headscape.call.positions import Positions
from headscape.encodings import Encoding, Shape, make
from headscape.errors import InputError
from headscape.models.transformers.families import family_of
from headscape.models.transformers.observed_call import ObservedCall
from headscape.models.transformers.rounding import allowance, bias_agrees


def read_alibi(call: ObservedCall, shape: Shape) -> Encoding | None:
    """Return ALiBi with the slopes that reproduce this layer's bias, or None."""
    family = family_of(call.module)
    rounding = torch.finfo(torch.bfloat16).eps if family.rounds_bias else 0.0
    every = (make("alibi", shape, dict(fields)) for fields in family.alibi)
    return next((found for found in every if _agrees(call, found, rounding)), None)


def read_buckets(call: ObservedCall, body: nn.Module, config: Any, shape: Shape) -> Encoding | None:
    """Return T5's encoding around the model's own table if it gives this layer's bias, or None."""
    table = _bucket_table(call.module, body)
    if table is None or table.shape[1] != shape.heads:
        return None
    longest = getattr(
        config, "relative_attention_max_distance", getattr(config, "max_rel_pos", 128)
    )
    for multiplier in ("one", "inverse_sqrt_head_dim"):
        fields = {"buckets": table.shape[0], "max_distance": longest, "multiplier": multiplier}
        try:
            encoding = make("t5", shape, fields)
        except InputError:
            return None
        encoding.table.weight = nn.Parameter(table.detach(), requires_grad=False)  # type: ignore[union-attr]
        if _agrees(call, encoding):
            return encoding
    return None


def read_relative(
    call: ObservedCall, body: nn.Module, config: Any, shape: Shape
) -> Encoding | None:
    """Return the encoding around the layer's parameters if it gives the layer's bias, or None."""
    assert call.relative is not None
    fields, tensors = dict(call.relative.fields), dict(call.relative.tensors)
    if (shared := call.relative.shared) is not None:
        every = body.named_parameters()
        tensors[shared] = next(value for path, value in every if path.endswith(shared))
    if getattr(config, "clamp_len", -1) > 0:
        fields["clamp"] = config.clamp_len
    try:
        encoding = make(call.relative.name, shape, fields).to(call.q)
    except InputError:
        return None
    encoding.load_published(tensors)
    encoding.requires_grad_(requires_grad=False)
    return encoding if _agrees(call, encoding) else None


def _agrees(call: ObservedCall, encoding: Encoding, rounding: float = 0.0) -> bool:
    """Return whether an encoding gives the bias of a call; `rounding` is a family's own."""
    assert call.bias is not None
    positions = Positions.span(call.q.shape[2], call.k.shape[2], on=call.q.device)
    bias = call.bias_of(encoding, positions)
    assert bias is not None
    within = max(rounding, allowance(call.q.dtype))
    return bias_agrees(dense(bias, positions), call.bias, call.seen(), within=within)


def _bucket_table(module: nn.Module, body: nn.Module) -> Tensor | None:
    """Return the table of this layer, or else the first one of the model."""
    name = family_of(module).bucket_table
    own = getattr(module, name, None)
    parts = [] if own is None else [own]
    parts += [part for path, part in body.named_modules() if path.endswith(name)]
    for part in parts:
        if isinstance(part, nn.Embedding):
            return part.weight
        if isinstance(part, nn.Linear):
            return part.weight.T
    return None
