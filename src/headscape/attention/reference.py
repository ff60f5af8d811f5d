"""Dense attention: the definition that every faster path is tested against.

    content_ij = scale q_i . k_j                  q, k before any rotation
    final_ij   = mix(scale R(q_i) . R(k_j), B_ij)
    weights_ij = softmax over visible j of final_ij
    out_i      = sum_j weights_ij v_j

Any dtype up to float64, any device, whole matrices in memory (or a block of rows at a time through
`scores`). The reported bias is the effective one, final - content: for an additive encoding the
bias itself, for RoPE the change made by the rotation, for DAPEv2 everything it adds to q.k. The
output of a query that sees no key is 0.
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
    """The arguments of one layer's attention."""

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
    """q and k before rotation, for encodings that rotate; only a tap needs it.

    Without it (a cache stores only rotated keys) content is the rotated score.
    """


@dataclass(frozen=True)
class Scores:
    """All scores and weights of some of the queries."""

    content: Float[Tensor, "b h t s"]
    """Scaled q.k before rotation and bias."""
    bias: Float[Tensor, "b h t s"]
    """The effective positional bias, final - content."""
    final: Float[Tensor, "b h t s"]
    """The scores before the mask; hidden entries have no meaning."""
    weights: Float[Tensor, "b h t s"]
    """Attention weights; 0 where hidden."""
    visible: Bool[Tensor, "#b 1 t s"]
    """True where the query sees the key."""


Tap = Callable[[Scores], None]


def scores(inputs: AttentionInputs, rows: slice = ALL) -> Scores:
    """Return all scores and weights of the queries in `rows`."""
    q = inputs.q[:, :, rows]
    rotated = inputs.scale * (q @ inputs.k.mT)
    if inputs.unrotated is None:
        content = rotated
    else:
        content = inputs.scale * (inputs.unrotated[0][:, :, rows] @ inputs.unrotated[1].mT)
    seen = inputs.visible.block(rows).dense(inputs.positions.block(rows))
    added = None
    if inputs.bias is not None:
        added = dense(inputs.bias, inputs.positions, rows).to(rotated.dtype)
    final = inputs.encoding.mix(rotated, added, seen, q)
    sees_any = seen.any(dim=-1, keepdim=True)
    masked = final.masked_fill(~seen, -inf).masked_fill(~sees_any, 0.0)
    weights = masked.softmax(dim=-1) * sees_any
    return Scores(content, _effective(inputs, content, added, final), final, weights, seen)


def _effective(
    inputs: AttentionInputs, content: Tensor, added: Tensor | None, final: Tensor
) -> Float[Tensor, "b h t s"]:
    """Return final - content; for a plain bias the bias itself, without the rounding of the sum."""
    if inputs.encoding.mixes or inputs.unrotated is not None:
        return final - content
    return torch.zeros_like(content) if added is None else added.expand_as(content)


def attend(inputs: AttentionInputs, tap: Tap | None = None) -> Float[Tensor, "b h t e"]:
    """Return dense attention; `tap` is called with all scores."""
    if tap is not None and inputs.encoding.rotates and inputs.unrotated is None:
        raise InputError(
            "a tap needs q and k before rotation to separate content from position: "
            "pass `unrotated`."
        )
    found = scores(inputs)
    if tap is not None:
        tap(found)
    return found.weights @ inputs.v
