"""Sinusoidal absolute positions (Vaswani et al. 2017, arXiv:1706.03762).

    x_i = token_i + scale * [sin(p w_m), cos(p w_m)],   w_m = base^(-2m/d),  m = 0 .. d/2 - 1

with p = i + offset.

Layouts in public code: interleaved sin, cos, sin, cos (the paper and the CABLE code, which adds
0.1 of it to unscaled embeddings, our default) and halves [all sin | all cos] (gpt-neox, Marian,
x-transformers). x-transformers learns the scale, starting at d^(-1/2); the original paper
multiplies the tokens by sqrt(d) instead, which a model would have to do and is absent here.
fairseq's models (XGLM, M2M100) start at p = 2 and space the frequencies from 1 to 1/10,000, both
ends included, which is base = 10,000^((d/2) / (d/2 - 1)).
"""

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from headscape.encodings.base import Config, Encoding, Shape
from headscape.errors import InputError


@dataclass(frozen=True, kw_only=True)
class SinusoidalConfig(Config):
    """Options of sinusoidal positions."""

    layout: Literal["interleaved", "halves"] = "interleaved"
    """The order of sines and cosines."""
    scale: float = 0.1
    """Multiplier of the vector, or its initial value if learned."""
    learned_scale: bool = False
    """Make the multiplier a parameter."""
    base: float = 10_000.0
    """Base of the frequencies; the longest wavelength is below 2 pi base tokens."""
    offset: int = 0
    """Added to every position."""

    AT_LEAST: ClassVar = {"offset": 0}
    ABOVE: ClassVar = {"base": 1}


class Sinusoidal(Encoding):
    """Sines and cosines of the position, added to the tokens."""

    title = "Sinusoidal"
    paper = "Vaswani et al. 2017, arXiv:1706.03762"
    formula = "x = token + scale [sin(i w), cos(i w)]"
    shows = None
    published = ({"scale": "scale"},)
    shift_invariant = False
    config: SinusoidalConfig

    def __init__(self, shape: Shape, config: SinusoidalConfig) -> None:
        super().__init__(shape, config)
        if shape.width % 2:
            raise InputError(f"sinusoidal needs an even model width, got {shape.width}.")
        self.scale = nn.Parameter(torch.tensor(config.scale)) if config.learned_scale else None

    def from_published(self, parameter: str, value: Tensor) -> Tensor:
        """Convert [1] to a scalar."""
        return value.squeeze()

    def embed(self, x: Float[Tensor, "b t d"], at: Int[Tensor, "#b t"]) -> Float[Tensor, "b t d"]:
        """Return x plus the vector of each position; angles are float64 for precision far out."""
        width = self.shape.width
        m = torch.arange(width // 2, dtype=torch.float64, device=at.device)
        angle = (at[..., None] + self.config.offset) * self.config.base ** (-2 * m / width)
        sin, cos = angle.sin(), angle.cos()
        if self.config.layout == "interleaved":
            wave = torch.stack([sin, cos], dim=-1).flatten(-2)
        else:
            wave = torch.cat([sin, cos], dim=-1)
        scale = self.config.scale if self.scale is None else self.scale
        return x + scale * wave.to(x.dtype)
