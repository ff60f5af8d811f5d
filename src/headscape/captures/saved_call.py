"""One layer's attention call as named arrays and a short description: what a capture stores of it.

A value of headscape.call becomes {"kind": its class, its numbers and words} and its tensors, named
by the path to them: `bias.table`, `bias.parts.1.row`, `mixing.in_weight`. KINDS lists every class
that a file may contain, with the axes of its arrays:

    h heads   hk heads of keys   t queries   s keys   tail keys of a transition   e head dim
    # before a letter: the axis may have size 1      ? after the axes: the array may be absent

A batch of one sequence has no axis. A layer, `q` [h t e] and `k` [hk s e] included, is described by

    {"scale", "softcap", "visible", "positions", "bias", "mixing", "weighting", "transition",
     "turn"}

where all from `positions` on are null if the call has none; without positions they are 0, 1, 2 ...
With `turn` (cos and sin by position), q and k are before rotation and are turned when they are
needed. Without it, `q` and `k` are what the scores are made of, and `unrotated.0` and `unrotated.1`
what they were before, if that differs. `lse` [h t] is the log-sum-exp of every row, if stored.

Numbers are float32, running sums and `lse` float64. This file needs no torch; a block of a map is
computed by the definition in headscape.call, which call_blocks.py calls.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from jaxtyping import Bool, Float, Float32, Float64, Int

from headscape.call.quantities import QUANTITIES
from headscape.errors import InputError

if TYPE_CHECKING:
    from headscape.captures.call_blocks import Calculator

Tokens = slice | Int[np.ndarray, " n"]
"""Some tokens, as a range or by their indices."""
Check = Callable[[Any], bool]
BLOCK_PAIRS: Final = 1 << 20
"""Most pairs in memory at once where heads are independent."""
MIXED_PAIRS: Final = 1 << 16
"""The same where heads are mixed, which takes some hundred numbers per pair."""
WIDE: Final = 8192
"""Keys of independent heads in memory at once."""
WHOLE_PAIRS: Final = 1 << 20
"""Pairs of all heads that are computed or measured at once."""
LARGEST: Final = 1e9
"""Numbers of a layer's description stay below this."""
FARTHEST: Final = 1 << 40
"""Positions and groups stay below this."""


def _number(value: object) -> bool:
    return type(value) in (int, float) and abs(float(value)) < LARGEST  # type: ignore[arg-type]


def _positive(value: object) -> bool:
    return _number(value) and value > 0  # type: ignore[operator]


def _whole(value: object) -> bool:
    return type(value) is int and abs(value) < LARGEST


def _flag(value: object) -> bool:
    return type(value) is bool


def _size(value: object) -> bool:
    return value is None or (_whole(value) and value > 0)  # type: ignore[operator]


def _one_of(*words: str) -> Check:
    return lambda value: isinstance(value, str) and value in words


_SUMS: Final = {"weight": "h t?", "row": "h t", "col": "h s"}
_PERCEPTRON: Final = {"in_bias": "m", "out_bias": "h"}
KINDS: Final[Mapping[str, Mapping[str, str | Check | tuple[str, ...]]]] = {
    "Toeplitz": {"table": "h n", "zero": _whole},
    "Slope": _SUMS,
    "GapKernel": {**_SUMS, "kernel": _one_of("distance", "log"), "inside": _flag},
    "Perceptron": {
        "near": "n", "zero": _whole, "far": "t", "in_weight": "m", "out_weight": "h m",
        "leak": _number, **_PERCEPTRON,
    },
    "RelativeCurves": {
        "r": "h t c", "basis": "#h c n", "zero": _whole, "key.0": "h s c2?", "key.1": "#h c2 n?",
        "column": "o?",
    },
    "Matrix": {"values": "h t s"},
    "BiasSum": {"parts": ("Toeplitz", "Slope", "GapKernel", "Perceptron", "RelativeCurves",
                          "Matrix", "BiasSum")},
    "Product": {"table": ("Toeplitz",)},
    "PairPerceptron": {
        "in_weight": "m c", "out_weight": "h m", "adds_bias": _flag, **_PERCEPTRON,
    },
    "KeyConvolution": {
        "in_weight": "m c k", "out_weight": "h m k", "boundary": _one_of("masked", "released"),
        **_PERCEPTRON,
    },
    "CountedTable": {"table": "e n", "divisor": _positive},
    "Sticks": {"takes_own": _flag, "keeps_rest": _flag},
    "Given": {},
    "Reflections": {"w": "h tail e", "beta": "h tail"},
    "Decay": {"gate": "h tail e"},
    "Turn": {"pairing": _one_of("halves", "interleaved")},
    "Visible": {"causal": _flag, "q_group": "t?", "k_group": "s?", "window": _size, "chunk": _size,
                "recorded": "t s?"},
    "Positions": {"q": "t", "k": "s"},
}  # fmt: skip
"""Classes of headscape.call: axes of arrays, checks of numbers and words, kinds of inner values."""
PARTS: Final[Mapping[str, tuple[str, ...]]] = {
    "visible": ("Visible",),
    "positions": ("Positions",),
    "bias": (*KINDS["BiasSum"]["parts"],),  # type: ignore[misc]
    "mixing": ("Product", "PairPerceptron", "KeyConvolution", "CountedTable"),
    "weighting": ("Sticks", "Given"),
    "transition": ("Reflections", "Decay"),
    "turn": ("Turn",),
}
"""Values of a layer, and what each may be."""
_LAYER: Final = {
    "q": "h t e", "k": "hk s e", "unrotated.0": "h t e2?", "unrotated.1": "hk s e2?",
    "turn.q": "2 t p?", "turn.k": "2 t p?", "temperature": "h t?", "sink": "h?", "lse": "h t?",
}  # fmt: skip
SUMS: Final = ("Slope", "GapKernel")
"""Kinds whose numbers are running sums."""
_INTEGERS: Final = ("q_group", "k_group", "positions.q", "positions.k", "column")


@dataclass(eq=False)
class SavedCall:
    """One layer of a capture; heads count from 0 in the order they are stored."""

    described: Mapping[str, Any]
    arrays: Mapping[str, np.ndarray]
    """By name; long ones may stay in their file."""
    _calculator: "Calculator | None" = field(default=None, init=False, repr=False)

    @property
    def heads(self) -> int:
        """Heads stored."""
        return int(self.arrays["q"].shape[0])

    @property
    def length(self) -> int:
        """Tokens in the sequence."""
        return int(self.arrays["q"].shape[1])

    @property
    def causal(self) -> bool:
        """Whether no query sees a later key."""
        return bool(self.described["visible"]["causal"])

    @property
    def lse(self) -> Float64[np.ndarray, "h t"] | None:
        """Log-sum-exp of every row over visible keys and the sink, if stored."""
        return self.arrays.get("lse")

    @property
    def has_norms(self) -> bool:
        """Whether a log-sum-exp spares computing whole rows."""
        return self.described["weighting"] is None and self.described["transition"] is None

    @cached_property
    def by_distance(self) -> bool:
        """Whether queries see all keys, or all up to their own, and a distance is i - j."""
        visible = self.described["visible"]
        limited = visible["window"] is not None or visible["chunk"] is not None
        hidden = {"visible.q_group", "visible.recorded"} & set(self.arrays)
        return not limited and not hidden and not self._stores_positions

    @property
    def _stores_positions(self) -> bool:
        return self.described["positions"] is not None

    @property
    def orders_keys(self) -> bool:
        """Whether no query sees a key with a greater index."""
        return self.causal and not self._stores_positions

    @property
    def mixes_heads(self) -> bool:
        """Whether heads are computed together."""
        mixing = self.described["mixing"]
        return mixing is not None and mixing["kind"] in ("PairPerceptron", "KeyConvolution")

    @property
    def quantities(self) -> tuple[str, ...]:
        """What can be computed of this layer: all, or the weights where only they were given."""
        weighting = self.described["weighting"]
        weights_only = weighting is not None and weighting["kind"] == "Given"
        return ("weights",) if weights_only else QUANTITIES

    @property
    def additive(self) -> bool:
        """Whether position does nothing but add a bias."""
        names = ("mixing", "transition", "turn", "softcap")
        changed = any(self.described[name] is not None for name in names)
        return not changed and not {"unrotated.0", "temperature"} & set(self.arrays)

    @property
    def transformed(self) -> bool:
        """Whether something acts on scores after the bias: a temperature or a softcap."""
        return self.described["softcap"] is not None or "temperature" in self.arrays

    @property
    def calculator(self) -> "Calculator":
        """What computes blocks by the definition; made once."""
        if self._calculator is None:
            from headscape.captures.call_blocks import Calculator

            self._calculator = Calculator(self)
        return self._calculator

    def visible(self, rows: Tokens, cols: slice) -> Bool[np.ndarray, "r c"]:
        """Where a query sees a key."""
        return self.calculator.visible(rows, cols)

    def first_key(self, query: int) -> int:
        """Return a key before which no query from this one on sees anything."""
        window = self.described["visible"]["window"]
        return 0 if window is None or self._stores_positions else max(0, query + 1 - window)

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
        """One quantity of some heads, hidden entries as they come; `lse` replaces a missing one."""
        if quantity in QUANTITIES and quantity not in self.quantities:
            raise InputError(
                f"this layer has no {quantity}: its attention weights were given without q, k and "
                f"bias."
            )
        if quantity == "weights" and lse is None and self.lse is not None:
            at = np.arange(rows.start, rows.stop) if isinstance(rows, slice) else rows
            lse = self.lse[np.array(heads)[:, None], at]
        return self.calculator.blocks(quantity, heads, rows, cols, lse=lse, dtype=dtype)

    def block(
        self,
        quantity: str,
        head: int,
        rows: Tokens,
        cols: slice,
        *,
        lse: Float[np.ndarray, " r"] | None = None,
        dtype: Any = np.float64,
    ) -> Float[np.ndarray, "r c"]:
        """The same for one head."""
        norms = None if lse is None else lse[None]
        values: np.ndarray = self.blocks(quantity, [head], rows, cols, lse=norms, dtype=dtype)[0]
        return values

    def log_sum_exp(
        self,
        heads: Sequence[int] | None = None,
        rows: Tokens | None = None,
        *,
        dtype: Any = np.float64,
    ) -> Float64[np.ndarray, "n r"]:
        """Log sum of exp(final) over visible keys and the sink; by default of all heads, queries.

        Rows ascend.
        """
        queries = np.arange(self.length)
        queries = queries if rows is None else queries[rows]
        picked = list(range(self.heads) if heads is None else heads)
        out = np.empty((len(picked), len(queries)))
        together = [picked] if self.mixes_heads else [[head] for head in picked]
        for group in together:
            at, start = [picked.index(head) for head in group], 0
            while start < len(queries):
                last = int(queries[start]) + 1 if self.orders_keys else self.length
                pairs = BLOCK_PAIRS // 8 if self.described["mixing"] is None else MIXED_PAIRS
                part = queries[start : start + max(1, min(256, pairs // last))]
                stop = start + len(part)
                out[at, start:stop] = row_cells(self, group, part, WIDE, dtype)[0]
                start = stop
        return out

    def tile(
        self, quantity: str, heads: Sequence[int], rows: slice, cols: slice
    ) -> Float64[np.ndarray, "n r c"]:
        """Exact values of some heads, queries and keys; NaN where hidden, 0 in weights."""
        for name, part in (("queries", rows), ("keys", cols)):
            if not 0 <= part.start <= part.stop <= self.length:
                raise InputError(
                    f"{name} {part.start}:{part.stop} are outside the sequence of length "
                    f"{self.length}."
                )
        for head in heads:
            if not 0 <= head < self.heads:
                raise InputError(f"head {head} is not stored: there are {self.heads}, from 0.")
        values = self.blocks(quantity, heads, rows, cols)
        blank = 0.0 if quantity == "weights" else np.nan
        return np.where(self.visible(rows, cols), values, blank)

    def whole(self, quantity: str, heads: Sequence[int]) -> Float32[np.ndarray, "n t t"]:
        """The maps of some heads; NaN where hidden, 0 in weights."""
        blank = 0.0 if quantity == "weights" else np.nan
        out = np.full((len(heads), self.length, self.length), blank, dtype=np.float32)
        together = self.heads if self.mixes_heads else len(heads)
        for rows in rows_at_once(together, self.length):
            cols = slice(0, rows.stop if self.orders_keys else self.length)
            out[:, rows, cols] = self.tile(quantity, heads, rows, cols)
        return out

    def fits(self, heads: int, length: int) -> bool:
        """Whether the arrays have the heads and tokens of their capture, and one another's axes."""
        sizes = {"h": heads, "t": length, "s": length, "tail": length, "2": 2}
        own = {name: value for name, value in self.arrays.items() if name in _LAYER}
        named: list[Any] = [("", _LAYER, own)]
        for name in PARTS:
            named += _values(name, self.described[name], self.arrays)
        known = set(own).union(*(part for _, _, part in named))
        return (
            known == set(self.arrays)
            and all(_bound(fields, arrays, sizes) for _, fields, arrays in named)
            and heads % sizes.get("hk", heads) == 0
            and self._agree(heads)
        )

    def _agree(self, heads: int) -> bool:
        """Whether values that belong together are there, and numbers can be indices."""
        names, mixing = set(self.arrays), self.described["mixing"]
        pairs: tuple[tuple[str, str], ...] = (("turn.q", "turn.k"), ("unrotated.0", "unrotated.1"),
                 ("visible.q_group", "visible.k_group"))  # fmt: skip
        turned = self.described["turn"] is not None
        keys = {name[:-1] for name in names if name.endswith((".key.0", ".key.1"))}
        pairs += tuple((f"{name}0", f"{name}1") for name in keys)
        right = all((one in names) == (two in names) for one, two in pairs)
        right = right and ("turn.q" in names) == turned
        if turned:
            right = right and 2 * self.arrays["turn.q"].shape[2] <= self.arrays["q"].shape[2]
        if mixing is not None and mixing["kind"] in ("PairPerceptron", "KeyConvolution"):
            channels = heads * (1 if self.described["bias"] is None else 2)
            shape = self.arrays["mixing.in_weight"].shape
            right = right and shape[1] == channels and all(width % 2 for width in shape[2:])
        for name, value in self.arrays.items():
            if name.endswith(_INTEGERS) and np.abs(value).max(initial=0) >= FARTHEST:
                return False
            if name.endswith(".column"):
                columns = self.arrays[name.removesuffix("column") + "basis"].shape[-1]
                right = right and 0 <= value.min() <= value.max() < columns
            if name.startswith("transition."):
                right = right and bool(np.isfinite(np.asarray(value)).all())
        return right


def _values(
    path: str, described: Mapping[str, Any] | None, arrays: Mapping[str, np.ndarray]
) -> list[tuple[str, Mapping[str, Any], dict[str, np.ndarray]]]:
    """Every value below a path with what its kind has, and its own arrays by their whole name."""
    if described is None or described["kind"] == "Turn":
        return []
    fields = KINDS[described["kind"]]
    named = {f"{path}.{name}": axes for name, axes in fields.items() if isinstance(axes, str)}
    values: list[Any] = [(path, named, {n: x for n, x in arrays.items() if n in named})]
    for name, inside in fields.items():
        if isinstance(inside, tuple):
            below = described[name]
            items = enumerate(below) if isinstance(below, list) else [(None, below)]
            for number, value in items:
                place = f"{path}.{name}" if number is None else f"{path}.{name}.{number}"
                values += _values(place, value, arrays)
    return values


def _bound(
    fields: Mapping[str, Any], arrays: Mapping[str, np.ndarray], sizes: dict[str, int]
) -> bool:
    """Whether arrays are there with the axes of their kind; e and hk are those of the layer."""
    own = dict(sizes)
    for name, axes in fields.items():
        if name not in arrays:
            if not axes.endswith("?"):
                return False
            continue
        letters, value = axes.rstrip("?").split(), arrays[name]
        integers = name.endswith(_INTEGERS)
        if value.ndim != len(letters) or (value.dtype == np.int64) != integers:
            return False
        for letter, size in zip(letters, value.shape, strict=True):
            broadcast = letter.startswith("#") and size == 1
            if size < 1 or (not broadcast and own.setdefault(letter.lstrip("#"), size) != size):
                return False
    sizes |= {letter: own[letter] for letter in ("e", "hk") if letter in own}
    return True


def described_rightly(described: object) -> bool:
    """Whether a layer's description has the fields it should, each of its type."""
    if not isinstance(described, Mapping) or set(described) != {"scale", "softcap", *PARTS}:
        return False
    scalars = _number(described["scale"]) and (
        described["softcap"] is None or _positive(described["softcap"])
    )
    if not scalars or described["visible"] is None:
        return False
    return all(
        described[name] is None or _value_rightly(described[name], kinds)
        for name, kinds in PARTS.items()
    )


def _value_rightly(value: object, kinds: Sequence[str]) -> bool:
    if not isinstance(value, Mapping) or value.get("kind") not in kinds:
        return False
    fields = {n: check for n, check in KINDS[value["kind"]].items() if not isinstance(check, str)}
    if set(value) != {"kind", *fields}:
        return False
    for name, check in fields.items():
        inside = value[name]
        if isinstance(check, tuple):
            several = inside if isinstance(inside, list) and inside else [inside]
            if (name == "parts") != isinstance(inside, list) or len(several) > 99:
                return False
            if not all(_value_rightly(each, check) for each in several):
                return False
        elif not check(inside):
            return False
    return True


def read_call(
    path: Path,
    number: int,
    capture: Mapping[str, Any],
    described: object,
    arrays: Mapping[str, np.ndarray],
) -> SavedCall:
    """A layer of a file; refuse arrays that are missing or do not fit their description."""
    which = f"layer {number} (counted from 0)"
    if not described_rightly(described):
        raise InputError(f"{path} is damaged: the description of {which} is wrong.")
    for name, value in arrays.items():
        mask = name.endswith(".recorded")
        if value.dtype not in ((np.uint8,) if mask else (np.float32, np.float64, np.int64)):
            raise InputError(f"{path} is damaged: {name} of {which} is {value.dtype}.")
    layer = SavedCall(described, arrays)  # type: ignore[arg-type]
    heads, length = len(capture["heads"]), capture["length"]
    if not layer.fits(heads, length) or layer.causal != capture["causal"]:
        raise InputError(f"{path} is damaged: arrays of {which} do not fit its description.")
    return layer


def rows_at_once(heads: int, length: int) -> Iterator[slice]:
    """Cut the rows of maps into parts that are computed or measured at once."""
    step = max(1, WHOLE_PAIRS // (heads * length))
    return (slice(start, min(length, start + step)) for start in range(0, length, step))


_OLD_MIXING: Final = {
    "mix.inner.weight": "mixing.in_weight", "mix.inner.bias": "mixing.in_bias",
    "mix.outer.weight": "mixing.out_weight", "mix.outer.bias": "mixing.out_bias",
    "mix.table": "mixing.table", "bias.map": "bias.values",
}  # fmt: skip
_OLD_BIASES: Final = {"toeplitz": "Toeplitz", "slope": "Slope", "perceptron": "Perceptron",
                      "dense": "Matrix"}  # fmt: skip
_OLD_FIELDS: Final = {"scale", "group", "pairing", "bias", "mix", "window", "softcap"}


def from_factors(
    kind: Mapping[str, Any], arrays: Mapping[str, np.ndarray], *, causal: bool
) -> tuple[dict[str, Any] | None, dict[str, np.ndarray]]:
    """A layer in the format of captures until 4; no description if that one is wrong."""
    renamed = {_OLD_MIXING.get(name, name): value for name, value in arrays.items()}
    try:
        dims, grouped = arrays["q"].shape[-1], len(arrays["q"]) // max(1, len(arrays["k"]))
        described = _described(kind, dims, causal=causal)
        right = not set(kind) - _OLD_FIELDS and type(kind["group"]) is int
    except (KeyError, TypeError, IndexError, AttributeError):
        return None, renamed
    return described if right and kind["group"] == grouped else None, renamed


def _described(kind: Mapping[str, Any], dims: int, *, causal: bool) -> dict[str, Any]:
    bias, mix, mixing = kind["bias"], kind["mix"], None
    if bias is not None:
        numbers = {name: x for name, x in bias.items() if name not in ("kind", "weighted")}
        bias = {"kind": _OLD_BIASES.get(bias["kind"], bias["kind"]), **numbers}
    if mix is not None and mix["kind"] == "dape":
        mixing = {"kind": "PairPerceptron", "adds_bias": mix["added"]}
    elif mix is not None and mix["kind"] == "dapev2":
        mixing = {"kind": "KeyConvolution", "boundary": mix["boundary"]}
    elif mix is not None:
        divisor = {"scores": 1.0, "sum": dims**0.5}[mix["divide"]]
        mixing = {"kind": "CountedTable", "divisor": divisor}
    pairing, window = kind.get("pairing"), kind.get("window")
    return {
        "scale": kind["scale"],
        "softcap": kind.get("softcap"),
        "visible": {"kind": "Visible", "causal": causal, "window": window, "chunk": None},
        "positions": None,
        "bias": bias,
        "mixing": mixing,
        "weighting": None,
        "transition": None,
        "turn": None if pairing is None else {"kind": "Turn", "pairing": pairing},
    }


def row_cells(
    layer: "SavedCall", heads: Sequence[int], rows: Int[np.ndarray, " r"], side: int, dtype: Any
) -> tuple[np.ndarray, ...]:
    """Log-sum-exp [n r]; least, greatest, summed weight and visible keys [n r cells] of queries.

    A cell is `side` keys.
    """
    last = int(rows[-1]) + 1 if layer.orders_keys else layer.length
    shape = (len(heads), len(rows), -(-last // side))
    high, low = np.full(shape, -np.inf, dtype), np.full(shape, np.inf, dtype)
    sums, seen = np.zeros(shape, dtype), np.zeros(shape)
    width = layer.length if layer.described["mixing"] is not None else max(side, WIDE)
    width = -(-width // side) * side
    for left in range(layer.first_key(int(rows[0])) // width * width, last, width):
        cols = slice(left, min(last, left + width))
        # Rows ascend, so the queries that see a key at all are the last of them.
        first = int(np.searchsorted(rows, left)) if layer.orders_keys else 0
        part: Any = rows[first:]
        if part[-1] - part[0] + 1 == len(part):
            part = slice(int(part[0]), int(part[-1]) + 1)
        starts = np.arange(0, cols.stop - left, side)
        final = layer.blocks("final", heads, part, cols, dtype=dtype)
        at = np.s_[:, first:, left // side : left // side + len(starts)]
        seen[at], lowest = np.diff(starts, append=cols.stop - left), final
        if not layer.by_distance or (layer.causal and cols.stop > rows[first] + 1):
            visible = layer.visible(part, cols)
            seen[at] = np.add.reduceat(visible, starts, axis=1, dtype=np.float64)
            lowest = np.where(visible, final, np.inf)
            final = np.where(visible, final, -np.inf)
        high[at] = np.maximum.reduceat(final, starts, axis=-1)
        low[at] = np.minimum.reduceat(lowest, starts, axis=-1)
        # A cell that a query sees no key of has -inf - -inf = NaN, so its maximum is set to 0.
        top = np.where(np.isfinite(high[at]), high[at], 0)
        final -= np.repeat(top, np.diff(starts, append=cols.stop - left), axis=-1)
        np.exp(final, out=final)
        sums[at] = np.add.reduceat(final, starts, axis=-1)
    top = high.max(axis=-1, keepdims=True).astype(np.float64)
    top = np.where(np.isfinite(top), top, 0.0)
    shift = np.exp(high - top)
    with np.errstate(divide="ignore"):  # a query that sees no key
        lse = top + np.log((shift * sums).sum(axis=-1, keepdims=True, dtype=np.float64))
    if "sink" in layer.arrays:
        lse = np.logaddexp(lse, layer.arrays["sink"][list(heads), None, None])
    norm = np.where(np.isfinite(lse), lse, 0.0)
    factor = np.exp(top - norm)
    return lse[..., 0], np.exp(low - norm), shift * factor, shift * sums * factor, seen
