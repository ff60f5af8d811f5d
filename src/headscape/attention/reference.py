"""Dense attention: the definition that every faster path is tested against.

    content_ij = scale q_i . k_j                  q, k before any rotation
    mixed_ij   = temperature_i mix(scale R(q_i) . R(k_j), B_ij)
    final_ij   = softcap tanh(mixed_ij / softcap)
    weights_ij = exp(final_ij) / (exp(sink) + sum over visible j of exp(final_ij))
    out_i      = sum_j weights_ij v_j

Temperature, softcap and sink are left out where they are None. With a transition, the
tokens between key and query change the key in R(q_i) . R(k_j) (encodings/reflections.py, decay.py).
An encoding may compute its own weights (`weigh`). k and v may have fewer heads than q: consecutive
query heads then share keys and values (grouped queries).

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

from headscape.bias import Bias, covered_distances, dense
from headscape.encodings import Encoding
from headscape.encodings.stream import Transition
from headscape.errors import InputError
from headscape.types import ALL, Positions, Visible


@dataclass(frozen=True)
class AttentionInputs:
    """The arguments of one layer's attention."""

    q: Float[Tensor, "b h t e"]
    """Queries, rotated."""
    k: Float[Tensor, "b hk s e"]
    """Keys, rotated; hk divides h, and head n reads the keys and values of n hk // h."""
    v: Float[Tensor, "b hk s ev"]
    encoding: Encoding
    bias: Bias | None
    positions: Positions
    visible: Visible
    scale: float
    unrotated: tuple[Tensor, Tensor] | None = None
    """q and k before rotation, for encodings that rotate; only a tap needs it.

    Without it (a cache stores only rotated keys) content is the rotated score.
    """
    temperature: Float[Tensor, "#b #h t"] | None = field(default=None, kw_only=True)
    """What each query's scores, bias included, are multiplied by."""
    softcap: float | None = field(default=None, kw_only=True)
    """Scores stay between minus and plus this."""
    sink: Float[Tensor, " h"] | None = field(default=None, kw_only=True)
    """The score of a key without a value, one per head, taken as it is."""
    transition: Transition | None = field(default=None, kw_only=True)
    """How keys change on the way to a query; the queries must then be those of the last t keys."""

    def __post_init__(self) -> None:
        if self.encoding.moves_keys and self.transition is None:
            raise InputError(
                f"{self.encoding.title} needs the transition of its stream: pass transition= or "
                f"call attention()."
            )
        if self.bias is not None:
            self._check_distances(self.bias)

    def _check_distances(self, bias: Bias) -> None:
        """Raise InputError unless the bias's table has every distance that the mask may show.

        Every path reads the table by a clamped index, since hidden pairs may lie outside of it, so
        a visible pair outside of it would silently get the value of a nearer one.
        """
        covered, (low, high) = covered_distances(bias), self.positions.bounds
        reach = self.visible.chunk if self.visible.window is None else self.visible.window
        if reach is not None:
            low, high = max(low, 1 - reach), min(high, reach - 1)
        if self.visible.causal:
            low = max(low, 0)
        if covered is not None and low <= high and not covered[0] <= low <= high <= covered[1]:
            check_direction(self)
            raise InputError(
                f"the bias of {self.encoding.title} covers distances {covered[0]} to {covered[1]}, "
                f"but the positions have {low} to {high}: build it for this call with "
                f"encoding.bias(positions, ...), whose table must cover every distance."
            )

    @property
    def bends(self) -> bool:
        """Whether something acts on scores after the bias: a temperature or a softcap."""
        return self.temperature is not None or self.softcap is not None


def check_direction(inputs: AttentionInputs) -> None:
    """Raise InputError for a causal encoding under a bidirectional mask, if a key follows its query."""
    encoding = inputs.encoding
    if inputs.visible.causal or not encoding.shape.causal or inputs.positions.bounds[0] >= 0:
        return
    if encoding.no_bidirectional_form:
        raise InputError(
            f"{encoding.title} has no bidirectional form, because "
            f"{encoding.no_bidirectional_form}: use a causal mask."
        )
    if encoding.adds_bias:
        raise InputError(
            f"{encoding.title} was built for causal attention, but the mask is bidirectional: "
            f"build it with causal=False."
        )


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
    inputs: AttentionInputs,
    rotated: Float[Tensor, "b h r s"],
    added: Float[Tensor, "#b h r s"] | None,
    rows: slice = ALL,
) -> tuple[Bool[Tensor, "#b 1 r s"], Float[Tensor, "b h r s"], Float[Tensor, "b h r s"]]:
    """Return the mask, the final scores and the weights of the queries in `rows`.

    `rotated` is their scaled R(q) . R(k), `added` their bias.
    """
    seen = inputs.visible.block(rows).dense(inputs.positions.block(rows))
    final = inputs.encoding.mix(rotated, added, seen, inputs.q[:, :, rows])
    if inputs.temperature is not None:
        final = final * inputs.temperature[:, :, rows, None].to(final.dtype)
    if inputs.softcap is not None:
        final = inputs.softcap * (final / inputs.softcap).tanh()
    if inputs.sink is None:
        return seen, final, inputs.encoding.weigh(final, seen)
    return seen, final, _softmax_with_sink(final, seen, inputs.sink)


def shared(x: Float[Tensor, "b hk s e"], heads: int) -> Float[Tensor, "b h s e"]:
    """Return keys or values repeated for every query head."""
    return x if x.shape[1] == heads else x.repeat_interleave(heads // x.shape[1], dim=1)


def _softmax_with_sink(
    final: Float[Tensor, "b h t s"], seen: Bool[Tensor, "#b 1 t s"], sink: Float[Tensor, " h"]
) -> Float[Tensor, "b h t s"]:
    sees_any = seen.any(dim=-1, keepdim=True)
    masked = final.masked_fill(~seen, -inf).masked_fill(~sees_any, 0.0)
    beside = sink.to(final.dtype)[:, None, None].expand(*final.shape[:3], 1)
    return torch.cat([masked, beside], dim=-1).softmax(dim=-1)[..., :-1] * sees_any


def _effective(
    inputs: AttentionInputs, content: Tensor, added: Tensor | None, final: Tensor
) -> Float[Tensor, "b h t s"]:
    """Return final - content; for a plain bias the bias itself, without the rounding of the sum."""
    turned = inputs.unrotated is not None or inputs.transition is not None
    if inputs.encoding.mixes or turned or inputs.bends:
        return final - content
    return torch.zeros_like(content) if added is None else added.expand_as(content)


def attend(inputs: AttentionInputs, tap: Tap | None = None) -> Float[Tensor, "b h t ev"]:
    """Return dense attention; `tap` is called with all scores."""
    if tap is not None and inputs.encoding.rotates and inputs.unrotated is None:
        raise InputError(
            "a tap needs q and k before rotation to separate content from position: "
            "pass `unrotated`."
        )
    found = scores(inputs)
    if tap is not None:
        tap(found)
    return found.weights @ shared(inputs.v, inputs.q.shape[1])
