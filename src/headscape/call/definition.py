"""Dense attention: the definition that every faster path is tested against.

    content_ij = scale q_i . k_j                  q, k before any rotation
    mixed_ij   = temperature_i mixing(scale R(q_i) . R(k_j), B_ij)      without one, their sum
    final_ij   = softcap tanh(mixed_ij / softcap)
    weights_ij = exp(final_ij) / (exp(sink) + sum over visible j of exp(final_ij))
    out_i      = sum_j weights_ij v_j

Temperature, softcap and sink are left out where they are None. With a transition, the
tokens between key and query change the key in R(q_i) . R(k_j) (reflections.py, decay.py).
A weighting replaces the softmax. k and v may have fewer heads than q: consecutive query heads then
share keys and values (grouped queries).

Any dtype up to float64, any device, whole matrices in memory (or a block of rows at a time through
`scores`). The reported bias is the effective one, final - content: for an additive encoding the
bias itself, for RoPE the change made by the rotation, for DAPEv2 everything it adds to q.k. The
output of a query that sees no key is 0.
"""

from collections.abc import Callable
from dataclasses import dataclass, field

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor, inf

from headscape.call.bias import Bias, dense
from headscape.call.mixing import Mixing, Rows
from headscape.call.positions import ALL, Positions, Visible
from headscape.call.rotation import Turn
from headscape.call.transition import Transition
from headscape.call.weighting import Weighting


@dataclass(frozen=True)
class AttentionCall:
    """Everything one layer's attention is a function of, as data.

    `assemble` makes it from an encoding and a layer's queries, keys and values, and checks it. The
    definition and the kernels read nothing else.
    """

    q: Float[Tensor, "b h t e"]
    """Queries, rotated."""
    k: Float[Tensor, "b hk s e"]
    """Keys, rotated; hk divides h, and head n reads the keys and values of n hk // h."""
    v: Float[Tensor, "b hk s ev"]
    bias: Bias | None
    positions: Positions
    visible: Visible
    scale: float
    unrotated: tuple[Tensor, Tensor] | None = None
    """q and k before rotation and temperature, where either changes them; only a tap needs it.

    Without it (a cache stores only rotated keys) content is the rotated score.
    """
    mixing: Mixing | None = field(default=None, kw_only=True)
    """How whole rows of scores are mixed; None adds the bias."""
    weighting: Weighting | None = field(default=None, kw_only=True)
    """How weights follow from scores; None is the softmax."""
    turns: tuple[Turn, Turn] | None = field(default=None, kw_only=True)
    """What `unrotated` was turned by to give q and k, for encodings that turn pairs of dims."""
    temperature: Float[Tensor, "#b #h t"] | None = field(default=None, kw_only=True)
    """What each query's scores, bias included, are multiplied by."""
    softcap: float | None = field(default=None, kw_only=True)
    """Scores stay between minus and plus this."""
    sink: Float[Tensor, " h"] | None = field(default=None, kw_only=True)
    """The score of a key without a value, one per head, taken as it is."""
    transition: Transition | None = field(default=None, kw_only=True)
    """How keys change on the way to a query; the queries must then be those of the last t keys."""

    @property
    def score_transform(self) -> bool:
        """Whether something acts on scores after the bias: a temperature or a softcap."""
        return self.temperature is not None or self.softcap is not None


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


def scores(inputs: AttentionCall, rows: slice = ALL) -> Scores:
    """Return all scores and weights of the queries in `rows`."""
    q = inputs.q[:, :, rows]
    heads = q.shape[1]
    keys = shared(inputs.k, heads)
    if inputs.transition is None:
        rotated = inputs.scale * (q @ keys.mT)
    else:
        moved = inputs.transition.through(inputs.q, keys).scores(rows)
        later = keys.shape[2] - moved.shape[3]
        rotated = inputs.scale * F.pad(moved, (0, later)).to(q.dtype)
    if inputs.unrotated is None:
        content = rotated if inputs.transition is None else inputs.scale * (q @ keys.mT)
    else:
        raw_q, raw_k = inputs.unrotated
        content = inputs.scale * (raw_q[:, :, rows] @ shared(raw_k, heads).mT)
    added = None
    if inputs.bias is not None:
        added = dense(inputs.bias, inputs.positions, rows).to(rotated.dtype)
    seen, final, weights = weigh(inputs, rotated, added, rows)
    return Scores(content, _effective(inputs, content, added, final), final, weights, seen)


def weigh(
    inputs: AttentionCall,
    rotated: Float[Tensor, "b h r s"],
    added: Float[Tensor, "#b h r s"] | None,
    rows: slice = ALL,
) -> tuple[Bool[Tensor, "#b 1 r s"], Float[Tensor, "b h r s"], Float[Tensor, "b h r s"]]:
    """Return the mask, the final scores and the weights of the queries in `rows`.

    `rotated` is their scaled R(q) . R(k), `added` their bias.
    """
    at = inputs.positions.block(rows)
    seen = inputs.visible.block(rows).dense(at)
    if inputs.mixing is None:
        final = rotated if added is None else rotated + added
    else:
        final = inputs.mixing.final(Rows(rotated, added, seen, inputs.q[:, :, rows], at))
    if inputs.temperature is not None:
        final = final * inputs.temperature[:, :, rows, None].to(final.dtype)
    if inputs.softcap is not None:
        final = inputs.softcap * (final / inputs.softcap).tanh()
    if inputs.sink is not None:
        return seen, final, _softmax_with_sink(final, seen, inputs.sink)
    weights = softmax if inputs.weighting is None else inputs.weighting.weights
    return seen, final, weights(final, seen)


def shared(x: Float[Tensor, "b hk s e"], heads: int) -> Float[Tensor, "b h s e"]:
    """Return keys or values repeated for every query head."""
    return x if x.shape[1] == heads else x.repeat_interleave(heads // x.shape[1], dim=1)


def softmax(
    scores: Float[Tensor, "b h t s"], visible: Bool[Tensor, "#b 1 t s"]
) -> Float[Tensor, "b h t s"]:
    """Return the softmax over visible keys; 0 where hidden, and in a row that sees no key."""
    sees_any = visible.any(dim=-1, keepdim=True)
    masked = scores.masked_fill(~visible, -inf).masked_fill(~sees_any, 0.0)
    return masked.softmax(dim=-1) * sees_any


def _softmax_with_sink(
    final: Float[Tensor, "b h t s"], seen: Bool[Tensor, "#b 1 t s"], sink: Float[Tensor, " h"]
) -> Float[Tensor, "b h t s"]:
    sees_any = seen.any(dim=-1, keepdim=True)
    masked = final.masked_fill(~seen, -inf).masked_fill(~sees_any, 0.0)
    beside = sink.to(final.dtype)[:, None, None].expand(*final.shape[:3], 1)
    return torch.cat([masked, beside], dim=-1).softmax(dim=-1)[..., :-1] * sees_any


def _effective(
    inputs: AttentionCall, content: Tensor, added: Tensor | None, final: Tensor
) -> Float[Tensor, "b h t s"]:
    """Return final - content; for a plain bias the bias itself, without the rounding of the sum."""
    turned = inputs.unrotated is not None or inputs.transition is not None
    if inputs.mixing is not None or turned or inputs.score_transform:
        return final - content
    return torch.zeros_like(content) if added is None else added.expand_as(content)


def refuses(inputs: AttentionCall) -> str | None:  # noqa: ARG001
    """Return None: every call is served."""
    return None


def run(inputs: AttentionCall, tap: Tap | None = None) -> Float[Tensor, "b h t ev"]:
    """Return dense attention; `tap` is called with all scores."""
    found = scores(inputs)
    if tap is not None:
        tap(found)
    return found.weights @ shared(inputs.v, inputs.q.shape[1])
