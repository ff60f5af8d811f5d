"""KERPLE: a learned kernel of the distance (Chi et al. 2022, arXiv:2205.09921).

    log     S_ij = A_ij - p_h ln(1 + a_h |i - j|)
    power   S_ij = A_ij - a_h |i - j|^p_h,   0 < p_h <= 2

p and a start at U(0, 2) and U(0, 1). The authors keep them in range by clamping the stored tensor
inside forward; here they are positive by parametrisation (an exponential, and for the power's
exponent a scaled logistic), so a forward pass changes nothing. `load_published` takes the
authors' tensors, clamped as their first forward would clamp them. Their code shares one pair for
all layers, the DAPE and CABLE code has one per layer (our default; a model's field says).
The weight form exp(-a |i-j|^p) that multiplies scores is deliberately absent.
"""

import torch
from jaxtyping import Float
from torch import Tensor, nn

from headscape.bias import Toeplitz
from headscape.encodings.base import Config, Encoding, Shape, Stream
from headscape.types import Positions

FLOOR = 0.01
"""The authors' clamp from below."""
CEILING = 2.0
"""Their clamp of the power's exponent from above: beyond it the kernel is not valid."""


class Kerple(Encoding):
    """The logarithmic kernel."""

    paper = "Chi et al. 2022, arXiv:2205.09921"
    formula = "S = A - p_h ln(1 + a_h |i-j|)"
    adds_bias = True

    def __init__(self, shape: Shape, config: Config) -> None:
        super().__init__(shape, config)
        self.raw_p = nn.Parameter(torch.empty(shape.heads))
        self.raw_a = nn.Parameter(torch.empty(shape.heads))
        self.load_published(2 * torch.rand(shape.heads), torch.rand(shape.heads))

    def p(self) -> Float[Tensor, " h"]:
        """The factor of the logarithm."""
        return self.raw_p.exp()

    def a(self) -> Float[Tensor, " h"]:
        """The rate of the distance."""
        return self.raw_a.exp()

    @torch.no_grad()
    def load_published(self, p: Float[Tensor, "..."], a: Float[Tensor, "..."]) -> None:
        """Take the authors' parameters, of any shape with one value per head."""
        self.raw_p.copy_(p.reshape(-1).clamp(min=FLOOR).log())
        self.raw_a.copy_(a.reshape(-1).clamp(min=FLOOR).log())

    def bias(
        self, positions: Positions, queries: Stream | None = None, keys: Stream | None = None
    ) -> Toeplitz:
        """The kernel by distance."""
        distance, zero = self.distances(positions, self.raw_p.device)
        # At least float32: bfloat16 does not tell distances above 256 apart.
        work = torch.promote_types(self.raw_p.dtype, torch.float32)
        return Toeplitz(self.kernel(distance.abs().to(work)), zero)

    def kernel(self, distance: Float[Tensor, " n"]) -> Float[Tensor, "h n"]:
        """-p ln(1 + a distance)."""
        p, a = (value.to(distance.dtype)[:, None] for value in (self.p(), self.a()))
        return -p * torch.log1p(a * distance)


class KerplePower(Kerple):
    """The power kernel."""

    formula = "S = A - a_h |i-j|^p_h"

    def p(self) -> Float[Tensor, " h"]:
        """The exponent, between 0 and 2."""
        return CEILING * self.raw_p.sigmoid()

    @torch.no_grad()
    def load_published(self, p: Float[Tensor, "..."], a: Float[Tensor, "..."]) -> None:
        """Take the authors' parameters, of any shape with one value per head."""
        share = p.reshape(-1).clamp(FLOOR, CEILING).to(self.raw_p.dtype) / CEILING
        self.raw_p.copy_(torch.logit(share, eps=torch.finfo(share.dtype).eps / 2))
        self.raw_a.copy_(a.reshape(-1).clamp(min=FLOOR).log())

    def kernel(self, distance: Float[Tensor, " n"]) -> Float[Tensor, "h n"]:
        """-a distance^p; distance 0 is kept out of the power, whose gradient there is not."""
        p, a = (value.to(distance.dtype)[:, None] for value in (self.p(), self.a()))
        return -a * torch.where(distance > 0, distance.clamp(min=1) ** p, 0.0)
