"""Reflections between a key and its query, and the scores through them.

    a_ij = q_i^T H_i H_{i-1} ... H_{j+1} k_j,        H_t = I - beta_t w_t w_t^T

The product of consecutive H is I - sum over a >= b of w_a T_ab w_b^T with

    T = (I + N)^-1 diag(beta),      N_ab = beta_a w_a . w_b for a > b, else 0

and a contiguous block of T belongs to the product over that block, because (I + N)^-1 is lower
triangular. All scores are therefore one triangular solve:

    a = Q K^T - tril(Q W^T) T tril(W K^T, -1)

A cached key k_j is stored as H_last ... H_{j+1} k_j, so older tokens' reflections are not needed
again. At least float32 throughout.
"""

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from headscape.types import ALL


@dataclass(frozen=True)
class Reflections:
    """The reflections of the last n keys; keys before them already went through their own."""

    w: Float[Tensor, "b h n e"]
    beta: Float[Tensor, "b h n"]

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        """Everything they are made of, each with tokens as the third axis."""
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
        own = torch.arange(count - q.shape[2], count, device=q.device)[rows]
        q, last = q[:, :, rows], int(own[-1]) + 1
        w, beta = w[:, :, :last], beta[:, :, :last]
        token = torch.arange(last, device=q.device)
        through = (q @ w.mT).masked_fill(token > own[:, None], 0)
        key = torch.arange(keys, device=q.device) - (keys - count)
        met = (w @ k.mT).masked_fill(token[:, None] <= key, 0)
        solved: Tensor = torch.linalg.solve_triangular(
            _unit(w, beta), through, upper=False, left=False, unitriangular=True
        )
        found: Tensor = q @ k.mT - (solved * beta[:, :, None]) @ met
        return found

    def advance(self, k: Float[Tensor, "b h s e"]) -> Float[Tensor, "b h s e"]:
        """Return every key after the reflections of all later tokens."""
        _, wide, w, beta = self._work(k, k)
        count, keys = w.shape[2], k.shape[2]
        token = torch.arange(count, device=k.device)
        key = torch.arange(keys, device=k.device) - (keys - count)
        met = (w @ wide.mT).masked_fill(token[:, None] <= key, 0)
        solved: Tensor = torch.linalg.solve_triangular(
            _unit(w, beta), beta[..., None] * met, upper=False, unitriangular=True
        )
        moved: Tensor = wide - solved.mT @ w
        return moved.to(k.dtype)

    def _work(self, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Return q, k, w and beta in a dtype that the solve supports."""
        dtype = torch.promote_types(q.dtype, torch.float32)
        return q.to(dtype), k.to(dtype), self.w.to(dtype), self.beta.to(dtype)


def _unit(w: Tensor, beta: Tensor) -> Float[Tensor, "b h n n"]:
    """Return N; the solver takes its diagonal as 1."""
    return (beta[..., None] * (w @ w.mT)).tril(-1)
