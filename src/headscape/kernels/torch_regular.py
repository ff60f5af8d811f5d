"""Attention at consecutive positions in tiles of queries and keys, in plain PyTorch.

Forward saves out and lse; backward recomputes the weights:

    s_ij = scale q_i . k_j + B_ij       p_ij = exp(s_ij - lse_i)        out_i = sum_j p_ij v_j
    ds_ij = p_ij (d_out_i . v_j - d_out_i . out_i)

Batch and heads are one axis, g = b h. The bias is absent, a table by distance, or a slope
weight_i (row_i - col_j).

Terms that are sums of products of a query's and a key's numbers are computed by the same matrix
product, as extra entries of the head dimension: a slope's weight_i (row_i - col_j), lse_i and
d_out_i . out_i. Running sums are float64; they are made relative to the block of queries before
they are rounded. Scores are in units of ln 2, because torch's exp is slow where it underflows and
exp2 is not.

Queries are in reverse order, so that a bias by distance is one strided view of the reversed table
(a Hankel matrix: entry i + j); its gradient is the sum over the columns of the same view of ds.
A slope's row_i shifts all scores of a query equally, so its exact gradient is 0. The rounding error
computed in its place cancels that of col_j, which would otherwise accumulate when the gradients of
running sums are summed.

Keys that get no weight are skipped, by bounds from the bias alone. Let r be the visible key at the
query's own position, or the nearest one. The Cauchy-Schwarz inequality bounds |scale q_i . k_j| by
a number `size`, so

    B_ij - B_ir - 2 size <= s_ij - s_ir <= B_ij - B_ir + 2 size

The weight p_ij is at most exp(s_ij - s_ir); keys where that is below `TINY` are skipped. The bounds
are taken over blocks of queries and keys, so they are safe but not tight. A NaN is never skipped.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, cast

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor, inf

LOG2E = 1 / math.log(2)
TINY = 1e-28
"""Weights below this count as 0; added to a weight of 1 they vanish even in float64."""
MIN_LOG2, MAX_LOG2 = math.log2(TINY), 100.0
"""Scores are clamped to this range, where 2^s is a normal float32; only hidden keys exceed it."""
SAFE_EXPONENT = 55.0
"""exp of this and of minus half of it, summed over any number of keys, are normal float32."""
BLOCK = 64
"""Queries per block of the bounds, and keys per block."""
SHORT = 512
"""Up to this many keys, searching for keys to skip costs more than it saves."""
HEADS = 3
"""Heads per thread processed together on a CPU; on other devices all are."""
FORWARD, BACKWARD = 64, 128
"""Queries per tile, multiples of `BLOCK`."""
KEYS = 512
"""Keys per tile of the backward pass, half of it for short calls; forward has one tile."""


@dataclass(frozen=True, kw_only=True)
class Rule:
    """The arguments that are not tensors."""

    gap: int
    """The first query's position minus the first key's."""
    causal: bool
    """Whether keys after their query are hidden."""
    scale: float
    """The factor of q . k."""


@dataclass(frozen=True)
class Operands:
    """The tensors of one call, or their gradients."""

    q: Float[Tensor, "g t e"]
    k: Float[Tensor, "g s e"]
    v: Float[Tensor, "g s ev"]
    table: Float[Tensor, "g n"] | None = None
    """The bias of distances gap + t - 1 down to gap - s + 1."""
    weight: Float[Tensor, "g t"] | None = None
    row: Float[Tensor, "g t"] | None = None
    col: Float[Tensor, "g s"] | None = None

    def heads(self, some: slice) -> "Operands":
        """Return the operands of some of the heads."""
        every: list[Any] = [None if x is None else x[some] for x in vars(self).values()]
        return Operands(*every)


@dataclass(frozen=True)
class Reach:
    """The bounds of one call."""

    first: list[list[int]]
    """The first key not skipped, by head and block of queries, last queries first."""
    cannot_overflow: bool
    """exp(s_ij - B_ir) cannot overflow, and its sum over a query's keys cannot underflow."""
    may_underflow: bool
    """Weights below TINY may occur."""


class Regular(torch.autograd.Function):
    """Attention as an autograd function of a `Rule` and the fields of `Operands`."""

    @staticmethod
    def forward(ctx: Any, rule: Rule, *tensors: Tensor | None) -> Tensor:  # noqa: D102
        every = Operands(*cast("tuple[Any, ...]", tensors))
        known = bounds(every, rule)
        out = every.q.new_empty(*every.q.shape[:2], every.v.shape[2])
        lse = every.q.new_empty(every.q.shape[:2])
        scratch = _Scratch(every.q)
        for heads in _groups(every.q):
            part = _Part(every, heads, rule, known, FORWARD, scratch)
            part.forward(out[heads], lse[heads])
        ctx.rule, ctx.known = rule, known
        ctx.save_for_backward(*tensors, out, lse)
        return out

    @staticmethod
    def backward(ctx: Any, d_out: Tensor) -> tuple[Tensor | None, ...]:  # noqa: D102
        *tensors, out, lse = ctx.saved_tensors
        every = Operands(*tensors)
        grads = [torch.empty_like(x) for x in tensors[:3]] + [
            torch.zeros_like(x) if need else None
            for x, need in zip(tensors[3:], ctx.needs_input_grad[4:], strict=True)
        ]
        scratch, gradients = _Scratch(every.q), Operands(*cast("list[Any]", grads))
        for heads in _groups(every.q):
            part = _Part(every, heads, ctx.rule, ctx.known, BACKWARD, scratch)
            part.backward(out[heads], d_out[heads], lse[heads], gradients.heads(heads))
        return None, *grads


def _groups(q: Tensor) -> Iterator[slice]:
    """Yield slices of heads to process together, of nearly equal size."""
    n = q.shape[0]
    most = HEADS * torch.get_num_threads() if q.device.type == "cpu" else n
    size = math.ceil(n / math.ceil(n / most))
    for first in range(0, n, size):
        yield slice(first, first + size)


class _Scratch:
    """Buffers that all tiles share."""

    def __init__(self, like: Tensor) -> None:
        self.like = like
        self.buffers: dict[str, Tensor] = {}
        self.zeroed: dict[tuple[int, int, int], Tensor] = {}

    def take(self, name: str, *shape: int) -> Tensor:
        """Return a buffer of this shape with arbitrary contents."""
        count = math.prod(shape)
        if name not in self.buffers or self.buffers[name].shape[0] < count:
            self.buffers[name] = self.like.new_empty(count)
        return self.buffers[name][:count].view(shape)

    def padded(self, n: int, r: int, c: int) -> Tensor:
        """Return rows of c followed by r zeros each; callers must not write to the zeros."""
        if (n, r, c) not in self.zeroed:
            self.zeroed[n, r, c] = self.like.new_zeros(n, r, c + r)
        return self.zeroed[n, r, c]


class _Part:
    """Some heads of a call, with queries reversed and extra entries appended to q and k."""

    def __init__(
        self, every: Operands, heads: slice, rule: Rule, known: Reach, size: int, scratch: _Scratch
    ) -> None:
        part = self.part = every.heads(heads)
        self.rule, self.known, self.size, self.scratch = rule, known, size, scratch
        n, t, e = part.q.shape
        self.n, self.t, self.e, self.s = n, t, e, part.k.shape[1]
        self.ev = part.v.shape[2]
        self.last = rule.gap + t - 1
        wide = e + (1 if part.row is None else 2)
        self.q, self.k = scratch.take("q", n, t, wide), scratch.take("k", n, wide, self.s)
        torch.mul(part.q.flip(1), rule.scale, out=self.q[..., :e])
        torch.mul(part.k.mT, LOG2E, out=self.k[:, :e])
        self.k[:, -1] = 1
        self.table = None if part.table is None else part.table * LOG2E
        # The part of a slope that a query adds to all its scores, relative to its block.
        self.own: Tensor | float = 0.0
        if part.row is not None and part.col is not None:
            weight = 1.0 if part.weight is None else part.weight.flip(1)
            row, self.col = part.row.flip(1) * LOG2E, part.col * LOG2E
            self.near = row[:, ::size].contiguous()
            self.ahead = row - self.near.repeat_interleave(size, 1)[:, :t]
            self.own = weight * self.ahead
            self.q[..., e] = weight
        self.blocks = torch.split(self.q, size, 1)
        per = size // BLOCK
        starts = range(0, len(known.first[0]), per)
        self.first = [min(min(x[at : at + per]) for x in known.first[heads]) for at in starts]
        i = torch.arange(size, device=part.q.device)
        self.shown = (i[:, None] + i <= size - 2).to(part.q.dtype)

    def forward(self, out: Float[Tensor, "g t ev"], lse: Float[Tensor, "g t"]) -> None:
        """Write the output and, in reverse order, log2 of each query's softmax denominator."""
        back = self.scratch.take("back", len(self.blocks), self.n, self.size, self.ev)
        total, base = torch.empty_like(lse), torch.zeros_like(lse)
        if self.known.cannot_overflow:
            base += self.reference()
        self.q[..., -1] = self.own - base
        parts = zip(torch.split(total, self.size, 1), torch.split(base, self.size, 1), strict=True)
        for block, (sums, largest) in enumerate(parts):
            keys = slice(self.first[block], self.seen(block))
            s = self.scores(block, keys)
            if not self.known.cannot_overflow:
                self.subtract_largest(s, block, keys, largest)
            p = self.weights(s, block, keys)
            torch.sum(p, -1, out=sums)
            torch.bmm(p, self.part.v[:, keys], out=back[block, :, : s.shape[1]])
        torch.div(self.in_order(back), total.flip(1)[..., None], out=out)
        torch.add(base, total.log2_(), out=lse)

    def backward(
        self,
        out: Float[Tensor, "g t ev"],
        d_out: Float[Tensor, "g t ev"],
        lse: Float[Tensor, "g t"],
        gradients: Operands,
    ) -> None:
        """Write the gradients."""
        part, scratch, n, e, ev = self.part, self.scratch, self.n, self.e, self.ev
        self.q[..., -1] = self.own - lse
        d, v = scratch.take("d", n, self.t, ev + 1), scratch.take("v", n, ev + 1, self.s)
        d[..., :ev], d[..., -1] = d_out.flip(1), torch.linalg.vecdot(out, d_out).flip(1).neg_()
        v[:, :ev], v[:, -1] = part.v.mT, 1
        d_q = scratch.take("d_q", len(self.blocks), n, self.size, e).zero_()
        self.moments = part.q.new_zeros(n, 2, self.t)
        rows = list(zip(self.blocks, torch.split(d, self.size, 1), d_q, strict=True))
        width = KEYS if self.s > KEYS else KEYS // 2
        for start in range(0, self.s, width):
            stop = min(start + width, self.s)
            d_k = scratch.take("d_k", n, e, stop - start).zero_()
            d_v = scratch.take("d_v", n, ev, stop - start).zero_()
            for block, (q, do, dq) in enumerate(rows):
                keys = slice(start, min(stop, self.seen(block)))
                if keys.stop <= start or self.first[block] >= stop:
                    continue
                p = self.weights(self.scores(block, keys), block, keys)
                _add(d_v, do[..., :ev].mT, p)
                ds = torch.bmm(do, v[:, :, keys], out=scratch.take("ds", *p.shape))
                if gradients.table is None:
                    ds.mul_(p)
                else:
                    ds = torch.mul(ds, p, out=scratch.padded(*p.shape)[:, :, : p.shape[2]])
                _add(d_k, q[..., :e].mT, ds)
                dq[:, : q.shape[1]].baddbmm_(ds, part.k[:, keys])
                self.learn(ds, block, keys, gradients)
            gradients.k[:, start:stop], gradients.v[:, start:stop] = d_k.mT, d_v.mT
        torch.mul(self.in_order(d_q), self.rule.scale, out=gradients.q)
        by_col, by_row = self.moments.unbind(1)
        if gradients.row is not None:
            gradients.row.copy_((self.q[..., e] * by_row).flip(1))
        if gradients.weight is not None:
            gradients.weight.copy_((by_col + self.ahead * by_row).div_(LOG2E).flip(1))

    def learn(
        self, ds: Float[Tensor, "g r c"], block: int, keys: slice, gradients: Operands
    ) -> None:
        """Add a tile's score gradients to those of the bias; call it right after `scores`."""
        start = block * self.size
        n, r, c = ds.shape
        if gradients.table is not None:
            # A row stride one below the padded width shifts each row by one column, so entry j of
            # row i is in column i + j.
            skewed = ds.as_strided((n, r, c + r - 1), (ds.stride(0), c + r - 1, 1))
            first = start + keys.start
            gradients.table[:, first : first + c + r - 1] += skewed.sum(1)
        if gradients.col is not None:
            gradients.col[:, keys] -= torch.bmm(self.blocks[block][..., -2, None].mT, ds)[:, 0]
        if gradients.row is not None or gradients.weight is not None:
            # The last two entries of a key are its running sum and 1.
            self.moments[..., start : start + r] += torch.bmm(self.k[:, -2:, keys], ds.mT)

    def reference(self) -> Tensor | float:
        """Return the bias of every query, in reverse order, for the key at its own position."""
        part, own = self.part, slice(self.rule.gap, self.last + 1)
        if self.table is not None:
            return self.table[:, self.last, None]
        if part.row is None or part.col is None:
            return 0.0
        slope = (part.row - part.col[:, own]) * LOG2E
        return (slope if part.weight is None else part.weight * slope).flip(1)

    def in_order(self, blocks: Float[Tensor, "m n r x"]) -> Float[Tensor, "g t x"]:
        """Return blocks of reversed queries as one sequence, first query first."""
        return blocks.transpose(0, 1).reshape(self.n, -1, blocks.shape[3])[:, : self.t].flip(1)

    def seen(self, block: int) -> int:
        """Return how many keys a block's queries see."""
        return min(self.s, self.last - block * self.size + 1) if self.rule.causal else self.s

    def scores(self, block: int, keys: slice) -> Float[Tensor, "g r c"]:
        """Return a tile's scores in units of ln 2, plus the queries' last entry."""
        q, k = self.blocks[block], self.k[:, :, keys]
        s = self.scratch.take("s", self.n, q.shape[1], k.shape[2])
        if self.table is not None:
            first = block * self.size + keys.start
            view = self.table.as_strided(s.shape, (self.table.shape[1], 1, 1), first)
            torch.baddbmm(view, q, k, out=s)
            return s
        if self.part.row is not None:
            torch.sub(self.near[:, block, None], self.col[:, keys], out=k[:, -2])
        torch.bmm(q, k, out=s)
        return s

    def weights(self, s: Float[Tensor, "g r c"], block: int, keys: slice) -> Float[Tensor, "g r c"]:
        """Return 2^s, 0 where hidden; clamped to avoid denormal numbers, which are slow on CPUs."""
        if self.known.may_underflow or not self.known.cannot_overflow:
            s.clamp_(2 * MIN_LOG2 if s.dtype == torch.float64 else MIN_LOG2, MAX_LOG2)
        p = s.exp2_()
        border = self.border(p, block, keys)
        if border is not None:
            border[0].mul_(border[1])
        return p

    def subtract_largest(
        self, s: Float[Tensor, "g r c"], block: int, keys: slice, largest: Float[Tensor, "g r"]
    ) -> None:
        """Subtract the largest visible score of each query and write it to `largest`."""
        border = self.border(s, block, keys)
        if border is not None:
            border[0].masked_fill_(border[1] == 0, -inf)
        torch.amax(s, -1, out=largest)
        s.sub_(largest[..., None])

    def border(self, x: Tensor, block: int, keys: slice) -> tuple[Tensor, Tensor] | None:
        """Return the columns that some of a tile's queries do not see, and 1 where they do."""
        r = x.shape[1]
        first = self.last - block * self.size - r + 2
        if not self.rule.causal or first >= keys.stop:
            return None
        shown = self.shown[self.size - r :, max(0, keys.start - first) : keys.stop - first]
        return x[:, :, max(0, first - keys.start) :], shown


def _add(to: Float[Tensor, "g e s"], a: Float[Tensor, "g e r"], b: Float[Tensor, "g r c"]) -> None:
    """Add a b to the first columns of `to`; baddbmm_ is fast on contiguous memory only."""
    if to.shape[2] == b.shape[2]:
        to.baddbmm_(a, b)
    else:
        to[:, :, : b.shape[2]] += torch.bmm(a, b)


def bounds(part: Operands, rule: Rule) -> Reach:
    """Return the bounds of a call; they skip keys only if it is causal and has every own key."""
    n, t, _ = part.q.shape
    own = rule.gap + t - 1
    if not rule.causal or own >= part.k.shape[1]:
        return Reach(_everything(n, t), cannot_overflow=False, may_underflow=True)
    longest = [torch.linalg.vector_norm(x, dim=-1).amax(-1) for x in (part.q, part.k)]
    slack = 2 * abs(rule.scale) * longest[0] * longest[1]
    if part.table is not None:
        return _by_distance(part.table, own, t, slack)
    if part.col is not None:
        return _by_slope(part.weight, part.col, rule.gap, t, slack)
    return Reach(
        _everything(n, t), cannot_overflow=bool((slack < SAFE_EXPONENT).all()), may_underflow=False
    )


def _by_distance(
    table: Float[Tensor, "g n"], own: int, t: int, slack: Float[Tensor, " g"]
) -> Reach:
    """Return the bounds for a table whose column `own` is distance 0 and column 0 the largest."""
    far = table[:, : own + 1] - table[:, own, None]
    counts = ~(far < math.log(TINY) - slack[:, None])
    reached = (own - _first(counts)).tolist()
    cannot_overflow = bool((far.amax(1) + slack < SAFE_EXPONENT).all())
    may_underflow = bool((far.amin(1) - slack < math.log(TINY)).any())
    ends = [min(t, start + BLOCK) for start in range(0, t, BLOCK)]
    return Reach(
        [[max(0, own + 1 - end - d) for end in ends] for d in reached],
        cannot_overflow=cannot_overflow,
        may_underflow=may_underflow,
    )


def _by_slope(
    weight: Float[Tensor, "g t"] | None,
    col: Float[Tensor, "g s"],
    gap: int,
    t: int,
    slack: Float[Tensor, " g"],
) -> Reach:
    """Return the bounds for a slope: B_ij - B_ir = weight_i (col_r - col_j).

    It is at most 0 if the sums never increase and no weight is negative.
    """
    falls = (col.diff() <= 0).all() & (slack < SAFE_EXPONENT).all()
    if weight is not None:
        falls &= (weight >= 0).all()
    cannot_overflow = bool(falls)
    if col.shape[1] <= SHORT:
        return Reach(_everything(len(col), t), cannot_overflow=cannot_overflow, may_underflow=True)
    near = col[:, gap : gap + t].flip(1)
    (low, high), (least, most) = _ranges(near), _ranges(col)
    gaps = [low[:, :, None] - most[:, None], high[:, :, None] - least[:, None]]
    if weight is not None:
        gaps = [w[:, :, None] * gap for w in _ranges(weight.flip(1)) for gap in gaps]
    above = torch.stack(gaps).amax(0) + slack[:, None, None]
    first = BLOCK * _first(~(above < math.log(TINY)))
    return Reach(first.tolist(), cannot_overflow=cannot_overflow, may_underflow=True)


def _everything(heads: int, t: int) -> list[list[int]]:
    """Return key 0 as the first key of every head and block, which skips nothing."""
    return [[0] * len(range(0, t, BLOCK))] * heads


def _first(counts: Bool[Tensor, "*g n"]) -> Int[Tensor, "*g"]:
    return counts.to(torch.uint8).argmax(-1)


def _ranges(x: Float[Tensor, "g t"]) -> tuple[Tensor, Tensor]:
    """Return the minimum and the maximum of every block."""
    whole = F.pad(x[None], (0, -x.shape[1] % BLOCK), mode="replicate")[0]
    return torch.aminmax(whole.reshape(x.shape[0], -1, BLOCK), dim=2)
