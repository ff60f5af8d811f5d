"""Attention in blocks of queries, in plain PyTorch: any dtype, any device, memory of block x keys.

Two ways through a block of rows, both recomputed in backward:

    regular   no bias, Toeplitz or Slope at consecutive positions: written out by hand, in place
    general   every other bias and every mixing encoding: the definition on the block's rows,
              under activation checkpointing

In a regular block the rows are taken in reverse, so that a bias by distance is one strided view of
the reversed table (a Hankel matrix: entry i + j) and needs no copy; its gradient is the sum down
the columns of the same view of the score gradients. A slope's running sums are taken relative to
the block before they are rounded. Half precision is computed in float32.
"""

from collections.abc import Iterator
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, inf
from torch.utils.checkpoint import checkpoint

from headscape.attention import reference
from headscape.attention.reference import Inputs
from headscape.bias import Slope, Toeplitz
from headscape.errors import InputError

TINY = 1e-28
"""A weight below this is 0: it is lost beside one of 1, even in float64."""


def attend(inputs: Inputs) -> Float[Tensor, "b h t e"]:
    """Attention of rotated q and k over v; it serves every call."""
    for name, x in (("q", inputs.q), ("k", inputs.k), ("v", inputs.v)):
        if 0 in x.shape:
            raise InputError(f"{name} must hold at least one token, not {tuple(x.shape)}.")
    gap = _gap(inputs)
    return _general(inputs) if gap is None else _regular(inputs, gap)


def _gap(inputs: Inputs) -> int | None:
    """The first query's position minus the first key's, if both are consecutive from there on."""
    at, visible, bias = inputs.positions, inputs.visible, inputs.bias
    if inputs.encoding.mixes or not isinstance(bias, Toeplitz | Slope | None):
        return None
    if visible.q_group is not None or at.q.shape[0] > 1 or at.k.shape[0] > 1:
        return None
    if bool((at.q.diff() != 1).any()) or bool((at.k.diff() != 1).any()):
        return None
    gap = int(at.q[0, 0] - at.k[0, 0])
    return None if inputs.visible.causal and gap < 0 else gap


def _general(inputs: Inputs) -> Tensor:
    def rows_of(q: Tensor, k: Tensor, v: Tensor, rows: slice) -> Tensor:
        part = Inputs(
            q, k, v, inputs.encoding, inputs.bias, inputs.positions, inputs.visible, inputs.scale
        )
        return reference.scores(part, rows).weights.to(v.dtype) @ v

    size = max(1, min(64, 2**25 // (inputs.k.shape[2] * inputs.q.shape[1] * inputs.q.shape[0])))
    blocks = [
        checkpoint(
            rows_of, inputs.q, inputs.k, inputs.v, slice(at, at + size),
            use_reentrant=False, preserve_rng_state=False,
        )
        for at in range(0, inputs.q.shape[2], size)
    ]  # fmt: skip
    return torch.cat(blocks, dim=2)


def _regular(inputs: Inputs, gap: int) -> Tensor:
    q, k, v, bias = inputs.q, inputs.k, inputs.v, inputs.bias
    causal, dtype = inputs.visible.causal, q.dtype
    work = torch.promote_types(dtype, torch.float32)
    table = weight = row = col = None
    if isinstance(bias, Toeplitz):
        # Reversed, from the largest distance down, and hidden below 0 if causal.
        most, least = gap + q.shape[2] - 1, gap - k.shape[2] + 1 - q.shape[2]
        distance = torch.arange(most, least - 1, -1, device=q.device)
        column = (distance + bias.zero).clamp(0, bias.table.shape[1] - 1)
        table = bias.table.index_select(1, column).to(work)
        table = table.masked_fill(distance < 0, -inf) if causal else table
    elif isinstance(bias, Slope):
        row, col = (x.double().expand(q.shape[0], -1, -1) for x in (bias.row, bias.col))
        if bias.weight is not None:
            weight = bias.weight.to(work).expand(q.shape[0], -1, -1)
    out: Tensor = Regular.apply(
        q.to(work), k.to(work), v.to(work), table, weight, row, col, gap, causal, inputs.scale
    )  # type: ignore[no-untyped-call]
    return out.to(dtype)


class Regular(torch.autograd.Function):
    """Attention at consecutive positions, a block of queries and a group of heads at a time."""

    @staticmethod
    def forward(  # noqa: D102
        ctx: Any,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        table: Tensor | None,
        weight: Tensor | None,
        row: Tensor | None,
        col: Tensor | None,
        gap: int,
        causal: bool,  # noqa: FBT001
        scale: float,
    ) -> Tensor:
        ctx.rule = gap, causal, scale
        blocks = _Blocks(q, k, v, table, weight, row, col, gap, causal, scale)
        out = torch.empty_like(blocks.q)
        for heads, start, end, keys in blocks:
            p = blocks.weights(heads, start, end, keys)
            out[heads, start:end] = (p @ blocks.v[heads, :keys]).flip(1)
        out = out.view(q.shape)
        ctx.save_for_backward(q, k, v, table, weight, row, col, out)
        return out

    @staticmethod
    def backward(ctx: Any, d_out: Tensor) -> tuple[Tensor | None, ...]:  # noqa: D102
        q, k, v, table, weight, row, col, out = ctx.saved_tensors
        blocks = _Blocks(q, k, v, table, weight, row, col, *ctx.rule)
        mean = (d_out * out).sum(-1).view(blocks.q.shape[0], -1, 1).neg_()
        d_out = d_out.reshape(blocks.q.shape)
        d_q, d_k, d_v = torch.empty_like(blocks.q), *map(torch.zeros_like, (blocks.k, blocks.v))
        d_bias = [None if x is None else torch.zeros_like(x) for x in blocks.bias]
        for heads, start, end, keys in blocks:
            p = blocks.weights(heads, start, end, keys)
            d_rows = d_out[heads, start:end].flip(1)
            d_v[heads, :keys].baddbmm_(p.mT, d_rows)
            less = mean[heads, start:end].flip(1).expand_as(p)
            ds = blocks.buffer(1, p.shape)
            torch.baddbmm(less, d_rows, blocks.v[heads, :keys].mT, out=ds).mul_(p)
            d_q[heads, start:end] = torch.bmm(ds, blocks.k[heads, :keys]).mul_(ctx.rule[2]).flip(1)
            d_k[heads, :keys].baddbmm_(ds.mT, blocks.rows(heads, start, end))
            blocks.learn(d_bias, ds, heads, start, end, keys)
        found = [None if d is None else blocks.shaped(d, x) for d, x in zip(
            d_bias, (table, weight, row, col), strict=True)]  # fmt: skip
        return d_q.view(q.shape), d_k.view(k.shape), d_v.view(v.shape), *found, None, None, None


class _Blocks:
    """The blocks of one call, its scratch, and a block's weights with rows in reverse."""

    def __init__(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        table: Tensor | None,
        weight: Tensor | None,
        row: Tensor | None,
        col: Tensor | None,
        gap: int,
        causal: bool,  # noqa: FBT001
        scale: float,
    ) -> None:
        b, h, t, e = q.shape
        self.q, self.k, self.v = (x.reshape(b * h, -1, e) for x in (q, k, v))
        self.gap, self.causal, self.scale, self.batch = gap, causal, scale, b
        self.table = None if table is None else table.repeat(b, 1)
        self.weight, self.row, self.col = (
            None if x is None else x.reshape(b * h, -1) for x in (weight, row, col)
        )
        self.size = 64 if t <= 512 else 128 if t <= 2048 else 256
        self.heads = b * h if t <= 2048 else min(4, b * h)
        self.scratch: list[Tensor] = []

    @property
    def bias(self) -> tuple[Tensor | None, Tensor | None, Tensor | None, Tensor | None]:
        return self.table, self.weight, self.row, self.col

    def __iter__(self) -> Iterator[tuple[slice, int, int, int]]:
        for first in range(0, self.q.shape[0], self.heads):
            for start in range(0, self.q.shape[1], self.size):
                end = min(start + self.size, self.q.shape[1])
                keys = self.k.shape[1]
                if self.causal:
                    keys = min(keys, self.gap + end)
                yield slice(first, first + self.heads), start, end, keys

    def buffer(self, which: int, shape: tuple[int, ...]) -> Tensor:
        while len(self.scratch) <= which:
            most = self.heads * self.size * (self.k.shape[1] + self.size)
            self.scratch.append(self.q.new_empty(most))
        count = torch.Size(shape).numel()
        return self.scratch[which][:count].view(shape)

    def rows(self, heads: slice, start: int, end: int) -> Tensor:
        return self.q[heads, start:end].flip(1).mul_(self.scale)

    def weights(self, heads: slice, start: int, end: int, keys: int) -> Tensor:
        q, k = self.rows(heads, start, end), self.k[heads, :keys].mT
        s = self.buffer(0, (q.shape[0], end - start, keys))
        table, weight, row, col = self.bias
        if table is not None:
            by_head = table[heads]
            view = by_head.as_strided(
                s.shape, (by_head.stride(0), 1, 1), by_head.storage_offset() + self.q.shape[1] - end
            )
            torch.baddbmm(view, q, k, out=s)
        elif row is not None and col is not None:
            slope = (row[heads, start, None] - col[heads, :keys]).to(s.dtype)[:, None]
            if weight is None:
                torch.baddbmm(slope.expand_as(s), q, k, out=s)
            else:
                torch.mul(weight[heads, start:end, None].flip(1), slope, out=s)
                s.baddbmm_(q, k)
        else:
            torch.bmm(q, k, out=s)
        if self.causal and table is None and self.gap + start < keys - 1:
            seen = self.gap + start
            lower = s.new_zeros(end - start, keys - seen)
            s[:, :, seen:] += lower.fill_(-inf).triu_(1).flip(0)
        torch.softmax(s, -1, out=s)
        # A bias can make weights so small that they, or their products, are denormal: slow on CPUs.
        return s if table is None and col is None else torch.threshold_(s, TINY, 0.0)

    def learn(
        self,
        d_bias: list[Tensor | None],
        ds: Tensor,
        heads: slice,
        start: int,
        end: int,
        keys: int,
    ) -> None:
        """Add a block's score gradients, rows in reverse, to the gradients of the bias."""
        d_table, d_weight, d_row, d_col = d_bias
        n, rows = ds.shape[:2]
        if d_table is not None:
            # Rows one shorter than the buffer's: each starts a column later, so entry i + j of
            # every row stands in column i + j.
            wide = self.buffer(2, (n, rows, keys + rows))
            wide[:, :, :keys], wide[:, :, keys:] = ds, 0
            shape = (n, rows, keys + rows - 1)
            skewed = wide.as_strided(shape, (wide.stride(0), keys + rows - 1, 1))
            first = self.q.shape[1] - end
            d_table[heads, first : first + keys + rows - 1] += skewed.sum(1)
        if d_row is not None and d_col is not None:
            _, weight, row, col = self.bias
            assert row is not None
            assert col is not None
            g = ds.sum(-1)
            w = torch.ones_like(g) if weight is None else weight[heads, start:end].flip(1)
            d_row[heads, start:end] += (w * g).flip(1)
            d_col[heads, :keys] -= torch.bmm(w[:, None], ds)[:, 0]
            if weight is not None and d_weight is not None:
                near = row[heads, start, None]
                by_col = torch.bmm(ds, (near - col[heads, :keys]).to(ds.dtype)[..., None])[..., 0]
                own = (row[heads, start:end] - near).to(ds.dtype).flip(1)
                d_weight[heads, start:end] += (own * g + by_col).flip(1)

    def shaped(self, d: Tensor, x: Tensor) -> Tensor:
        """A gradient per head of the batch, as that of the tensor it belongs to."""
        return d.view(self.batch, *x.shape).sum(0) if x.ndim == 2 else d.view(x.shape)
