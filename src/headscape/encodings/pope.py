"""PoPE: a magnitude and an angle per channel (Gopalakrishnan et al. 2025, arXiv:2509.10534).

    S_ij = sum_m softplus(q_im) softplus(k_jm) cos((i - j) w_m - b_hm) / sqrt(e)

for m = 0 .. e - 1 and w_m = base^(-m/e): every channel has a frequency, there are no pairs. q and k
become twice as wide (magnitude times cos, magnitude times sin), the scale keeps the old width. The
phase b is learned per head and channel, clamped to [-2 pi, 0] and starts at 0. x-transformers
shares b over layers (a model's `share_encoding`); ours is per layer. Angles are float64.
"""

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from headscape.encodings.base import Config, Encoding, Shape
from headscape.encodings.context import Side


@dataclass(frozen=True, kw_only=True)
class PoPEConfig(Config):
    """Options of PoPE."""

    base: float = 10_000.0
    """Base of the frequencies."""

    ABOVE: ClassVar = {"base": 1}


class PoPE(Encoding):
    """Polar coordinates: content is the magnitude, position the angle."""

    title = "PoPE"
    paper = "Gopalakrishnan et al. 2025, arXiv:2509.10534"
    formula = "S = sum_m sp(q_im) sp(k_jm) cos((i-j) w_m - b_hm) / sqrt(e)"
    shows = "final"
    published = ({"learned_bias": "phase"},)
    toeplitz = False
    context_dependent = True
    widens = True
    config: PoPEConfig

    def __init__(self, shape: Shape, config: PoPEConfig) -> None:
        super().__init__(shape, config)
        self.phase = nn.Parameter(torch.zeros(shape.heads, shape.head_dim))

    def from_published(self, parameter: str, value: Tensor) -> Tensor:
        """Convert x-transformers' [h, 1, e] to [h, e]."""
        return value.flatten(0, -2)

    def rotate(self, x: Float[Tensor, "b h t e"], side: Side) -> Float[Tensor, "b h t e2"]:
        """Return magnitude times cos, then magnitude times sin, of every channel."""
        channel = torch.arange(x.shape[-1], dtype=torch.float64, device=x.device)
        angle = side.at[:, None, :, None] * self.config.base ** (-channel / x.shape[-1])
        if side.role == "key":
            phase = self.phase.clamp(-2 * math.pi, 0)
            angle = angle + phase.double()[:, None]
        size = F.softplus(x)
        return torch.cat([size * angle.cos().to(x.dtype), size * angle.sin().to(x.dtype)], dim=-1)
