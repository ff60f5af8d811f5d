"""Rotation of pairs of dims by an angle, shared by RoPE, xPos and the rotations by content.

(a, b) -> (a cos - b sin, b cos + a sin)
"""

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor, cat, stack

from headscape.errors import InputError


def powers(base: float, dims: int) -> Float[Tensor, " m"]:
    """Return the frequencies base^(-2m/dims), m = 0 .. dims/2 - 1, in float64."""
    return base ** (-torch.arange(0, dims, 2, dtype=torch.float64) / dims)


@dataclass(frozen=True)
class Turn:
    """cos and sin per token and pair, in float64, with any magnitude."""

    cos: Float[Tensor, "#b #h t m"]
    sin: Float[Tensor, "#b #h t m"]
    pairing: str
    """Pairs are neighbouring dims ("interleaved") or m and m + R/2 ("halves")."""
    frequencies: Float[Tensor, " m"] | None = None
    """The angle per position of each pair, where the angle is position times frequency."""
    by_tokens: bool = False
    """Whether the angles depend on the tokens."""

    @classmethod
    def by(
        cls, angle: Float[Tensor, "#b #h t m"], pairing: str, *, by_tokens: bool = True
    ) -> "Turn":
        """Return a turn by float64 angles, by default angles that depend on the tokens."""
        return cls(angle.cos(), angle.sin(), pairing, by_tokens=by_tokens)

    def apply(self, x: Float[Tensor, "b h t e"]) -> Float[Tensor, "b h t e"]:
        """Return x with its first 2m dims rotated in pairs and the rest unchanged."""
        cos, sin = self.cos.to(x.dtype), self.sin.to(x.dtype)
        dims = 2 * cos.shape[-1]
        x, rest = x[..., :dims], x[..., dims:]
        if self.pairing == "interleaved":
            a, b = x[..., ::2], x[..., 1::2]
            turned = stack([a * cos - b * sin, b * cos + a * sin], dim=-1).flatten(-2)
        else:
            a, b = x.chunk(2, dim=-1)
            turned = cat([a * cos - b * sin, b * cos + a * sin], dim=-1)
        return cat([turned, rest], dim=-1) if rest.shape[-1] else turned


def pairs_of(title: str, head_dim: int) -> int:
    """Return the number of pairs of a head, or raise if its dims are odd."""
    if head_dim % 2:
        raise InputError(f"{title} rotates pairs, so the head dim must be even, got {head_dim}.")
    return head_dim // 2
