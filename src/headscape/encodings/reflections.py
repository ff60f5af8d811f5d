"""Reflections between a key and its query, and the scores through them.

    a_ij = q_i^T H_i H_{i-1} ... H_{j+1} k_j,        H_t = I - beta_t w_t w_t^T

The product of consecutive H is I - sum over a >= b of w_a T_ab w_b^T with

    T = (I + N)^-1 diag(beta),      N_ab = beta_a w_a . w_b for a > b, else 0

and a contiguous block of T belongs to the product over that block, because (I + N)^-1 is lower
triangular. Tokens are processed in blocks, from the last query backwards. Inside a block,

    a = Q K^T - tril(Q W^T) T tril(W K^T, -1)

and the block before it sees the queries as Q - tril(Q W^T) T W. Apart from the scores, no matrix is
tokens x tokens.

A cached key k_j is stored as H_last ... H_{j+1} k_j, so older tokens' reflections are not needed
again. At least float32 throughout.
"""

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from headscape.types import ALL

BLOCK = 64
"""Tokens per triangular solve."""


@dataclass(frozen=True)
class Reflections:
    """The reflections of the last n keys; keys before them already went through their own."""

    w: Float[Tensor, "b h n e"]
    beta: Float[Tensor, "b h n"]

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        """All their tensors; the third axis of each is tokens."""
        return self.w, self.beta

    def shapes(self, b: int, h: int, n: int, e: int) -> dict[str, tuple[int, ...]]:
        """Return the shape that each tensor needs, by name."""
        return {"w": (b, h, n, e), "beta": (b, h, n)}

    def scores(
        self, q: Float[Tensor, "b h t e"], k: Float[Tensor, "b h s e"], rows: slice = ALL
    ) -> Float[Tensor, "b h r s"]:
        """Return q_i^T H_i ... H_{j+1} k_j of some of the queries, which are the last t keys."""
        q, k, w, beta = self._work(q, k)
        count, keys = w.shape[2], k.shape[2]
        old = keys - count
        own = torch.arange(count - q.shape[2], count, device=q.device)[rows]
        q, last = q[:, :, rows], int(own[-1]) + 1
        found = [q.new_zeros(*q.shape[:3], count - last)]
        for end in range(last, 0, -BLOCK):
            start = max(0, end - BLOCK)
            token = torch.arange(start, end, device=q.device)
            some, own_keys = w[:, :, start:end], k[:, :, old + start : old + end]
            through = (q @ some.mT).masked_fill(token > own[:, None], 0)
            strength = beta[:, :, start:end]
            solved = torch.linalg.solve_triangular(
                _unit(some, strength), through, upper=False, left=False, unitriangular=True
            )
            solved = solved * strength[:, :, None]
            met = (some @ own_keys.mT).masked_fill(token[:, None] <= token, 0)
            found.append(q @ own_keys.mT - solved @ met)
            q = q - solved @ some
        found.append(q @ k[:, :, :old].mT)
        return torch.cat(found[::-1], dim=3)

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
                _unit(some, strength), strength[..., None] * met, upper=False, unitriangular=True
            )
            moved = moved - solved.mT @ some
        return moved.to(k.dtype)

    def _work(self, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Return q, k, w and beta in a dtype that the solve supports."""
        dtype = torch.promote_types(q.dtype, torch.float32)
        return q.to(dtype), k.to(dtype), self.w.to(dtype), self.beta.to(dtype)


def _unit(w: Tensor, beta: Tensor) -> Float[Tensor, "b h n n"]:
    """Return N; the solver takes its diagonal as 1."""
    return (beta[..., None] * (w @ w.mT)).tril(-1)
