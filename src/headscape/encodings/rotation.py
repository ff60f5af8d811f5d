"""Rotation of pairs of dims by an angle, shared by RoPE, xPos and the rotations by content.

(a, b) -> (a cos - b sin, b cos + a sin)
"""

import torch
from jaxtyping import Float
from torch import Tensor, cat, stack

from headscape.errors import InputError


def powers(base: float, dims: int) -> Float[Tensor, " m"]:
    """Return the frequencies base^(-2m/dims), m = 0 .. dims/2 - 1, in float64."""
    return base ** (-torch.arange(0, dims, 2, dtype=torch.float64) / dims)


def turn(
    x: Float[Tensor, "b h t e"],
    cos: Float[Tensor, "#b #h t m"],
    sin: Float[Tensor, "#b #h t m"],
    pairing: str,
) -> Float[Tensor, "b h t e"]:
    """Return x with its first 2m dims rotated in pairs and the rest unchanged."""
    dims = 2 * cos.shape[-1]
    x, rest = x[..., :dims], x[..., dims:]
    if pairing == "interleaved":
        a, b = x[..., ::2], x[..., 1::2]
        turned = stack([a * cos - b * sin, b * cos + a * sin], dim=-1).flatten(-2)
    else:
        a, b = x.chunk(2, dim=-1)
        turned = cat([a * cos - b * sin, b * cos + a * sin], dim=-1)
    return cat([turned, rest], dim=-1) if rest.shape[-1] else turned


def turn_by(
    x: Float[Tensor, "b h t e"], angle: Float[Tensor, "#b #h t m"], pairing: str
) -> Float[Tensor, "b h t e"]:
    """Return x rotated by float64 angles."""
    return turn(x, angle.cos().to(x.dtype), angle.sin().to(x.dtype), pairing)


def pairs_of(title: str, head_dim: int) -> int:
    """Return the number of pairs of a head, or raise if its dims are odd."""
    if head_dim % 2:
        raise InputError(f"{title} rotates pairs, so the head dim must be even, got {head_dim}.")
    return head_dim // 2
