"""BAM: a generalised Gaussian prior over distances (Bianchessi et al. 2025, arXiv:2505.22842).

    S_ij = A_ij - exp(scale_h) (|j - i - 2 sinh(loc_h)| + 1e-5)^shape_h

scale starts at the logarithm of ALiBi's slopes by fairseq's rule, shape at 1 and loc at 0, so BAM
starts as ALiBi but for the 1e-5. The released code does not train loc (our default) and has one
prior for all layers (a model's `share_encoding`). It stores shape as it is, so training may make it
negative (shape_stored="as-is"); by default its logarithm is stored, so that it stays above 0, where
the prior is a distribution. temperature="ssmax" is the paper's BAM SSMax, which multiplies the
prior too; the code's option ssmax_prior=False is temperature_on="content".
"""

from dataclasses import dataclass
from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor, nn

from headscape.call.bias import Toeplitz
from headscape.encodings.alibi import fairseq
from headscape.encodings.base import Config, Encoding, Shape
from headscape.encodings.context import LayerContext
from headscape.errors import InputError

EPSILON = 1e-5
"""Keeps the power's gradient finite at distance 0."""


@dataclass(frozen=True, kw_only=True)
class BAMConfig(Config):
    """Options of BAM."""

    train_loc: bool = False
    """Learn where each head's prior is centred; otherwise it is centred on the query."""
    shape_stored: Literal["logarithm", "as-is"] = "logarithm"
    """Which parameter is learned: ln(shape), or shape itself, which may become negative."""


class BAM(Encoding):
    """A learned generalised Gaussian prior."""

    title = "BAM"
    paper = "Bianchessi et al. 2025, arXiv:2505.22842"
    formula = "S = A - exp(scale_h) (|j-i-2sinh(loc_h)| + 1e-5)^shape_h"
    published = ({"scale": "scale", "shape": "raw_power", "loc": "loc"},)
    config: BAMConfig

    def __init__(self, shape: Shape, config: BAMConfig) -> None:
        super().__init__(shape, config)
        self.scale = nn.Parameter(torch.tensor(fairseq(shape.heads)).log())
        start = 0.0 if config.shape_stored == "logarithm" else 1.0
        self.raw_power = nn.Parameter(torch.full((shape.heads,), start))
        self.loc = nn.Parameter(torch.zeros(shape.heads)) if config.train_loc else None

    def from_published(self, parameter: str, value: Tensor) -> Tensor:
        """Convert [1, h, 1, 1] to [h], and shape to its logarithm if that is stored."""
        value = value.reshape(-1)
        if parameter != "raw_power" or self.config.shape_stored == "as-is":
            return value
        if not (value > 0).all():
            raise InputError(
                f"BAM stores the logarithm of shape, which must be positive, but the smallest is "
                f"{value.min().item():g}: use shape_stored='as-is'."
            )
        return value.log()

    def power(self) -> Float[Tensor, " h"]:
        """Return the exponent."""
        stored = self.config.shape_stored
        return self.raw_power.exp() if stored == "logarithm" else self.raw_power

    def bias(self, layer: LayerContext) -> Toeplitz:
        """Return the logarithm of the prior by distance."""
        distance, zero = self.distances(layer.positions, self.scale.device)
        # At least float32: bfloat16 cannot represent every distance above 256.
        work = torch.promote_types(self.scale.dtype, torch.float32)
        scale, power = (value.to(work)[:, None] for value in (self.scale, self.power()))
        centre = 0.0 if self.loc is None else 2 * self.loc.to(work)[:, None].sinh()
        away = (-distance.to(work) - centre).abs() + EPSILON
        return Toeplitz(-scale.exp() * away**power, zero)
