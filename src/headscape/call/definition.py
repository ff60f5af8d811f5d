"""Dense attention: the definition that every faster path is tested against.

    content_ij = scale q_i . k_j                  q, k before any rotation
    mixed_ij   = temperature_i mixing(scale R(q_i) . R(k_j), B_ij)      without one, their sum
    final_ij   = softcap tanh(mixed_ij / softcap)
    weights_ij = exp(final_ij) / (exp(sink) + sum over visible j of exp(final_ij))
    out_i      = sum_j weights_ij v_j

Temperature, softcap and sink are left out where they are None. With a transition, the
tokens between key and query change the key in R(q_i) . R(k_j) (transition.py).
A weighting replaces the softmax. k and v may have fewer heads than q: consecutive query heads then
share keys and values (grouped queries).

Any dtype up to float64, any device, whole matrices in memory, or a block of rows at a time through
`scores`, or a block of queries and keys of some heads through `block`. The reported bias is the
effective one, final - content: for an additive encoding the bias itself, for RoPE the change made
by the rotation, for DAPEv2 everything it adds to q.k. The output of a query that sees no key is 0.

A part of a call is some heads, queries and keys of every tensor in it. The shape strings of the
dataclasses say which axis is what, so one function (`mapped`) restricts every value:

    h heads   hk heads of keys   t queries   s keys   tail the last keys, which a transition has
    # before a letter: an axis of size 1 is left as it is

A value that is a function of queries and keys (Pairwise) becomes one of the part's.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, fields, is_dataclass, replace
from functools import cache, cached_property
from types import NoneType, UnionType
from typing import Any, Union, get_args, get_origin

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int, Shaped
from torch import Tensor, inf

from headscape.call.bias import Bias, dense
from headscape.call.mixing import Mixing, Rows
from headscape.call.positions import ALL, Positions, Turn, Visible
from headscape.call.quantities import QUANTITIES
from headscape.call.transition import Transition
from headscape.call.weighting import Weighting
from headscape.errors import InputError


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
    unrotated: tuple[Float[Tensor, "b h t e2"], Float[Tensor, "b hk s e2"]] | None = None
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

    @property
    def additive(self) -> bool:
        """Whether position does nothing but add a bias."""
        turned = self.unrotated is not None or self.transition is not None
        return self.mixing is None and not turned and not self.score_transform


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
    rotated = _rotated(inputs, rows)
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


def _rotated(inputs: AttentionCall, rows: slice = ALL) -> Float[Tensor, "b h r s"]:
    """Return the scaled R(q) . R(k); with a transition, of keys changed on their way."""
    q, keys = inputs.q[:, :, rows], shared(inputs.k, inputs.q.shape[1])
    if inputs.transition is None:
        return inputs.scale * (q @ keys.mT)
    moved = inputs.transition.through(inputs.q, keys).scores(rows)
    later = keys.shape[2] - moved.shape[3]
    return inputs.scale * F.pad(moved, (0, later)).to(q.dtype)


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
    final = _final(inputs, rotated, added, seen, at, rows)
    if inputs.weighting is None or inputs.sink is not None:
        return seen, final, softmax(final, seen, inputs.sink)
    return seen, final, inputs.weighting.weights(final, seen)


def _final(
    inputs: AttentionCall,
    rotated: Float[Tensor, "b h r s"],
    added: Float[Tensor, "#b h r s"] | None,
    seen: Bool[Tensor, "#b 1 r s"] | None,
    at: Positions,
    rows: slice = ALL,
) -> Float[Tensor, "b h r s"]:
    """Return what the softmax takes; only a mixing needs to know what is seen."""
    if inputs.mixing is None:
        final = rotated if added is None else rotated + added
    else:
        assert seen is not None
        final = inputs.mixing.final(Rows(rotated, added, seen, inputs.q[:, :, rows], at))
    if inputs.temperature is not None:
        final = final * inputs.temperature[:, :, rows, None].to(final.dtype)
    if inputs.softcap is not None:
        final = inputs.softcap * (final / inputs.softcap).tanh()
    return final


Queries = slice | Int[Tensor, " r"]
"""Some queries, as a range or by their indices."""
Leaf = Callable[[str, Any, tuple[str, ...]], Any]
"""Takes the dotted name, value and axes of a tensor or function; returns what replaces it."""


@cache
def annotated(cls: type) -> tuple[tuple[str, Any], ...]:
    """Return the fields of a dataclass with the types that are not None."""
    return tuple((each.name, _present(each.type)) for each in fields(cls))


def _present(kind: Any) -> Any:
    if get_origin(kind) in (Union, UnionType):
        others = [each for each in get_args(kind) if each is not NoneType]
        return others[0] if len(others) == 1 else kind
    return kind


@cache
def axes_of(kind: Any) -> tuple[str, ...]:
    """Return the axes in a type's shape string; none if it has no such string."""
    return tuple(getattr(kind, "dim_str", "").split())


def mapped(value: Any, leaf: Leaf, name: str = "", kind: Any = None) -> Any:
    """Return a value with every tensor and function in it replaced by what `leaf` returns."""
    if isinstance(value, Tensor) or (callable(value) and not is_dataclass(value)):
        return leaf(name, value, axes_of(kind))
    if isinstance(value, tuple):
        kinds = get_args(kind) or (None,) * len(value)
        kinds = kinds[:1] * len(value) if kinds[-1] is Ellipsis else kinds
        items = zip(value, kinds, strict=True)
        return tuple(mapped(x, leaf, f"{name}.{n}", _present(k)) for n, (x, k) in enumerate(items))
    if not is_dataclass(value) or isinstance(value, type):
        return value
    prefix = f"{name}." if name else ""
    return type(value)(
        **{
            field: mapped(getattr(value, field), leaf, prefix + field, kind)
            for field, kind in annotated(type(value))
        }
    )


def row_of(call: Any, number: int) -> Any:
    """Return the call of one row of a batch, as a batch of one."""

    def leaf(_: str, value: Any, axes: tuple[str, ...]) -> Any:
        if isinstance(value, Tensor):
            batched = bool(axes) and axes[0] in {"b", "#b"} and value.shape[0] > 1
            return value[number : number + 1] if batched else value

        def part(*arguments: Any) -> Any:
            whole = value(*arguments)
            return whole[number : number + 1] if whole.shape[0] > 1 else whole

        return part

    return mapped(call, leaf)


@dataclass(frozen=True)
class Selection:
    """Some heads, queries and keys of a call with so many of each."""

    heads: tuple[int, ...] | None
    """None: all."""
    rows: Queries
    cols: slice
    counts: tuple[int, int, int, int]
    """Heads, heads of keys, queries and keys of the whole call."""

    def take(self, x: Tensor, axes: Sequence[str]) -> Tensor:
        """Return a tensor's part; a view where ranges are asked for."""
        picked: list[slice] = []
        listed: list[tuple[int, Tensor]] = []
        for place, (axis, size) in enumerate(zip(axes, x.shape, strict=True)):
            index = self.index(axis, size)
            if isinstance(index, Tensor):
                listed.append((place, index.to(x.device)))
            picked.append(index if isinstance(index, slice) else slice(None))
        x = x[tuple(picked)]
        for place, at in listed:
            x = x.index_select(place, at)
        return x

    def index(self, axis: str, size: int) -> slice | Tensor:
        """Return what is read of one axis."""
        if axis.startswith("#") and size == 1:
            return slice(None)
        return self._by_axis.get(axis.lstrip("#"), slice(None))

    @cached_property
    def _by_axis(self) -> dict[str, slice | Tensor]:
        heads, key_heads, queries, keys = self.counts
        parts: dict[str, slice | Tensor] = {"t": self.rows, "s": self.cols}
        # A transition is of the last keys, up to the last query.
        last = self.rows.stop if isinstance(self.rows, slice) else int(self.rows.max()) + 1
        stop = last + keys - queries
        parts["tail"] = slice(None) if stop >= keys else slice(None, stop - keys)
        if self.heads is not None:
            parts["h"] = _tidy(self.heads)
            parts["hk"] = _tidy(tuple(head * key_heads // heads for head in self.heads))
        return parts

    def leaf(self, name: str, x: Any, axes: tuple[str, ...]) -> Any:  # noqa: ARG002
        """Return the part of a tensor or function of the call."""
        return self.take(x, axes) if axes else self.function(x)

    def function(self, fn: Callable[[slice, slice], Tensor]) -> Callable[[slice, slice], Tensor]:
        """Return a function of the queries and keys of the part."""
        listed: Tensor | None = None
        if isinstance(self.rows, Tensor):
            first = int(self.rows.min())
            outer, listed = range(first, int(self.rows.max()) + 1), self.rows - first
        else:
            outer = range(self.rows.start, self.rows.stop)
        cols = range(self.cols.start, self.cols.stop)

        def part(some: slice, keys: slice) -> Tensor:
            within = outer if listed is not None else outer[some]
            columns = cols[keys]
            values = fn(slice(within.start, within.stop), slice(columns.start, columns.stop))
            if listed is not None:
                values = values[:, :, listed[some]]
            return self.take(values, ("#b", "#h", "r", "c"))

        return part


def _tidy(numbers: tuple[int, ...]) -> slice | Tensor:
    """Return consecutive numbers as a range, which needs no copy."""
    first = numbers[0] if numbers else 0
    if numbers == tuple(range(first, first + len(numbers))):
        return slice(first, first + len(numbers))
    return torch.tensor(numbers)


@dataclass(frozen=True)
class BlockPlan:
    """What a block of one quantity is computed from: a part of the call, and its cut."""

    selection: Selection
    """What is read of the call."""
    heads: tuple[int, ...] | None
    """Places of the heads asked for among those read; None: all."""
    rows: Queries
    """Places of the queries asked for among those read."""
    cols: slice
    """Places of the keys asked for among those read."""
    whole: bool
    """Whether whole rows are read."""

    def cut(self, values: Shaped[Tensor, "b h r s"]) -> Shaped[Tensor, "b n r2 c"]:
        """Return what was asked for; keys beyond those read are after every query."""
        if self.heads is not None and values.shape[1] > 1:
            values = values[:, list(self.heads)]
        beyond = self.cols.stop - values.shape[3]
        return (F.pad(values, (0, beyond)) if beyond > 0 else values)[:, :, self.rows, self.cols]


def plan(
    call: AttentionCall,
    quantity: str,
    heads: Sequence[int] | None = None,
    rows: Queries = ALL,
    cols: slice = ALL,
    *,
    norms: bool = False,
) -> BlockPlan:
    """Return what a block needs; `norms` says that the rows' log-sum-exp is known."""
    if quantity not in QUANTITIES:
        raise InputError(f"unknown quantity {quantity!r}: choose from {', '.join(QUANTITIES)}.")
    (h, t), s = call.q.shape[1:3], call.k.shape[2]
    rows = slice(*rows.indices(t)[:2]) if isinstance(rows, slice) else rows
    asked = need = slice(*cols.indices(s)[:2])
    plain = quantity == "content" or (quantity == "bias" and call.additive)
    whole = quantity == "weights" and (call.weighting is not None or not norms)
    every, read = heads is None, rows
    if not plain:
        if call.transition is not None:
            whole, read = True, _span(rows)
        if call.mixing is not None:
            every = every or not getattr(call.mixing, "by_head", False)
            if call.transition is not None and not call.mixing.pointwise:
                read = slice(_span(rows).start, t)
        need = _keys(call, read, asked, whole=whole)
    chosen = None if every or heads is None else tuple(heads)
    return BlockPlan(
        Selection(chosen, read, need, (h, call.k.shape[1], t, s)),
        None if heads is None or not every else tuple(heads),
        ALL if read is rows else _within(rows, _span(read).start),
        slice(asked.start - need.start, asked.stop - need.start),
        whole,
    )


def _span(rows: Queries) -> slice:
    return rows if isinstance(rows, slice) else slice(int(rows.min()), int(rows.max()) + 1)


def _within(rows: Queries, start: int) -> Queries:
    if isinstance(rows, slice):
        return slice(rows.start - start, rows.stop - start)
    return rows - start


def _keys(call: AttentionCall, rows: Queries, asked: slice, *, whole: bool) -> slice:
    """Return the keys that the scores of some queries and keys are a function of."""
    span, keys = _span(rows), call.k.shape[2]
    seen, need = call.visible.reach(call.positions, span.start, span.stop - 1), asked
    if call.transition is not None:
        # Its queries are those of the last keys, and later keys are hidden.
        return slice(0, span.stop + keys - call.q.shape[2])
    if whole:
        need = slice(min(asked.start, seen.start), max(asked.stop, seen.stop))
    if call.mixing is None or call.mixing.pointwise:
        return need
    grown = getattr(call.mixing, "keys", None)
    if grown is None or call.visible.q_group is not None:
        return slice(0, keys)
    need = grown(need, seen)
    return slice(max(0, need.start), min(keys, need.stop))


def block(
    call: AttentionCall,
    quantity: str,
    heads: Sequence[int] | None = None,
    rows: Queries = ALL,
    cols: slice = ALL,
    *,
    lse: Float[Tensor, "n r"] | None = None,
) -> Float[Tensor, "b n r c"]:
    """Return one quantity of some heads, queries and keys, computing little else.

    Args:
        call: Any call.
        quantity: content, bias, final or weights.
        heads: Numbers from 0; None is all.
        rows: Queries, as a range or by their indices.
        cols: Keys.
        lse: The log-sum-exp of these heads' rows over all visible keys and the sink. Without it,
            weights are computed from whole rows.

    Entries that are hidden have no meaning, except in weights, where they are 0.
    """
    chosen = plan(call, quantity, heads, rows, cols, norms=lse is not None)
    return finish(
        mapped(replace(call, turns=None), chosen.selection.leaf), quantity, chosen, lse=lse
    )


def finish(
    part: AttentionCall,
    quantity: str,
    chosen: BlockPlan,
    *,
    lse: Float[Tensor, "n r"] | None = None,
) -> Float[Tensor, "b n r c"]:
    """Return a block from the part of a call that its plan names."""
    if quantity == "content":
        return chosen.cut(_content(part))
    added = None
    if part.bias is not None:
        added = dense(part.bias, part.positions).to(part.q.dtype)
    if quantity == "bias" and part.additive:
        shape = (*part.q.shape[:3], part.k.shape[2])
        return chosen.cut(part.q.new_zeros(shape) if added is None else added.expand(shape))
    rotated = _rotated(part)
    if quantity == "weights" and chosen.whole:
        return chosen.cut(weigh(part, rotated, added)[2])
    seen = None
    if part.mixing is not None or quantity == "weights":
        seen = part.visible.dense(part.positions)
    final = chosen.cut(_final(part, rotated, added, seen, part.positions))
    if quantity == "bias":
        return final - chosen.cut(_content(part))
    if quantity == "final":
        return final
    assert lse is not None
    assert seen is not None
    # A hidden score may exceed its row's norm by far.
    exponent = (final - lse[None, :, :, None]).clamp(max=1.0).to(final.dtype)
    return exponent.exp() * chosen.cut(seen)


def _content(part: AttentionCall) -> Float[Tensor, "b h r s"]:
    """Return the scaled q.k before rotation; where that is unknown, after it."""
    q, k = part.unrotated or (part.q, part.k)
    return part.scale * (q @ shared(k, q.shape[1]).mT)


def shared(x: Float[Tensor, "b hk s e"], heads: int) -> Float[Tensor, "b h s e"]:
    """Return keys or values repeated for every query head."""
    return x if x.shape[1] == heads else x.repeat_interleave(heads // x.shape[1], dim=1)


def softmax(
    scores: Float[Tensor, "b h t s"],
    visible: Bool[Tensor, "#b 1 t s"],
    sink: Float[Tensor, " h"] | None = None,
) -> Float[Tensor, "b h t s"]:
    """Return the softmax over visible keys; 0 where hidden, and in a row that sees no key."""
    sees_any = visible.any(dim=-1, keepdim=True)
    masked = scores.masked_fill(~visible, -inf).masked_fill(~sees_any, 0.0)
    if sink is None:
        return masked.softmax(dim=-1) * sees_any
    beside = sink.to(scores.dtype)[:, None, None].expand(*scores.shape[:3], 1)
    return torch.cat([masked, beside], dim=-1).softmax(dim=-1)[..., :-1] * sees_any


def _effective(
    inputs: AttentionCall, content: Tensor, added: Tensor | None, final: Tensor
) -> Float[Tensor, "b h t s"]:
    """Return final - content; for a plain bias the bias itself, without the rounding of the sum."""
    if not inputs.additive:
        return final - content
    return torch.zeros_like(content) if added is None else added.expand_as(content)


def refuses(inputs: AttentionCall) -> str | None:  # noqa: ARG001
    """Return None: every call is served."""
    return None


def run(inputs: AttentionCall, tap: Tap | None = None) -> Float[Tensor, "b h t ev"]:
    """Return dense attention; `tap` is called with all scores."""
    whole = scores(inputs)
    if tap is not None:
        tap(whole)
    return whole.weights @ shared(inputs.v, inputs.q.shape[1])
