"""KERPLE: a learned kernel of the distance (Chi et al. 2022, arXiv:2205.09921).

    log     S_ij = A_ij - p_h ln(1 + a_h |i - j|)
    power   S_ij = A_ij - a_h |i - j|^p_h,   0 < p_h <= 2
    weight  S_ij = A_ij exp(-a_h |i - j|^p_h), so far scores tend to 0 and far keys weigh the same

p and a start at U(0, 2) and U(0, 1). The authors clamp the stored tensors inside forward; here they
are positive by parametrisation (an exponential, and a scaled logistic for the power's exponent), so
a forward pass changes no parameter. `load_published` clamps the authors' tensors as their first
forward does. Their code shares one pair across all layers; the DAPE and CABLE code has one pair per
layer (our default; a model's `share_encoding` selects).
"""

from abc import abstractmethod

import torch
from jaxtyping import Float
from torch import Tensor, nn

from headscape.call.bias import Toeplitz
from headscape.call.mixing import Product
from headscape.encodings.base import Config, Encoding, Shape
from headscape.encodings.context import LayerContext
from headscape.encodings.measured_kernel import MeasuredKernel

FLOOR = 0.01
"""The authors' lower clamp."""
CEILING = 2.0
"""Their upper clamp of the power's exponent; the kernel is valid up to here."""


def best_of(
    grid: Float[Tensor, " g"], shapes: Float[Tensor, "g n"], kernel: MeasuredKernel
) -> tuple[Float[Tensor, " h"], Float[Tensor, " h"]]:
    """Return each head's value of the grid whose shape fits best, and the shape's factor."""
    factors, divergences = map(torch.stack, zip(*map(kernel.matched, shapes), strict=True))
    best = divergences.argmin(dim=0)
    return grid[best], factors.gather(0, best[None])[0]


class _Kernel(Encoding):
    """A kernel of the distance with two learned numbers per head."""

    paper = "Chi et al. 2022, arXiv:2205.09921"
    published = (
        {"bias_p": "raw_p", "bias_a": "raw_a"},
        {"wei_p": "raw_p", "wei_a": "raw_a"},
    )

    def __init__(self, shape: Shape, config: Config) -> None:
        super().__init__(shape, config)
        self.raw_p = nn.Parameter(torch.empty(shape.heads))
        self.raw_a = nn.Parameter(torch.empty(shape.heads))
        self.load_published(
            {"bias_p": 2 * torch.rand(shape.heads), "bias_a": torch.rand(shape.heads)}
        )

    @abstractmethod
    def kernel(self, distance: Float[Tensor, " n"]) -> Float[Tensor, "h n"]:
        """Return the kernel's value at each distance."""

    def p(self) -> Float[Tensor, " h"]:
        """Return the factor of the logarithm."""
        return self.raw_p.exp()

    def a(self) -> Float[Tensor, " h"]:
        """Return the factor of the distance."""
        return self.raw_a.exp()

    def from_published(self, parameter: str, value: Tensor) -> Tensor:
        """Convert [h, 1, 1] to the logarithm of the clamped values, [h]."""
        return value.reshape(-1).clamp(min=FLOOR).log()

    def by_distance(self, layer: LayerContext) -> Toeplitz:
        """Return the kernel by distance."""
        distance, zero = self.distances(layer.positions, self.raw_p.device)
        # At least float32: bfloat16 cannot represent every distance above 256.
        work = torch.promote_types(self.raw_p.dtype, torch.float32)
        return Toeplitz(self.kernel(distance.abs().to(work)), zero)


class Kerple(_Kernel):
    """The logarithmic kernel."""

    title = "Kerple"
    formula = "S = A - p_h ln(1 + a_h |i-j|)"

    def kernel(self, distance: Float[Tensor, " n"]) -> Float[Tensor, "h n"]:
        """Return -p ln(1 + a distance)."""
        p, a = (value.to(distance.dtype)[:, None] for value in (self.p(), self.a()))
        return -p * torch.log1p(a * distance)

    @torch.no_grad()
    def fit(self, kernel: MeasuredKernel) -> bool:
        """Set a to the best of a grid, and p to match it."""
        grid = torch.logspace(-2, 2, 13, dtype=torch.float64, device=kernel.values.device)
        at = torch.arange(kernel.values.shape[1], device=grid.device)
        a, p = best_of(grid, torch.log1p(grid[:, None] * at), kernel)
        self.raw_a.copy_(a.log())
        self.raw_p.copy_(p.log())
        return True

    def bias(self, layer: LayerContext) -> Toeplitz:
        """Return the kernel by distance."""
        return self.by_distance(layer)


class _Power(_Kernel):
    """-a distance^p."""

    def p(self) -> Float[Tensor, " h"]:
        """Return the exponent, between 0 and 2."""
        return CEILING * self.raw_p.sigmoid()

    def from_published(self, parameter: str, value: Tensor) -> Tensor:
        """Convert the exponent to its logit; `a` as in the logarithmic kernel."""
        if parameter == "raw_a":
            return super().from_published(parameter, value)
        share = value.reshape(-1).clamp(FLOOR, CEILING).to(self.raw_p.dtype) / CEILING
        return torch.logit(share, eps=torch.finfo(share.dtype).eps / 2)

    def kernel(self, distance: Float[Tensor, " n"]) -> Float[Tensor, "h n"]:
        """Return -a distance^p; the power skips distance 0, where its gradient is not finite."""
        p, a = (value.to(distance.dtype)[:, None] for value in (self.p(), self.a()))
        return -a * torch.where(distance > 0, distance.clamp(min=1) ** p, 0.0)


class KerplePower(_Power):
    """The power kernel."""

    title = "Kerple (power)"
    formula = "S = A - a_h |i-j|^p_h"

    @torch.no_grad()
    def fit(self, kernel: MeasuredKernel) -> bool:
        """Set p to the best of a grid, and a to match it."""
        grid = torch.linspace(0.1, CEILING - 0.1, 13, device=kernel.values.device).double()
        at = torch.arange(kernel.values.shape[1], device=grid.device)
        p, a = best_of(grid, at ** grid[:, None], kernel)
        self.raw_p.copy_(torch.logit(p / CEILING))
        self.raw_a.copy_(a.log())
        return True

    def bias(self, layer: LayerContext) -> Toeplitz:
        """Return the kernel by distance."""
        return self.by_distance(layer)


class KerpleWeight(_Power):
    """The power kernel as a weight: the scores are multiplied by its exponential."""

    title = "Kerple (weight)"
    formula = "S = A exp(-a_h |i-j|^p_h)"
    published = _Kernel.published[::-1]
    toeplitz = False
    context_dependent = True

    def kernel(self, distance: Float[Tensor, " n"]) -> Float[Tensor, "h n"]:
        """Return exp(-a distance^p)."""
        return super().kernel(distance).exp()

    def mixing(self, layer: LayerContext) -> Product:
        """Return the table that multiplies the scores."""
        return Product(self.by_distance(layer))
