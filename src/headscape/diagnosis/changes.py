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

RoPE is turned again where a layer has it alone or with a bias (rope+fox), and so is xPos. Dynamic
and LongRoPE-type frequencies, which depend on the length, are those of the call's own length.

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

from headscape.call.bias import (
    Bias,
    BiasSum,
    GapKernel,
    Pairwise,
    Perceptron,
    Slope,
    Toeplitz,
    total,
)
from headscape.call.definition import AttentionCall, shared
from headscape.call.positions import Positions
from headscape.encodings import Encoding, Shape, Side, make
from headscape.encodings.base import SHARED
from headscape.encodings.rope import RoPEConfig
from headscape.encodings.xpos import XPosConfig
from headscape.errors import InputError
from headscape.models.model import LayerSpec, Spec

HIDDEN = -1e30
"""Added to the score of a key that is not seen: finite, and its weight is exactly 0."""
FIELDS = {
    name: frozenset(item.name for item in fields(config)) - SHARED
    for name, config in (("rope", RoPEConfig), ("xpos", XPosConfig))
}
"""The rotations that can be repeated, with the names of their fields."""
WITHIN = 1e-3
"""Relative difference up to which a rotation counts as repeated; angles are float32 in models."""


def rotation_of(layer: LayerSpec) -> str | None:
    """Return the name of a layer's rotation, which may be a part of its encoding (rope+fox)."""
    return next((name for name in FIELDS if name in layer.encoding.split("+")), None)


def local(layer: LayerSpec, trained: int) -> bool:
    """Return whether a window or chunks keep a layer's distances below the trained length."""
    reaches = (layer.conventions.get(name) for name in ("window", "chunk"))
    return any(isinstance(reach, int) and reach <= trained for reach in reaches)


@dataclass(frozen=True)
class Rotations:
    """The rotation of every layer of a model that has one, with some fields of RoPE changed."""

    spec: Spec
    changes: Mapping[str, Any] = field(default_factory=dict)
    _made: dict[int, Encoding] = field(default_factory=dict, compare=False, repr=False)

    def layer(self, layer: int) -> Encoding | None:
        """Return the rotation of a layer, counted from 0; None in a layer without."""
        spec = self.spec.layers[layer]
        name = rotation_of(spec)
        if name is None:
            return None
        if layer not in self._made:
            kept = {each: spec.conventions[each] for each in FIELDS[name] & set(spec.conventions)}
            shape = Shape(
                heads=self.spec.heads,
                head_dim=self.spec.head_dim,
                width=self.spec.width,
                train_length=self.spec.train_length,
                causal=self.spec.causal,
            )
            self._made[layer] = make(name, shape, {**kept, **self.changes})
        return self._made[layer]

    def turned(
        self,
        layer: int,
        call: AttentionCall,
        at: tuple[Tensor, Tensor] | None = None,
        last: int | None = None,
    ) -> tuple[Float[Tensor, "b h t e"], Float[Tensor, "b hk s e"]]:
        """Return q and k of a call at other positions.

        Args:
            layer: The layer, counted from 0.
            call: Its call.
            at: Positions of queries and of keys; the call's own if left out.
            last: The last position of the text, which some frequencies depend on; the call's own
                if left out.
        """
        encoding = self.layer(layer)
        assert encoding is not None
        assert call.unrotated is not None
        q_at, k_at = (call.positions.q, call.positions.k) if at is None else at
        last = int(call.positions.q.max()) if last is None else last
        q, k = call.unrotated
        return (
            _rotated(encoding, q, Side(q_at, "query"), last),
            _rotated(encoding, k, Side(k_at, "key"), last),
        )

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


def _rotated(
    encoding: Encoding, x: Float[Tensor, "b h t e"], side: Side, last: int
) -> Float[Tensor, "b h t e"]:
    """Return x turned by frequencies for a text that ends at the position `last`."""
    if encoding.cacheable_keys:
        turned: Tensor = encoding.rotate(x, side)
        return turned
    # These frequencies depend on the largest position, so one more token stands there.
    at = torch.cat([side.at, torch.full_like(side.at[:, :1], last)], dim=1)
    longer = torch.cat([x, torch.zeros_like(x[:, :, :1])], dim=2)
    return encoding.rotate(longer, replace(side, at=at))[:, :, :-1]


def needs_rotation(spec: Spec, names: tuple[str, ...] = tuple(FIELDS)) -> str | None:
    """Return why a change of rotations does not apply; None if a layer has one of `names`."""
    if any(rotation_of(layer) in names for layer in spec.layers):
        return None
    return f"it changes RoPE, and the encoding is {spec.encoding}"


def needs_known_rotation(spec: Spec) -> str | None:
    """Return why rotations cannot be repeated from a spec, which has no weights; None if so."""
    if any(layer.conventions.get("learned_frequencies") for layer in spec.layers):
        return "it repeats RoPE from its settings, and the frequencies are learned"
    return needs_rotation(spec)


def needs_rotation_alone(spec: Spec) -> str | None:
    """Return why tokens cannot be moved: some layer's positions are not those of a rotation."""
    others = {layer.encoding for layer in spec.layers} - {*FIELDS, "nope"}
    if others and needs_rotation(spec) is None:
        return f"it moves tokens, and {', '.join(sorted(others))} has positions besides a rotation"
    return needs_known_rotation(spec)


@dataclass(frozen=True)
class Frequencies:
    """RoPE with some fields changed."""

    plain: Rotations
    changed: Rotations
    layers: tuple[int, ...]
    """Layers whose frequencies change, counted from 0."""

    @classmethod
    def of(cls, spec: Spec, trained: int | None = None, **changes: Any) -> "Frequencies":
        """Return the change of a model's RoPE fields.

        Args:
            spec: The model's.
            trained: Layers whose distances stay below this length keep their frequencies.
            **changes: The changed fields.
        """
        return cls(Rotations(spec), Rotations(spec, changes), stretchable(spec, trained))

    def refuses(self, spec: Spec) -> str | None:
        """Return why it does not apply."""
        reason = needs_known_rotation(spec) or needs_rotation(spec, ("rope",))
        if reason is not None:
            return reason
        if not self.layers:
            return "every layer with RoPE has a window or chunks within the trained length"
        every = (spec.layers[layer].conventions.get("scaling", "none") for layer in self.layers)
        kinds = {str(kind) for kind in every} - {"none"}
        if kinds:
            return f"its frequencies are stretched already ({', '.join(sorted(kinds))})"
        for layer in self.layers:
            self.changed.layer(layer)
        return None

    def __call__(self, layer: int, call: AttentionCall) -> AttentionCall:
        """Return the call with q and k turned by the changed frequencies."""
        if layer not in self.layers:
            return call
        encoding = self.changed.layer(layer)
        assert encoding is not None
        self.plain.check(layer, call)
        q, k = self.changed.turned(layer, call)
        sides = Side(call.positions.q, "query"), Side(call.positions.k, "key")
        return replace(call, q=q, k=k, turns=encoding.turns(*sides))


def stretchable(spec: Spec, trained: int | None) -> tuple[int, ...]:
    """Return the RoPE layers that meet distances from the trained length on, counted from 0."""
    return tuple(
        number
        for number, layer in enumerate(spec.layers)
        if rotation_of(layer) == "rope" and (trained is None or not local(layer, trained))
    )


@dataclass(frozen=True)
class NoRotation:
    """No rotation in some layers, counted from 0."""

    layers: tuple[int, ...]

    def refuses(self, spec: Spec) -> str | None:
        """Return why it does not apply."""
        return needs_rotation(spec)

    def __call__(self, layer: int, call: AttentionCall) -> AttentionCall:
        """Return the call with q and k as they were before rotation."""
        if layer not in self.layers or call.unrotated is None:
            return call
        q, k = call.unrotated
        return replace(call, q=q, k=k, unrotated=None, turns=None)


@dataclass(frozen=True)
class TurnedAgain(ABC):
    """Rotations by positions that are not the tokens' own; layers without one stay as they are."""

    rotations: Rotations

    def refuses(self, spec: Spec) -> str | None:
        """Return why it does not apply."""
        return needs_known_rotation(spec)

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
        return None if needs_rotation(spec) else needs_known_rotation(spec)

    def __call__(self, layer: int, call: AttentionCall) -> AttentionCall:
        """Return the call without the keys between the sinks and the window."""
        far = None
        if self.rotations.layer(layer) is not None:
            self.rotations.check(layer, call)
            last = self.window + self.sinks - 1
            q_at = call.positions.q.clamp(max=last)
            sinks = _keys(call, slice(0, self.sinks))
            far = self.rotations.turned(layer, sinks, (q_at, sinks.positions.k))
        _needs_sum(call)
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
        q, k = self.rotations.turned(layer, call, (q_at, k_at), int(q_at.max()))
        return replace(call, q=q, k=k, turns=None)


@dataclass(frozen=True)
class Chunks:
    """Keys of the query's own block of `size` positions."""

    size: int

    def refuses(self, spec: Spec) -> str | None:
        """Return why it does not apply."""
        for name, has in (("window", "a window"), ("chunk", "chunks")):
            if any(layer.conventions.get(name) for layer in spec.layers):
                return f"its layers have {has} already"
        return None

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


TABLES = {"alibi", "t5", "t5-clipped", "kerple", "kerple-power", "bam", "sandwich", "fire"}
"""Encodings whose bias is a function of the distance."""
SUMS = {"cable", "cable-nw", "k-cable", "fox"}
"""Encodings whose bias is a function of a sum over the tokens between key and query."""


@dataclass(frozen=True)
class ChangedBias(ABC):
    """A bias with different distances; a bias that is a sum is changed part by part."""

    def refuses(self, spec: Spec) -> str | None:
        """Return why it does not apply."""
        if {part for layer in spec.layers for part in layer.encoding.split("+")} & (TABLES | SUMS):
            return None
        return f"it changes a bias by distance, and the encoding is {spec.encoding}"

    def __call__(self, layer: int, call: AttentionCall) -> AttentionCall:  # noqa: ARG002
        """Return the call with its bias changed."""
        return replace(call, bias=self.of(call.bias, call.positions))

    def of(self, bias: Bias | None, positions: Positions) -> Bias | None:
        """Return a bias with different distances; forms that have none stay as they are."""
        if isinstance(bias, BiasSum):
            return total([self.of(part, positions) for part in bias.parts], positions)
        if isinstance(bias, Toeplitz | Perceptron):
            return self.table(bias)
        return self.sums(bias, positions) if isinstance(bias, Slope | GapKernel) else bias

    @abstractmethod
    def table(self, bias: Toeplitz | Perceptron) -> Bias:
        """Return a bias by distance, changed."""

    @abstractmethod
    def sums(self, bias: Slope | GapKernel, positions: Positions) -> Bias:
        """Return a bias by sums over tokens, changed."""


@dataclass(frozen=True)
class BiasStretched(ChangedBias):
    """B(d) becomes B(d / factor), linear between whole distances of a table."""

    factor: float

    def table(self, bias: Toeplitz | Perceptron) -> Bias:
        """Return B(d / factor); FIRE's perceptron takes the divided distance itself."""
        if isinstance(bias, Perceptron):
            # Its table is ln(1 + c d), so it is known between whole distances.
            return replace(bias, near=torch.log1p(torch.expm1(bias.near) / self.factor))
        distance = torch.arange(bias.table.shape[1], device=bias.table.device) - bias.zero
        where = distance.double() / self.factor + bias.zero
        low = where.floor().long().clamp(0, bias.table.shape[1] - 1)
        high = (low + 1).clamp(max=bias.table.shape[1] - 1)
        share = (where - low).to(bias.table.dtype)
        return Toeplitz(bias.table[:, low] * (1 - share) + bias.table[:, high] * share, bias.zero)

    def sums(self, bias: Slope | GapKernel, positions: Positions) -> Bias:  # noqa: ARG002
        """Return the bias with every sum divided."""
        return replace(bias, row=bias.row / self.factor, col=bias.col / self.factor)


@dataclass(frozen=True)
class BiasClipped(ChangedBias):
    """B(d) becomes B(min(d, longest)): far keys get the bias of the key at that distance."""

    longest: int

    def table(self, bias: Toeplitz | Perceptron) -> Bias:
        """Return the table with its far columns replaced."""
        entries = bias.near if isinstance(bias, Perceptron) else bias.table
        columns = torch.arange(entries.shape[-1], device=entries.device)
        columns = columns.clamp(bias.zero - self.longest, bias.zero + self.longest)
        entries = entries[..., columns.clamp(0, entries.shape[-1] - 1)]
        if isinstance(bias, Perceptron):
            return replace(bias, near=entries)
        return replace(bias, table=entries)

    def sums(self, bias: Slope | GapKernel, positions: Positions) -> Bias:
        """Return a bias by pairs; the first key within `longest` has the bias of those before."""
        q_pos, k_pos = positions.q, positions.k
        first = torch.searchsorted(k_pos.contiguous(), (q_pos - self.longest).contiguous())
        first = first.clamp(max=k_pos.shape[1] - 1)[:, None].expand(bias.row.shape)
        at_first = bias.col.expand(*bias.row.shape[:2], -1).gather(2, first)
        farthest = replace(bias, row=bias.row - at_first, col=torch.zeros_like(bias.col[..., :1]))

        def clipped(rows: slice, cols: slice) -> Tensor:
            own = bias.block(positions, rows, cols)
            far = farthest.block(positions, rows, slice(0, 1))
            distance = q_pos[:, rows, None] - k_pos[:, None, cols]
            return torch.where((distance > self.longest)[:, None], far, own)

        return Pairwise(clipped, positions)


def with_far(
    call: AttentionCall,
    far: tuple[Float[Tensor, "b h t e"], Float[Tensor, "b hk s e"]],
    near: int,
    heads: tuple[int, ...] | None = None,
) -> AttentionCall:
    """Return the call whose scores at distances from `near` on are those of other q and k."""
    _needs_sum(call)
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


def _needs_sum(call: AttentionCall) -> None:
    """Raise unless scores are q.k plus a bias, since far scores are added as one."""
    if call.mixing is not None or call.transition is not None:
        raise InputError(
            "it changes single scores, and this encoding does more than to add to them."
        )
