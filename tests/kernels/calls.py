"""Random calls of attention with everything that may act on scores, for paths to be compared on.

A table that multiplies scores ("factor") and stick-breaking ("sticks") are kinds of bias here, as
the kernels combine neither with a second bias.

`Call` holds leaves in float64 and makes AttentionCall of any dtype from them, so that one call
can be run by every path and differentiated. `random_call(seed)` draws lengths around tile borders,
batch sizes, grouped heads, head dims, positions, packed groups, padding, windows and every kind of
bias.
"""

import random
from dataclasses import dataclass, field

import torch
from torch import Tensor

from headscape.call import definition
from headscape.call.bias import Bias, Perceptron, RelativeCurves, Slope, Toeplitz
from headscape.call.definition import AttentionCall
from headscape.call.mixing import Product
from headscape.call.positions import Positions, Visible
from headscape.call.weighting import Sticks

BIASES = [
    "none", "toeplitz", "slope", "weighted slope", "pieces", "sheared", "sheared by key",
    "sheared in buckets, by key", "sheared, constant by key", "factor", "sticks",
    "sticks, current", "sticks, dropped", "sticks, current, dropped",
]  # fmt: skip
LENGTHS = [1, 2, 7, 15, 16, 17, 31, 63, 64, 65, 100, 127, 128, 129, 140, 200, 257]


@dataclass
class Call:
    """One call; every tensor that has a gradient is in `leaves`."""

    kind: str
    leaves: dict[str, Tensor]
    positions: Positions
    visible: Visible
    softcap: float | None = None
    zero: int = 0
    upstream: Tensor = field(default_factory=lambda: torch.zeros(0))

    def inputs(self, leaves: dict[str, Tensor]) -> AttentionCall:
        q = leaves["q"]
        mixing = weighting = None
        if self.kind == "factor":
            mixing = Product(Toeplitz(leaves["table"], self.zero))
        if "sticks" in self.kind:
            weighting = Sticks("current" in self.kind, "dropped" not in self.kind)
        return AttentionCall(
            q, leaves["k"], leaves["v"], self.bias(leaves), self.positions, self.visible,
            q.shape[3] ** -0.5, temperature=leaves.get("temperature"), softcap=self.softcap,
            sink=leaves.get("sink"), mixing=mixing, weighting=weighting,
        )  # fmt: skip

    def bias(self, x: dict[str, Tensor]) -> Bias | None:
        if self.kind == "toeplitz":
            return Toeplitz(x["table"], self.zero)
        if "slope" in self.kind:
            return Slope(x.get("weight"), x["row"].double(), x["col"].double())
        if self.kind == "pieces":
            mlp = (x["in_weight"], x["in_bias"], x["out_weight"], x["out_bias"])
            return Perceptron(x["near"], self.zero, x["far"], *mlp, 0.1)
        if "sheared" in self.kind:
            n, column = x["basis"].shape[-1], None
            key = (x["u"], x["key_basis"].expand(-1, -1, n)) if "u" in x else None
            if "buckets" in self.kind:
                # Distances that share a column, that follow each other, and that leave one out.
                column = (torch.arange(2 * n) * 7 % 5 // 2).cumsum(0).clamp(max=n - 1)
            return RelativeCurves(x["r"], x["basis"], self.zero, key, column)
        return None

    def outcome(
        self, path: object, dtype: torch.dtype, bias_dtype: torch.dtype | None = None
    ) -> dict[str, Tensor]:
        """The output and the gradient of every leaf."""
        given = {
            name: x.detach().to(dtype if name in "qkv" else bias_dtype or dtype).requires_grad_()
            for name, x in self.leaves.items()
        }
        out = path(self.inputs(given))
        assert out.dtype == dtype
        grads = torch.autograd.grad(out, list(given.values()), self.upstream.to(dtype))
        return {"out": out.detach()} | dict(zip(given, grads, strict=True))


def agree(call: Call, path: object) -> None:
    """The path equals the definition in float64, within what float32 itself does to it.

    Budget: twice the error of the dense definition in float32, and what rounding as many terms as
    there are tokens amounts to at random, at the size of the largest number on the way.
    """
    exact = call.outcome(definition.run, torch.float64)
    rough = call.outcome(definition.run, torch.float32)
    fused = call.outcome(path, torch.float32)
    tokens = sum(call.leaves[name].shape[2] for name in "qk")
    values = definition.shared(call.leaves["v"], call.upstream.shape[1])
    on_the_way = [*exact.values(), *call.leaves.values(), call.upstream @ values.mT]
    largest = max(float(x.abs().max()) for x in on_the_way)
    rounding = torch.finfo(torch.float32).eps * largest * (2 + 2 * tokens**0.5)
    for name, wanted in exact.items():
        budget = 2 * float((rough[name] - wanted).abs().max()) + rounding
        error = float((fused[name] - wanted).abs().max())
        assert error <= budget, (name, error, budget)


def random_call(seed: int, kinds: list[str] | None = None) -> Call:
    """A call drawn from `seed`."""
    draw = random.Random(seed)  # noqa: S311
    torch.manual_seed(seed)
    kind = draw.choice(kinds or BIASES)
    b, shared, groups = draw.choice([1, 1, 2]), draw.choice([1, 1, 2, 3]), draw.choice([1, 2])
    h, e = groups * shared, draw.choice([8, 16, 24, 32, 48, 64])
    ev = draw.choice([e, e, 8, 40])
    s = draw.choice(LENGTHS)
    t = draw.choice([s, s, s, max(1, s // 3), 1])
    causal = draw.random() < 0.75
    positions, visible = _places(draw, b, t, s, causal=causal)
    leaves = {
        "q": _some(b, h, t, e), "k": _some(b, groups, s, e), "v": _some(b, groups, s, ev),
    } | _bias(draw, kind, b, h, t, s)  # fmt: skip
    if draw.random() < 0.4:
        leaves["temperature"] = _some(draw.choice([1, b]), draw.choice([1, h]), t).abs() + 0.2
    if draw.random() < 0.4 and "sticks" not in kind:
        leaves["sink"] = _some(h)
    call = Call(kind, leaves, positions, visible, draw.choice([None, None, 0.7, 5.0]))
    call.zero = draw.choice([0, 3, s])
    call.upstream = _some(b, h, t, ev)
    _cover(call)
    return call


def plain_call(kind: str, length: int, head_dim: int = 24, keys: int = 2) -> Call:
    """A causal call of four heads at consecutive positions."""
    torch.manual_seed(length)
    leaves = {
        "q": _some(1, 4, length, head_dim), "k": _some(1, keys, length, head_dim),
        "v": _some(1, keys, length, head_dim),
    } | _bias(random.Random(3), kind, 1, 4, length, length)  # fmt: skip  # noqa: S311
    call = Call(kind, leaves, Positions.span(length), Visible(), zero=length)
    call.upstream = _some(1, 4, length, head_dim)
    _cover(call)
    return call


def _cover(call: Call) -> None:
    """Lengthen a table to the distances of the call's positions and of as many consecutive ones."""
    (low, high), keys = call.positions.bounds, call.leaves["k"].shape[2]
    for name in call.leaves.keys() & {"table", "near"}:
        if not call.visible.causal:
            call.zero = max(call.zero, -low)
        table = call.leaves[name]
        missing = call.zero + max(high + 1, keys) - table.shape[-1]
        call.leaves[name] = torch.cat([table, _some(*table.shape[:-1], max(missing, 0))], dim=-1)


def _some(*shape: int) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64)


def _places(
    draw: random.Random, b: int, t: int, s: int, *, causal: bool
) -> tuple[Positions, Visible]:
    window = draw.choice([None, None, 1, 2, 8, 16, 17, 33, 64, 127, 128, 129, 300])
    at = torch.arange(s)[None]
    kind = draw.choice(["plain", "plain", "offset", "packed", "padded", "irregular"])
    if kind == "packed":
        size = draw.choice([5, 40, 70])
        at, group = at % size, at // size
    elif kind == "padded":
        pads = torch.tensor([[draw.randrange(s)] for _ in range(b)])
        at, group = (at - pads).clamp(min=0), (at >= pads).long() - 1
    else:
        group = None
    if kind == "irregular":
        at = at + 3 * (at > s // 2) + (at > s // 3)
    where = Positions(at[:, s - t :] + (draw.randrange(4) if kind == "offset" else 0), at)
    if group is None:
        return where, Visible(causal, window=window)
    return where, Visible(causal, group[:, s - t :], group, window)


def _bias(draw: random.Random, kind: str, b: int, h: int, t: int, s: int) -> dict[str, Tensor]:
    n, rows = s + draw.choice([1, 5, s]), draw.choice([1, b])
    if kind in ("toeplitz", "factor"):
        return {"table": _some(h, n)}
    if "slope" in kind:
        found = {"row": _some(rows, h, t), "col": _some(b, h, s)}
        return found | ({"weight": _some(rows, h, t)} if "weighted" in kind else {})
    if kind == "pieces":
        m = draw.choice([1, 5, 32])
        return {
            "near": _some(n), "far": _some(rows, t).abs() + 0.5, "in_weight": _some(m),
            "in_bias": _some(m), "out_weight": _some(h, m), "out_bias": _some(h),
        }  # fmt: skip
    if "sheared" in kind:
        c, c2, heads = draw.choice([1, 3, 6, 16, 40]), draw.choice([1, 5, 24]), draw.choice([1, h])
        found = {"r": _some(rows, h, t, c) / c**0.5, "basis": _some(heads, c, n)}
        if "key" in kind:
            columns = 1 if "constant" in kind else n
            found |= {"u": _some(rows, h, s, c2) / c2**0.5, "key_basis": _some(heads, c2, columns)}
        return found
    return {}
