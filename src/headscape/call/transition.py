"""How keys change on their way to a query, and scores with that: reflections (PaTH), decay (Wall).

A cached key is stored as it is after the changes of all tokens so far, so what older tokens do to
it is not needed again. At least float32 throughout.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import wraps
from typing import Any, TypeVar

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

T = TypeVar("T")
BLOCK = 64
"""Tokens of one triangular solve, and the most queries that share a decay's anchor."""
LARGEST_EXPONENT = 40.0
"""exp of this and of twice this are in the range of float32."""


def full_precision(method: Callable[..., T]) -> Callable[..., T]:
    """Return the method of a dataclass of tensors, run without autocast.

    Autocast must not round its products to half precision: a factor of a decay may be exp(40),
    which float16 does not have, and a triangular solve amplifies how its right-hand side was
    rounded.
    """

    @wraps(method)
    def run(self: Any, *args: Any) -> T:
        device = next(x.device for x in vars(self).values() if isinstance(x, Tensor))
        with torch.autocast(device.type, enabled=False):
            return method(self, *args)

    return run


@dataclass(frozen=True)
class Reflections:
    """The reflections of the last n keys; keys before them already went through their own.

        a_ij = q_i^T H_i H_{i-1} ... H_{j+1} k_j,        H_t = I - beta_t w_t w_t^T

    The product of consecutive H is I - sum over a >= b of w_a T_ab w_b^T with

        T = (I + N)^-1 diag(beta),      N_ab = beta_a w_a . w_b for a > b, else 0

    and a contiguous block of T belongs to the product over that block, because (I + N)^-1 is lower
    triangular. Tokens are split into blocks, and one triangular solve per block gives

        P   = I - W^T T W                             the product over the whole block
        K'  = K - tril(W K^T, -1)^T T^T W             its keys, through the rest of their block
        Q'  = Q - tril(Q W^T) T W                     its queries, through the start of their block
        Q K^T - tril(Q W^T) T tril(W K^T, -1)         the scores within the block

    The scores of a block of queries with an earlier block of keys are Q' times the P of the blocks
    between, times K'^T. Apart from the scores, no matrix is tokens x tokens.
    """

    w: Float[Tensor, "b h tail e"]
    beta: Float[Tensor, "b h tail"]

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        """All their tensors; the third axis of each is tokens."""
        return self.w, self.beta

    def shapes(self, b: int, h: int, n: int, e: int) -> dict[str, tuple[int, ...]]:
        """Return the shape that each tensor needs, by name."""
        return {"w": (b, h, n, e), "beta": (b, h, n)}

    @full_precision
    def through(self, q: Float[Tensor, "b h t e"], k: Float[Tensor, "b h s e"]) -> "Reflected":
        """Return queries and keys in blocks, for their scores; queries are the last t keys."""
        q, k, w, beta = self._work(q, k)
        count, queries = w.shape[2], q.shape[2]
        old, front = k.shape[2] - count, (queries - count) % BLOCK

        def blocks(x: Tensor) -> Tensor:
            # Zeros reflect nothing. Those in front make the first query the first of a block.
            return _blocks(F.pad(x, (0, 0, front, -(front + count) % BLOCK)))

        w, strength, keys = blocks(w), blocks(beta[..., None]), blocks(k[:, :, old:])
        met = (w @ keys.mT).tril(-1)
        solved = torch.linalg.solve_triangular(
            _unit(w, strength), strength * torch.cat([w, met], -1), upper=False, unitriangular=True
        )
        solved_w, solved_met = solved.split([w.shape[-1], BLOCK], dim=-1)
        q = _blocks(F.pad(q, (0, 0, 0, -queries % BLOCK)))
        first = w.shape[2] - q.shape[2]
        reached = (q @ w[:, :, first:].mT).tril()
        return Reflected(
            queries=q - reached @ solved_w[:, :, first:],
            within=q @ keys[:, :, first:].mT - reached @ solved_met[:, :, first:],
            keys=keys - solved_met.mT @ w,
            whole=torch.eye(w.shape[-1]).to(w) - w.mT @ solved_w,
            old=k[:, :, :old],
            front=front,
            length=queries,
            count=count,
        )

    @full_precision
    def advance(self, k: Float[Tensor, "b h s e"]) -> Float[Tensor, "b h s e"]:
        """Return every key after the reflections of all later tokens."""
        _, moved, w, beta = self._work(k, k)
        count, keys = w.shape[2], k.shape[2]
        key = torch.arange(keys, device=k.device) - (keys - count)
        for start in range(0, count, BLOCK):
            some, strength = w[:, :, start : start + BLOCK], beta[:, :, start : start + BLOCK]
            token = torch.arange(start, start + some.shape[2], device=k.device)
            met = (some @ moved.mT).masked_fill(token[:, None] <= key, 0)
            solved: Tensor = torch.linalg.solve_triangular(
                _unit(some, strength[..., None]),
                strength[..., None] * met,
                upper=False,
                unitriangular=True,
            )
            moved = moved - solved.mT @ some
        return moved.to(k.dtype)

    def _work(self, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Return q, k, w and beta in a dtype that the solve supports."""
        dtype = torch.promote_types(q.dtype, torch.float32)
        return q.to(dtype), k.to(dtype), self.w.to(dtype), self.beta.to(dtype)


@dataclass(frozen=True)
class Reflected:
    """Queries and keys in n blocks of m tokens, through the reflections of their own block.

    The queries are those of the last nq blocks.
    """

    queries: Float[Tensor, "b h nq m e"]
    """Q': through the reflections of their block up to their own."""
    within: Float[Tensor, "b h nq m m"]
    """Scores with the keys of the same block."""
    keys: Float[Tensor, "b h n m e"]
    """K': through the reflections of the later tokens of their block."""
    whole: Float[Tensor, "b h n e e"]
    """P: the product of all reflections of a block."""
    old: Float[Tensor, "b h s e"]
    """Cached keys, before the first block."""
    front: int
    """How many tokens of the first block are padding."""
    length: int
    """How many queries there are without padding."""
    count: int
    """How many tokens there are without padding."""

    @full_precision
    def scores(self, rows: slice) -> Float[Tensor, "b h r seen"]:
        """Return the scores of the queries in `rows`, with keys up to the end of the last block."""
        tokens = range(self.length)[rows]
        last = self.keys.shape[2] - self.queries.shape[2] + tokens[-1] // BLOCK
        width = self.old.shape[2] + min((last + 1) * BLOCK - self.front, self.count)
        parts, start = [], tokens.start
        while start < tokens.stop:
            stop = min(tokens.stop, (start // BLOCK + 1) * BLOCK)
            part = self._in_block(
                start // BLOCK, slice(start % BLOCK, start % BLOCK + stop - start)
            )
            parts.append(F.pad(part, (0, width - part.shape[3]))[..., :width])
            start = stop
        return parts[0] if len(parts) == 1 else torch.cat(parts, dim=2)

    def _in_block(self, block: int, rows: slice) -> Float[Tensor, "b h r seen"]:
        """Return the scores of the queries in `rows` of one block."""
        x, blocks = self.queries[:, :, block, rows], [self.within[:, :, block, rows]]
        for n in range(self.keys.shape[2] - self.queries.shape[2] + block - 1, -1, -1):
            blocks.append(x @ self.keys[:, :, n].mT)
            x = x @ self.whole[:, :, n]
        blocks[-1] = blocks[-1][..., self.front :]
        return torch.cat([x @ self.old.mT, *blocks[::-1]], dim=3)


def _blocks(x: Float[Tensor, "b h n e"]) -> Float[Tensor, "b h n2 m e"]:
    return x.reshape(*x.shape[:2], -1, BLOCK, x.shape[3])


def _unit(w: Float[Tensor, "*b n e"], beta: Float[Tensor, "*b n 1"]) -> Float[Tensor, "*b n n"]:
    """Return N; the solver takes its diagonal as 1."""
    return (beta * (w @ w.mT)).tril(-1)


@dataclass(frozen=True)
class Decay:
    """The log gates of the last n keys; older keys already contain their own decay.

        a_ij = sum_c q_ic k_jc exp(P_ic - P_jc),     P_i = sum of the log gates g_t over t <= i

    exp(P) alone leaves the range of floats within a few hundred tokens, so a block of queries is
    anchored at its first token a: exp(P_i - P_a) and exp(P_a - P_j) are at most 1 for keys before
    the block. Inside a block the second factor grows, so blocks are short where gates are strong.
    The sums are float64 and are subtracted before they are cast.
    """

    gate: Float[Tensor, "b h tail e"]

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        """All its tensors; the third axis of each is tokens."""
        return (self.gate,)

    def shapes(self, b: int, h: int, n: int, e: int) -> dict[str, tuple[int, ...]]:
        """Return the shape that each tensor needs, by name."""
        return {"gate": (b, h, n, e)}

    @full_precision
    def through(self, q: Float[Tensor, "b h t e"], k: Float[Tensor, "b h s e"]) -> "Decayed":
        """Return queries and keys with the sums for their scores; queries are the last t keys."""
        dtype = torch.promote_types(q.dtype, torch.float32)
        strongest = float(self.gate.detach().abs().max())
        size = max(1, min(BLOCK, int(LARGEST_EXPONENT / max(strongest, 1e-9))))
        return Decayed(q.to(dtype), k.to(dtype), *self._sums(k.shape[2]), size)

    @full_precision
    def advance(self, k: Float[Tensor, "b h s e"]) -> Float[Tensor, "b h s e"]:
        """Return every key after the decays of all later tokens."""
        total, before = self._sums(k.shape[2])
        return (k * (total[:, :, -1:] - before).exp()).to(k.dtype)

    def _sums(self, keys: int) -> tuple[Float[Tensor, "b h n e"], Float[Tensor, "b h s e"]]:
        """Return P of the n tokens, and P of all keys, which is 0 for older keys."""
        total = self.gate.double().cumsum(dim=2)
        return total, F.pad(total, (0, 0, keys - total.shape[2], 0))


@dataclass(frozen=True)
class Decayed:
    """Queries, keys and the running sums of the log gates."""

    queries: Float[Tensor, "b h t e"]
    keys: Float[Tensor, "b h s e"]
    total: Float[Tensor, "b h n e"]
    """P of the last n keys."""
    before: Float[Tensor, "b h s e"]
    """P of every key; 0 for cached keys, which already contain their decay."""
    size: int
    """How many queries share an anchor."""

    @full_precision
    def scores(self, rows: slice) -> Float[Tensor, "b h r seen"]:
        """Return sum_c q_ic k_jc exp(P_ic - P_jc) of the queries in `rows`.

        The last axis ends at the key of the last of these queries. Keys after a block of queries
        have score 0.
        """
        count, dtype = self.total.shape[2], self.queries.dtype
        own = range(count - self.queries.shape[2], count)[rows]
        old, parts, done = self.keys.shape[2] - count, [], own.start
        for some in torch.split(self.queries[:, :, rows], self.size, dim=2):
            end = done + some.shape[2]
            anchor, seen = self.total[:, :, done : done + 1], old + end
            left = some * (self.total[:, :, done:end] - anchor).exp().to(dtype)
            decay = (anchor - self.before[:, :, :seen]).exp().to(dtype)
            parts.append(
                F.pad(left @ (self.keys[:, :, :seen] * decay).mT, (0, old + own.stop - seen))
            )
            done = end
        return torch.cat(parts, dim=2)


Transition = Reflections | Decay
"""How a key changes on its way to a query."""
Moved = Reflected | Decayed
"""Queries and keys, prepared for the scores under a transition."""
