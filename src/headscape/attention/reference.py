"""Attention written out: the definition that every faster path is tested against.

    content_ij = scale q_i . k_j                  q, k before any rotation
    final_ij   = mix(scale R(q_i) . R(k_j), B_ij)
    weights_ij = softmax over visible j of final_ij
    out_i      = sum_j weights_ij v_j

Any dtype up to float64, any device, whole matrices in memory (or a block of rows at a time through
`scores`). The bias that is reported is the effective one, final - content: for an additive
encoding the bias itself, for RoPE what the rotation changes, for DAPEv2 what it adds to q.k.
A query that sees no key gives zeros.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float
from torch import Tensor, inf

from headscape.bias import Bias, dense
from headscape.encodings import Encoding
from headscape.errors import InputError
from headscape.types import ALL, Positions, Visible


@dataclass(frozen=True)
class AttentionInputs:
    """Everything one layer's attention is a function of."""

    q: Float[Tensor, "b h t e"]
    """Queries, rotated."""
    k: Float[Tensor, "b h s e"]
    """Keys, rotated."""
    v: Float[Tensor, "b h s e"]
    encoding: Encoding
    bias: Bias | None
    positions: Positions
    visible: Visible
    scale: float
    unrotated: tuple[Tensor, Tensor] | None = None
    """q and k before rotation, where that changes them; only a tap needs it.

    Without it (a cache keeps rotated keys alone) content is the rotated score.
    """


@dataclass(frozen=True)
class Scores:
    """Every number between q.k and the softmax, for some of the queries."""

    content: Float[Tensor, "b h t s"]
    """Scaled q.k before rotation and bias."""
    bias: Float[Tensor, "b h t s"]
    """The effective positional bias, final - content."""
    final: Float[Tensor, "b h t s"]
    """What the softmax takes, hidden entries included as they come."""
    weights: Float[Tensor, "b h t s"]
    """Attention weights; 0 where hidden."""
    visible: Bool[Tensor, "#b 1 t s"]
    """Where a query sees a key."""


Tap = Callable[[Scores], None]


def scores(inputs: AttentionInputs, rows: slice = ALL) -> Scores:
    """All scores of the queries in `rows`."""
    q = inputs.q[:, :, rows]
    turned = inputs.scale * (q @ inputs.k.mT)
    if inputs.unrotated is None:
        content = turned
    else:
        content = inputs.scale * (inputs.unrotated[0][:, :, rows] @ inputs.unrotated[1].mT)
    seen = inputs.visible.block(rows).dense(inputs.positions.block(rows))
    added = None
    if inputs.bias is not None:
        added = dense(inputs.bias, inputs.positions, rows).to(turned.dtype)
    final = inputs.encoding.mix(turned, added, seen, q)
    anything = seen.any(dim=-1, keepdim=True)
    masked = final.masked_fill(~seen, -inf).masked_fill(~anything, 0.0)
    weights = masked.softmax(dim=-1) * anything
    return Scores(content, _effective(inputs, content, added, final), final, weights, seen)


def _effective(
    inputs: AttentionInputs, content: Tensor, added: Tensor | None, final: Tensor
) -> Float[Tensor, "b h t s"]:
    """What position changes; where that is the added bias, the bias itself and not its rounding."""
    if inputs.encoding.mixes or inputs.unrotated is not None:
        return final - content
    return torch.zeros_like(content) if added is None else added.expand_as(content)


def attend(inputs: AttentionInputs, tap: Tap | None = None) -> Float[Tensor, "b h t e"]:
    """Dense attention; `tap` is shown every intermediate score."""
    if tap is not None and inputs.encoding.rotates and inputs.unrotated is None:
        raise InputError("a tap cannot tell content from rotation: hand in `unrotated` too.")
    every = scores(inputs)
    if tap is not None:
        tap(every)
    return every.weights @ inputs.v
