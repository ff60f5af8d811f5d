"""What a remedy does to an attention call, as data and arithmetic.

    Frequencies   RoPE with other fields: linear, NTK, dynamic, YaRN, LongRoPE, slow pairs cut
    NoRotation    no rotation in some layers
    Clipped       distances from `near` on become `near`                       ReRoPE
    Grouped       distances from `near` on count in groups of positions       SelfExtend,
                  arXiv:2401.01325: floor(i/G) - floor(j/G) + near - floor(near/G)
    SinkWindow    the last `window` keys and the first `sinks` keys, which stand directly before
                  the window                                    StreamingLLM, arXiv:2309.17453
    Gap           tokens from `after` on stand `by` positions later: far positions, the same keys
    Chunks        keys of the query's own block of positions
    LogTemperature  scores times max(1, ln(i + 1) / ln L)                     arXiv:2202.12172
    BiasStretched   B(d) becomes B(d / f)
    BiasClipped     B(d) becomes B(min(d, L - 1))

Every class is a function of a layer and a call (`Change` of models/changed.py), and `refuses` says
why it does not apply to a model. Two scores per pair (near and far positions) are one call: the
near score is q.k, and a bias adds far minus near where the distance is large.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from headscape.call.bias import Bias, Pairwise, Slope, Toeplitz, total
from headscape.call.definition import AttentionCall, shared
from headscape.encodings import Encoding, Shape, Side, make
from headscape.encodings.base import SHARED
from headscape.encodings.rope import RoPEConfig
from headscape.errors import InputError
from headscape.models.model import Spec

HIDDEN = -1e30
"""Added to the score of a key that is not seen: finite, and its weight is exactly 0."""
ROPE_FIELDS = frozenset(item.name for item in fields(RoPEConfig)) - SHARED
WITHIN = 1e-3
"""Relative difference up to which a rotation counts as repeated; angles are float32 in models."""


@dataclass(frozen=True)
class Rotations:
    """The RoPE of every layer of a model that has one, with some fields changed."""

    spec: Spec
    changes: Mapping[str, Any] = field(default_factory=dict)
    _made: dict[int, Encoding] = field(default_factory=dict, compare=False, repr=False)

    def layer(self, layer: int) -> Encoding | None:
        """Return the RoPE of a layer, counted from 0; None in a layer without."""
        spec = self.spec.layers[layer]
        if spec.encoding != "rope":
            return None
        if layer not in self._made:
            kept = {name: spec.conventions[name] for name in ROPE_FIELDS & set(spec.conventions)}
            shape = Shape(
                heads=self.spec.heads,
                head_dim=self.spec.head_dim,
                width=self.spec.width,
                train_length=self.spec.train_length,
                causal=self.spec.causal,
            )
            self._made[layer] = make("rope", shape, {**kept, **self.changes})
        return self._made[layer]

    def turned(
        self, layer: int, call: AttentionCall, at: tuple[Tensor, Tensor] | None = None
    ) -> tuple[Float[Tensor, "b h t e"], Float[Tensor, "b hk s e"]]:
        """Return q and k of a call at other positions; `at` is those of queries and of keys."""
        encoding = self.layer(layer)
        assert encoding is not None
        assert call.unrotated is not None
        q_at, k_at = (call.positions.q, call.positions.k) if at is None else at
        q, k = call.unrotated
        return encoding.rotate(q, Side(q_at, "query")), encoding.rotate(k, Side(k_at, "key"))

    def check(self, layer: int, call: AttentionCall) -> None:
        """Raise unless the call's own positions give the call's own q and k."""
        if call.unrotated is None:
            raise InputError(
                f"layer {layer} (counted from 0) of {self.spec.name} does not show its queries "
                f"before rotation, so its positions cannot be changed."
            )
        q, k = self.turned(layer, call)
        for mine, theirs in ((q, call.q), (k, call.k)):
            gap = float((mine - theirs).abs().amax())
            if gap > WITHIN * (1e-6 + float(theirs.abs().amax())) * math.log2(call.k.shape[2] + 2):
                raise InputError(
                    f"layer {layer} (counted from 0) of {self.spec.name} does not rotate as its "
                    f"config says (they differ by {gap:.2g}), so its positions cannot be changed."
                )


def needs_rope(spec: Spec) -> str | None:
    """Return why a change of positions does not apply; None if a layer has RoPE."""
    if any(layer.encoding == "rope" for layer in spec.layers):
        return None
    return f"it changes RoPE, and the encoding is {spec.encoding}"


def needs_known_rope(spec: Spec) -> str | None:
    """Return why RoPE cannot be repeated from a spec, which has no weights; None if it can."""
    if any(layer.conventions.get("learned_frequencies") for layer in spec.layers):
        return "it repeats RoPE from its settings, and the frequencies are learned"
    return needs_rope(spec)


@dataclass(frozen=True)
class Frequencies:
    """RoPE with some fields changed."""

    plain: Rotations
    changed: Rotations

    @classmethod
    def of(cls, spec: Spec, **changes: Any) -> "Frequencies":
        """Return the change of a model's RoPE fields."""
        return cls(Rotations(spec), Rotations(spec, changes))

    def refuses(self, spec: Spec) -> str | None:
        """Return why it does not apply."""
        if needs_known_rope(spec):
            return needs_known_rope(spec)
        kinds = {layer.conventions.get("scaling", "none") for layer in spec.layers}
        if kinds - {"none"}:
            named = ", ".join(sorted(str(kind) for kind in kinds - {"none"}))
            return f"its frequencies are stretched already ({named})"
        return None

    def __call__(self, layer: int, call: AttentionCall) -> AttentionCall:
        """Return the call with q and k turned by the changed frequencies."""
        encoding = self.changed.layer(layer)
        if encoding is None:
            return call
        self.plain.check(layer, call)
        q, k = self.changed.turned(layer, call)
        sides = Side(call.positions.q, "query"), Side(call.positions.k, "key")
        return replace(call, q=q, k=k, turns=encoding.turns(*sides))


@dataclass(frozen=True)
class NoRotation:
    """No rotation in some layers, counted from 0."""

    layers: tuple[int, ...]

    def refuses(self, spec: Spec) -> str | None:
        """Return why it does not apply."""
        return needs_rope(spec)

    def __call__(self, layer: int, call: AttentionCall) -> AttentionCall:
        """Return the call with q and k as they were before rotation."""
        if layer not in self.layers or call.unrotated is None:
            return call
        q, k = call.unrotated
        return replace(call, q=q, k=k, unrotated=None, turns=None)


@dataclass(frozen=True)
class TurnedAgain(ABC):
    """RoPE turned by positions that are not the tokens' own; layers without it stay as they are."""

    rotations: Rotations

    def refuses(self, spec: Spec) -> str | None:
        """Return why it does not apply."""
        return needs_known_rope(spec)

    def __call__(self, layer: int, call: AttentionCall) -> AttentionCall:
        """Return the changed call, after checking that the model turns as its settings say."""
        if self.rotations.layer(layer) is None:
            return call
        self.rotations.check(layer, call)
        return self.changed(layer, call)

    @abstractmethod
    def changed(self, layer: int, call: AttentionCall) -> AttentionCall:
        """Return the call of a layer that has RoPE."""


@dataclass(frozen=True)
class Clipped(TurnedAgain):
    """Distances from `near` on become `near`; only some heads if `heads` names them."""

    near: int
    heads: tuple[int, ...] | None = None

    def changed(self, layer: int, call: AttentionCall) -> AttentionCall:
        """Return the call with far pairs at the distance `near`."""
        q_at = torch.full_like(call.positions.q, self.near)
        far = self.rotations.turned(layer, call, (q_at, torch.zeros_like(call.positions.k)))
        return with_far(call, far, self.near, self.heads)


@dataclass(frozen=True)
class Grouped(TurnedAgain):
    """Distances from `near` on count in groups of `size` positions."""

    near: int
    size: int

    def positions(self, call: AttentionCall) -> tuple[Int[Tensor, "#b t"], Int[Tensor, "#b s"]]:
        """Return the grouped positions of queries and keys."""
        q, k = (at.div(self.size, rounding_mode="floor") for at in _positions(call))
        return q + self.near - self.near // self.size, k

    def changed(self, layer: int, call: AttentionCall) -> AttentionCall:
        """Return the call with far pairs at grouped positions."""
        far = self.rotations.turned(layer, call, self.positions(call))
        return with_far(call, far, self.near)


@dataclass(frozen=True)
class SinkWindow:
    """The last `window` keys, and the first `sinks` keys directly before them."""

    rotations: Rotations
    window: int
    sinks: int

    def refuses(self, spec: Spec) -> str | None:
        """Return why it does not apply."""
        if not spec.causal:
            return "it is for causal models"
        return None if needs_rope(spec) else needs_known_rope(spec)

    def __call__(self, layer: int, call: AttentionCall) -> AttentionCall:
        """Return the call without the keys between the sinks and the window."""
        far = None
        if self.rotations.layer(layer) is not None:
            self.rotations.check(layer, call)
            last = self.window + self.sinks - 1
            q_at = call.positions.q.clamp(max=last)
            sinks = _keys(call, slice(0, self.sinks))
            q, k = self.rotations.turned(layer, sinks, (q_at, sinks.positions.k))
            far = (q, k)
        window, count, heads = self.window, self.sinks, call.q.shape[1]
        own_q, own_k, scale = call.q, call.k, call.scale
        q_pos, k_pos = _positions(call)

        def hidden(rows: slice, cols: slice) -> Tensor:
            distance = q_pos[:, rows, None] - k_pos[:, None, cols]
            kept = torch.arange(own_k.shape[2], device=own_k.device)[cols] < count
            gone = (distance >= window) & ~kept
            added = gone.to(own_q.dtype)[:, None] * HIDDEN
            if far is None or not bool(kept.any()):
                return added.expand(-1, heads, -1, -1)
            some = slice(cols.start or 0, (cols.start or 0) + int(kept.sum()))
            moved = far[0][:, :, rows] @ shared(far[1][:, :, some], heads).mT
            moved = moved - own_q[:, :, rows] @ shared(own_k[:, :, some], heads).mT
            beyond = (distance[..., : int(kept.sum())] >= window)[:, None]
            added = added.expand(len(moved), heads, -1, -1).clone()
            added[..., : int(kept.sum())] = torch.where(beyond, scale * moved, 0.0)
            return added

        bias = total([call.bias, Pairwise(hidden, call.positions)], call.positions)
        return replace(call, bias=bias)


@dataclass(frozen=True)
class Gap(TurnedAgain):
    """Tokens from index `after` on stand `by` positions later; every query sees the same keys."""

    after: int
    by: int

    def changed(self, layer: int, call: AttentionCall) -> AttentionCall:
        """Return the call turned by the later positions; its own positions stay indices."""
        q_at, k_at = (at + self.by * (at >= self.after) for at in _positions(call))
        q, k = self.rotations.turned(layer, call, (q_at, k_at))
        return replace(call, q=q, k=k, turns=None)


@dataclass(frozen=True)
class Chunks:
    """Keys of the query's own block of `size` positions."""

    size: int

    def refuses(self, spec: Spec) -> str | None:
        """Return why it does not apply."""
        windowed = any(layer.conventions.get("window") for layer in spec.layers)
        return "its layers have a window already" if windowed else None

    def __call__(self, layer: int, call: AttentionCall) -> AttentionCall:  # noqa: ARG002
        """Return the call with chunks."""
        return replace(call, visible=replace(call.visible, chunk=self.size))


@dataclass(frozen=True)
class LogTemperature:
    """Scores of query i times max(1, ln(i + 1) / ln start)."""

    start: int

    def refuses(self, spec: Spec) -> str | None:
        """Return why it does not apply."""
        mixes = any(not layer.claims.get("pointwise", True) for layer in spec.layers)
        return "it mixes whole rows of scores, which leaves no place for it" if mixes else None

    def __call__(self, layer: int, call: AttentionCall) -> AttentionCall:  # noqa: ARG002
        """Return the call with the temperature."""
        grown = (call.positions.q.double() + 1).log() / math.log(self.start)
        factor = grown.clamp(min=1.0)[:, None]
        before = call.temperature
        return replace(call, temperature=factor if before is None else before * factor)


@dataclass(frozen=True)
class BiasStretched:
    """B(d) becomes B(d / factor), linear between whole distances."""

    factor: float

    def refuses(self, spec: Spec) -> str | None:
        """Return why it does not apply."""
        return _needs_bias(spec, {"alibi", "t5", "kerple", "sandwich", "cable", "fox"})

    def __call__(self, layer: int, call: AttentionCall) -> AttentionCall:  # noqa: ARG002
        """Return the call with its bias stretched."""
        return replace(call, bias=self.stretched(call.bias))

    def stretched(self, bias: Bias | None) -> Bias | None:
        """Return a bias by distance or by slope, stretched."""
        if isinstance(bias, Slope):
            return Slope(bias.weight, bias.row / self.factor, bias.col / self.factor)
        if not isinstance(bias, Toeplitz):
            return bias
        distance = torch.arange(bias.table.shape[1], device=bias.table.device) - bias.zero
        where = distance.double() / self.factor + bias.zero
        low = where.floor().long().clamp(0, bias.table.shape[1] - 1)
        high = (low + 1).clamp(max=bias.table.shape[1] - 1)
        share = (where - low).to(bias.table.dtype)
        return Toeplitz(bias.table[:, low] * (1 - share) + bias.table[:, high] * share, bias.zero)


@dataclass(frozen=True)
class BiasClipped:
    """B(d) becomes B(min(d, longest))."""

    longest: int

    def refuses(self, spec: Spec) -> str | None:
        """Return why it does not apply."""
        return _needs_bias(spec, {"alibi", "t5", "kerple", "sandwich"})

    def __call__(self, layer: int, call: AttentionCall) -> AttentionCall:  # noqa: ARG002
        """Return the call with its table of distances clipped."""
        bias = call.bias
        if not isinstance(bias, Toeplitz):
            return call
        columns = torch.arange(bias.table.shape[1], device=bias.table.device)
        columns = columns.clamp(bias.zero - self.longest, bias.zero + self.longest)
        columns = columns.clamp(0, bias.table.shape[1] - 1)
        return replace(call, bias=Toeplitz(bias.table[:, columns], bias.zero))


def with_far(
    call: AttentionCall,
    far: tuple[Float[Tensor, "b h t e"], Float[Tensor, "b hk s e"]],
    near: int,
    heads: tuple[int, ...] | None = None,
) -> AttentionCall:
    """Return the call whose scores at distances from `near` on are those of other q and k."""
    count, own_q, own_k, scale = call.q.shape[1], call.q, call.k, call.scale
    far_q, far_k = far
    q_pos, k_pos = _positions(call)
    chosen = None
    if heads is not None:
        chosen = torch.zeros(count, dtype=torch.bool, device=own_q.device)
        chosen[list(heads)] = True

    def moved(rows: slice, cols: slice) -> Tensor:
        distance = q_pos[:, rows, None] - k_pos[:, None, cols]
        beyond = (distance >= near)[:, None]
        if not bool(beyond.any()):
            return own_q.new_zeros(1).expand(1, count, *beyond.shape[2:])
        # Positions grow with the index, so far keys come first.
        last = int(beyond.flatten(0, 2).any(dim=0).nonzero().max()) + 1
        some = range(own_k.shape[2])[cols][:last]
        keys = slice(some.start, some.stop)
        change = far_q[:, :, rows] @ shared(far_k[:, :, keys], count).mT
        change -= own_q[:, :, rows] @ shared(own_k[:, :, keys], count).mT
        where = beyond[..., :last]
        if chosen is not None:
            where = where & chosen[None, :, None, None]
        change = torch.where(where, scale * change, 0.0)
        return torch.nn.functional.pad(change, (0, beyond.shape[3] - last))

    return replace(call, bias=total([call.bias, Pairwise(moved, call.positions)], call.positions))


def _positions(call: AttentionCall) -> tuple[Int[Tensor, "#b t"], Int[Tensor, "#b s"]]:
    return call.positions.q, call.positions.k


def _keys(call: AttentionCall, cols: slice) -> AttentionCall:
    """Return a call with some of its keys, for its unrotated queries and keys."""
    assert call.unrotated is not None
    q, k = call.unrotated
    return replace(
        call,
        k=call.k[:, :, cols],
        v=call.v[:, :, cols],
        positions=call.positions.block(slice(None), cols),
        unrotated=(q, k[:, :, cols]),
    )


def _needs_bias(spec: Spec, names: set[str]) -> str | None:
    if {layer.encoding for layer in spec.layers} & names:
        return None
    return f"it changes a bias by distance, and the encoding is {spec.encoding}"
