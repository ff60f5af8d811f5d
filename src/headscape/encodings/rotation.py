"""Rotation of pairs of dims by an angle, shared by RoPE and xPos.

(a, b) -> (a cos - b sin, b cos + a sin)
"""

import torch
from jaxtyping import Float
from torch import Tensor, cat, stack


def powers(base: float, dims: int) -> Float[Tensor, " m"]:
    """Return the frequencies base^(-2m/dims), m = 0 .. dims/2 - 1, in float64."""
    return base ** (-torch.arange(0, dims, 2, dtype=torch.float64) / dims)


def turn(
    x: Float[Tensor, "b h t e"],
    cos: Float[Tensor, "#b 1 t m"],
    sin: Float[Tensor, "#b 1 t m"],
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
