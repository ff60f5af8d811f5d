"""Saved calls computed by the definition, and calls saved: the torch side of saved_call.py."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields, replace
from typing import Any, Final

import numpy as np
import torch
from jaxtyping import Bool, Float
from torch import Tensor

from headscape.call import bias as biases
from headscape.call import mixing, positions, transition, weighting
from headscape.call.definition import (
    AttentionCall,
    BlockPlan,
    Selection,
    annotated,
    axes_of,
    finish,
    mapped,
    plan,
    scores,
)
from headscape.call.positions import Positions, Turn
from headscape.call.quantities import QUANTITIES
from headscape.captures.file_array import FileArray
from headscape.captures.saved_call import KINDS, PARTS, SUMS, SavedCall, Tokens
from headscape.errors import InputError
from headscape.kernels import attend

DENSE_LENGTH: Final = 4096
"""Longest sequence whose bias is written out where it is a function."""
EXACT_LENGTH: Final = 2048
"""Longest sequence whose log-sum-exp is float64; of longer ones a kernel's."""
EXACT: Final = 1e-3
ROUNDED: Final = 5e-2
"""How far scores from stored arrays may be from the model's, in float32 and in 16 bits."""
TURN_ERROR: Final = 2e-2
"""How far a rotated query may be from what cos and sin make of it, for models in bfloat16."""
ONE_THREAD_PAIRS: Final = 1 << 18
"""Pairs up to which a block is computed by one thread."""
CAST_ONCE: Final = 1 << 20
"""Numbers of a bias up to which it is kept in float64."""
CLASSES: Final[Mapping[str, type]] = {
    name: getattr(module, name)
    for module in (biases, mixing, weighting, transition, positions)
    for name in KINDS
    if hasattr(module, name)
}


class CannotSaveError(InputError):
    """A layer that a capture keeps as maps; the message says why, without an end."""


@dataclass(frozen=True)
class LinearPieces:
    """A perceptron of one input as what it is, piecewise linear: a tile takes a fiftieth."""

    near: Float[Tensor, " n"]
    zero: int
    far: Float[Tensor, "#b t"]
    breaks: Float[Tensor, " p"]
    slope: Float[Tensor, "h p1"]
    intercept: Float[Tensor, "h p1"]

    @classmethod
    def of(cls, mlp: biases.Perceptron) -> "LinearPieces":
        """Return the pieces, where they meet included."""
        w, b = mlp.in_weight.double(), mlp.in_bias.double()
        breaks: Tensor = (-b[w != 0] / w[w != 0]).unique()  # type: ignore[no-untyped-call]
        inside = breaks.new_zeros(1)
        if len(breaks):
            middle = (breaks[1:] + breaks[:-1]) / 2
            inside = torch.cat([breaks[:1] - 1, middle, breaks[-1:] + 1])
        active = torch.where(inside[:, None] * w + b > 0, 1.0, mlp.leak).to(w)
        out = mlp.out_weight.double()
        intercept = (out * b) @ active.T + mlp.out_bias.double()[:, None]
        return cls(mlp.near.double(), mlp.zero, mlp.far.double(), breaks, (out * w) @ active.T,
                   intercept)  # fmt: skip

    def block(self, positions: Positions, rows: slice, cols: slice) -> Float[Tensor, "#b h t s"]:
        """Return the bias of some of the queries and keys."""
        column = positions.block(rows, cols).distance() + self.zero
        u = self.near[column.clamp(0, len(self.near) - 1)] / self.far[:, rows, None]
        piece = torch.searchsorted(self.breaks, u)
        return (self.slope[:, piece] * u + self.intercept[:, piece]).movedim(0, 1)


class Calculator:
    """Computes blocks of a saved call; its arrays may stay in their file."""

    def __init__(self, saved: SavedCall) -> None:
        self._arrays = saved.arrays
        arrays: Mapping[str, Any] = saved.arrays
        self._in_file = {name for name, x in arrays.items() if isinstance(x, FileArray)}
        self._norms = saved.has_norms
        described = saved.described
        self._turns: tuple[Tensor, Tensor] | None = None
        if described["turn"] is not None:
            self._turns = self._tensor("turn.q"), self._tensor("turn.k")
            self._pairing = str(described["turn"]["pairing"])
        self.call = self._call(described, saved.length)

    def _call(self, described: Mapping[str, Any], length: int) -> AttentionCall:
        values = {name: self._value(described[name], name) for name in PARTS if name != "turn"}
        values["positions"] = values["positions"] or Positions.span(length)
        q, k = self._tensor("q")[None], self._tensor("k")[None]
        unrotated = (q, k) if self._turns is not None else None
        if "unrotated.0" in self._arrays:
            unrotated = self._tensor("unrotated.0")[None], self._tensor("unrotated.1")[None]
        temperature, sink = self._arrays.get("temperature"), self._arrays.get("sink")
        return AttentionCall(
            q=q,
            k=k,
            v=k,
            scale=float(described["scale"]),
            unrotated=unrotated,
            softcap=described["softcap"],
            temperature=None if temperature is None else _tensor(temperature)[None],
            sink=None if sink is None else _tensor(sink),
            **values,
        )

    def _value(self, described: Mapping[str, Any] | None, path: str) -> Any:
        """A value of headscape.call from its description and arrays."""
        if described is None:
            return None
        cls, members = CLASSES[described["kind"]], dict[str, Any]()
        kinds = dict(annotated(cls))
        for each in fields(cls):
            name, place = each.name, f"{path}.{each.name}"
            if place in self._arrays:
                whole = self._tensor(place)
                whole = whole.bool() if whole.dtype == torch.uint8 else whole
                members[name] = whole[None] if _batched(axes_of(kinds[name])) else whole
                if path.startswith("bias") and whole.is_floating_point():
                    members[name] = _small_in_double(members[name])
            elif f"{place}.0" in self._arrays:
                u, basis = self._tensor(f"{place}.0")[None], self._tensor(f"{place}.1")
                members[name] = (_small_in_double(u), _small_in_double(basis))
            elif isinstance(described.get(name), list):
                below = enumerate(described[name])
                members[name] = tuple(self._value(one, f"{place}.{n}") for n, one in below)
            elif isinstance(described.get(name), Mapping):
                members[name] = self._value(described[name], place)
            elif name in described:
                members[name] = described[name]
        if cls is biases.Slope or cls is biases.GapKernel:
            members.setdefault("weight", None)
        value = cls(**members)
        return LinearPieces.of(value) if cls is biases.Perceptron else value

    def _tensor(self, name: str) -> Tensor:
        """An array; zeros without memory where it stays in its file and is read by parts."""
        value = self._arrays[name]
        if name in self._in_file:
            return torch.zeros(()).expand(value.shape)
        return _tensor(value)

    def visible(self, rows: Tokens, cols: slice) -> Bool[np.ndarray, "r c"]:
        """Where a query sees a key."""
        some: Any = rows if isinstance(rows, slice) else torch.from_numpy(rows)
        at = self.call.positions
        part = Positions(at.q[:, some], at.k[:, cols], at.bounds) if _some(rows, cols) else None
        if part is None:
            return np.zeros((_count(rows), _count(cols)), dtype=bool)
        seen: np.ndarray = self.call.visible.block(some, cols).dense(part)[0, 0].numpy()
        return seen

    def blocks(
        self,
        quantity: str,
        heads: Sequence[int],
        rows: Tokens,
        cols: slice,
        *,
        lse: Float[np.ndarray, "n r"] | None = None,
        dtype: Any = np.float64,
    ) -> Float[np.ndarray, "n r c"]:
        """One quantity of some heads, queries and keys, hidden entries as they come."""
        if quantity in QUANTITIES and not (_some(rows, cols) and len(heads)):
            return np.zeros((len(heads), _count(rows), _count(cols)), dtype=dtype)
        some = rows if isinstance(rows, slice) else torch.from_numpy(rows)
        norms = None if lse is None or not self._norms else _tensor(lse)
        with torch.inference_mode(), _threads_for(_count(rows) * _count(cols)):
            chosen = plan(self.call, quantity, heads, some, cols, norms=norms is not None)
            part = self._part(quantity, chosen, torch.float32 if dtype == np.float32 else None)
            values: np.ndarray = finish(part, quantity, chosen, lse=norms)[0].numpy()
        return values

    def side(
        self, which: int, head: int, tokens: slice, *, turned: bool
    ) -> Float[np.ndarray, "r e"]:
        """Some queries (0) or keys (1) of a head in float64, rotated or not."""
        count = self.call.q.shape[1], self.call.k.shape[1]
        part = Selection((head,), tokens, tokens, (*count, 1, 1))
        names, raw = ("q", "k"), self.call.unrotated if self._turns is None else None
        name = names[which] if turned or raw is None else f"unrotated.{which}"
        x = self._leaf(name, getattr(self.call, names[which]) if turned or raw is None
                       else raw[which], _SIDES[which], part).double()  # fmt: skip
        if turned and self._turns is not None:
            x = self._turn(x, which, tokens)
        rows: np.ndarray = x[0, 0].numpy()
        return rows

    def _part(self, quantity: str, chosen: BlockPlan, dtype: torch.dtype | None) -> AttentionCall:
        """The part of the call that a plan names, in float64 or the dtype given, and turned."""
        work, call = dtype or torch.float64, self.call
        plain = quantity == "bias" and call.additive
        turned = self._turns is not None

        def leaf(name: str, x: Any, axes: tuple[str, ...]) -> Any:
            if name == "v" or (name in ("q", "k") and (turned or plain)):
                # Not read: values have no part in scores, and rotated sides are made below.
                return chosen.selection.take(_EMPTY.expand(*x.shape[:3], 1), axes)
            stored = (
                name if not turned else name.replace("unrotated.0", "q").replace("unrotated.1", "k")
            )
            part = self._leaf(stored, x, axes, chosen.selection)
            if not part.is_floating_point():
                return part
            if name.startswith("bias"):
                return part.to(torch.promote_types(part.dtype, work))
            return part.to(work)

        part: AttentionCall = mapped(call, leaf)
        if plain:
            return replace(part, q=part.q.to(work))
        if turned and quantity != "content":
            assert part.unrotated is not None
            raw_q, raw_k = part.unrotated
            read = chosen.selection
            q, k = self._turn(raw_q, 0, read.rows), self._turn(raw_k, 1, read.cols)
            return replace(part, q=q, k=k)
        return part

    def _leaf(self, name: str, x: Tensor, axes: tuple[str, ...], part: Selection) -> Tensor:
        if name not in self._in_file:
            return part.take(x, axes)
        value, batched = self._arrays[name], _batched(axes)
        own = axes[1:] if batched else axes
        index = [part.index(axis, size) for axis, size in zip(own, value.shape, strict=True)]
        first, *rest = [each if isinstance(each, slice) else each.numpy() for each in index]
        heads = list(range(len(value))[first]) if isinstance(first, slice) else first.tolist()
        read = _tensor(value[(heads, *rest)])
        return read[None] if batched else read

    def _turn(self, x: Tensor, which: int, tokens: Any) -> Tensor:
        assert self._turns is not None
        table = self._turns[which][:, tokens].to(x.dtype)
        cos, sin = table[:, None, None]
        return Turn(cos, sin, self._pairing).apply(x)


_EMPTY: Final = torch.zeros(())
_SIDES: Final = (("b", "h", "t", "e"), ("b", "hk", "s", "e"))


@contextmanager
def _threads_for(pairs: int) -> Iterator[None]:
    """Use one thread for a tile: waking others, who then wait busily, costs more than it gains."""
    threads = torch.get_num_threads()
    if threads == 1 or pairs > ONE_THREAD_PAIRS:
        yield
        return
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def _batched(axes: tuple[str, ...]) -> bool:
    return axes[:1] in (("b",), ("#b",))


def _small_in_double(x: Tensor) -> Tensor:
    return x.double() if x.numel() <= CAST_ONCE else x


def _count(tokens: Tokens) -> int:
    return tokens.stop - tokens.start if isinstance(tokens, slice) else len(tokens)


def _some(rows: Tokens, cols: slice) -> bool:
    return _count(rows) > 0 and _count(cols) > 0


def _tensor(value: np.ndarray) -> Tensor:
    array = np.asarray(value)
    return torch.from_numpy(array if array.flags.writeable else array.copy())


def save_call(
    call: AttentionCall,
    heads: Sequence[int] | None = None,
    *,
    lse: bool = True,
) -> SavedCall:
    """One layer as a capture stores it; heads, counted from 0, default to all.

    Without `lse` the log-sum-exp, the only part whose cost grows with the square of the length, is
    left to be computed later. Raises CannotSaveError where a value is not one of KINDS.
    """
    if call.q.shape[0] != 1:
        raise InputError(f"a capture takes one sequence, got a batch of {call.q.shape[0]}.")
    every = list(range(call.q.shape[1]))
    picked = every if heads is None else list(heads)
    together = call.mixing is not None and not getattr(call.mixing, "by_head", False)
    if together and picked != every:
        raise CannotSaveError("scores of all heads are mixed and only some of them are captured")
    part = call
    if picked != every:
        counts = (call.q.shape[1], call.k.shape[1], call.q.shape[2], call.k.shape[2])
        rows, cols = slice(0, counts[2]), slice(0, counts[3])
        chosen = Selection(tuple(picked), rows, cols, counts)
        part = mapped(replace(call, turns=None), chosen.leaf)
    layer = _saved(replace(part, turns=call.turns))
    _compare(layer, call, picked)
    if not lse or not layer.has_norms:
        return layer
    rounded = attend.log_sum_exp(call) if call.q.shape[2] > EXACT_LENGTH else None
    norms = layer.log_sum_exp() if rounded is None else _array(rounded[0, picked], np.float64)
    return SavedCall(layer.described, {**layer.arrays, "lse": norms})


def _saved(call: AttentionCall) -> SavedCall:
    arrays: dict[str, np.ndarray] = {}
    turn = _turn_tables(call)
    q, k = call.q, call.k
    if turn is not None:
        assert call.unrotated is not None
        q, k = call.unrotated
        arrays |= {"turn.q": turn[0], "turn.k": turn[1]}
    elif call.unrotated is not None:
        arrays |= {f"unrotated.{n}": _array(x[0]) for n, x in enumerate(call.unrotated)}
    arrays |= {"q": _array(q[0]), "k": _array(k[0])}
    if call.temperature is not None:
        arrays["temperature"] = _array(call.temperature[0].expand(call.q.shape[1], -1))
    if call.sink is not None:
        arrays["sink"] = _array(call.sink)
    span = call.positions
    plain = torch.equal(span.q, span.k) and bool(
        (span.q[0] == torch.arange(span.q.shape[1], device=span.q.device)).all()
    )
    values: dict[str, Any] = {
        "visible": call.visible,
        "positions": None if plain else span,
        "bias": _written(call.bias, call.positions),
        "mixing": call.mixing,
        "weighting": call.weighting,
        "transition": call.transition,
    }
    described: dict[str, Any] = {"scale": float(call.scale), "softcap": call.softcap}
    for name, value in values.items():
        described[name] = _describe(value, name, arrays)
    pairing = None if turn is None or call.turns is None else call.turns[0].pairing
    described["turn"] = None if pairing is None else {"kind": "Turn", "pairing": pairing}
    return SavedCall(described, arrays)


def _written(bias: biases.Bias | None, at: Positions) -> biases.Bias | None:
    """The bias as one of KINDS: a function is written out."""
    if isinstance(bias, biases.BiasSum):
        return biases.BiasSum(tuple(_written(each, at) for each in bias.parts))  # type: ignore[misc]
    if bias is None or CLASSES.get(type(bias).__name__) is type(bias):
        return bias
    length = at.q.shape[1]
    if length > DENSE_LENGTH:
        raise CannotSaveError(
            f"a bias like this one is written out up to {DENSE_LENGTH} tokens, got {length}"
        )
    return biases.Matrix(biases.dense(bias, at))


def _describe(value: Any, path: str, arrays: dict[str, np.ndarray]) -> dict[str, Any] | None:
    """The numbers and words of a value; its tensors are added to `arrays`."""
    if value is None:
        return None
    kind = type(value).__name__
    if CLASSES.get(kind) is not type(value):
        how = "scores are mixed" if path == "mixing" else "weights follow from scores"
        raise CannotSaveError(f"{how} in a way of its own ({kind})")
    dtype = np.float64 if kind in SUMS else np.float32
    described: dict[str, Any] = {"kind": kind}
    for name, axes in annotated(CLASSES[kind]):
        inside, place = getattr(value, name), f"{path}.{name}"
        if isinstance(inside, Tensor):
            if name in KINDS[kind]:
                arrays[place] = _array(inside[0] if _batched(axes_of(axes)) else inside, dtype)
        elif name == "key" and inside is not None:
            arrays |= {f"{place}.0": _array(inside[0][0]), f"{place}.1": _array(inside[1])}
        elif isinstance(KINDS[kind].get(name), tuple):
            below = enumerate(inside) if isinstance(inside, tuple) else None
            described[name] = (
                _describe(inside, place, arrays)
                if below is None
                else [_describe(each, f"{place}.{n}", arrays) for n, each in below]
            )
        elif callable(KINDS[kind].get(name)):
            described[name] = inside
    return described


def _turn_tables(call: AttentionCall) -> tuple[np.ndarray, np.ndarray] | None:
    """Cos and sin [2 t p] of queries and keys, where these turn by position and nothing else."""
    if call.unrotated is None or call.turns is None or call.turns[0].by_tokens:
        return None
    tables = []
    for turn, plain, turned in zip(call.turns, call.unrotated, (call.q, call.k), strict=True):
        if turn.cos.shape[:2] != (1, 1) or plain.shape != turned.shape:
            return None
        want = turned.double()
        error = (turn.apply(plain.double()) - want).abs().max()
        if not error <= TURN_ERROR * max(1.0, float(want.abs().max())):
            return None
        tables.append(_array(torch.stack([turn.cos[0, 0], turn.sin[0, 0]])))
    return tables[0], tables[1]


def _compare(layer: SavedCall, call: AttentionCall, heads: list[int]) -> None:
    """Refuse arrays whose scores and weights of two queries are not those of the definition."""
    loose = ROUNDED if call.q.dtype in (torch.float16, torch.bfloat16) else EXACT
    cols = slice(0, layer.length)
    for query in {layer.length // 2, layer.length - 1}:
        rows = slice(query, query + 1)
        every = scores(call, rows)
        seen = every.visible[0, 0].cpu().numpy()
        for quantity in layer.quantities[-2:]:
            want = np.where(seen, _array(getattr(every, quantity)[0, heads], np.float64), 0.0)
            got = layer.tile(quantity, range(layer.heads), rows, cols)
            error = np.abs(np.where(seen, got, 0.0) - want).max()
            if not error <= loose * max(1.0, np.abs(want).max()):
                raise CannotSaveError("the stored arrays do not reproduce its scores")


def _array(value: Tensor, dtype: Any = np.float32) -> np.ndarray:
    """A tensor as float32 or float64, as int64 if it has integers, as uint8 if it is a mask."""
    tensor = value.detach().cpu()
    if tensor.dtype == torch.bool:
        return np.ascontiguousarray(tensor.to(torch.uint8).numpy())
    tensor = (
        tensor.to(torch.float64 if dtype == np.float64 else torch.float32)
        if (tensor.is_floating_point())
        else tensor.long()
    )
    return np.ascontiguousarray(tensor.numpy())
