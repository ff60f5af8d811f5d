"""Transformer-XL: sinusoids of the distance, read by the query (Dai et al. 2019, arXiv:1901.02860).

    S_ij = ((q_i + u) . k_j + (q_i + w) . W_R R(i - j)) / sqrt(e)

R(d) has sin(d base^(-2m/width)) and its cosine for every m, W_R projects them to every head, u and
w are learned per head. Distances to the right are negative.

Layouts of R: [sin | cos] in Transformer-XL and XLNet ("halves"), sin and cos in turn in the
Conformers of transformers ("interleaved"). XLNet's clamp_len is `clamp`. XLNet starts u and w from
N(0, 0.02) as we do, the Conformers from Xavier's uniform distribution. Transformer-XL can share u
and w over layers (a model's `share_encoding`, which then shares W_R too).
"""

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from jaxtyping import Float
from torch import Tensor, nn

from headscape.call.bias import RelativeCurves
from headscape.encodings.base import Config, Encoding, Shape
from headscape.encodings.context import LayerContext
from headscape.errors import InputError

STEP = 64


@dataclass(frozen=True, kw_only=True)
class TransformerXLConfig(Config):
    """Options of Transformer-XL."""

    layout: Literal["halves", "interleaved"] = "halves"
    """Sines, then cosines; or a sine and its cosine in turn."""
    base: float = 10_000.0
    """Base of the frequencies."""
    clamp: int | None = None
    """Distances beyond this count as this far."""

    AT_LEAST: ClassVar = {"clamp": 1}
    ABOVE: ClassVar = {"base": 1}


class TransformerXL(Encoding):
    """Projected sinusoids of the distance, and a constant query."""

    title = "Transformer-XL"
    paper = "Dai et al. 2019, arXiv:1901.02860"
    formula = "S = ((q_i+u_h).k_j + (q_i+w_h).W_R R(i-j)) / sqrt(e)"
    published = (
        {"r_w_bias": "content", "r_r_bias": "position", "r": "project.weight"},
        {
            "pos_bias_u": "content",
            "pos_bias_v": "position",
            "linear_pos.weight": "project.weight",
        },
        {"r_w_bias": "content", "r_r_bias": "position", "r_net.weight": "project.weight"},
    )
    toeplitz = False
    context_dependent = True
    config: TransformerXLConfig

    def __init__(self, shape: Shape, config: TransformerXLConfig) -> None:
        super().__init__(shape, config)
        if shape.width % 2:
            raise InputError(f"Transformer-XL needs an even width, got {shape.width}.")
        size = shape.heads, shape.head_dim
        self.content = nn.Parameter(torch.randn(size) * 0.02)
        self.position = nn.Parameter(torch.randn(size) * 0.02)
        self.project = nn.Linear(shape.width, shape.heads * shape.head_dim, bias=False)

    def from_published(self, parameter: str, value: Tensor) -> Tensor:
        """Convert XLNet's projection [d h e] to [h e, d]."""
        return value.flatten(1).T if value.ndim == 3 else value

    def bias(self, layer: LayerContext) -> RelativeCurves:
        """Return (q_i + w) . W_R R(i - j) by query, and u . k_j by key, both scaled."""
        heads = self.need_heads(layer)
        distance, zero = self.distances(layer.positions, self.content.device)
        far = len(distance) - 1 - zero
        if self.config.clamp is not None:
            zero = min(zero, self.config.clamp)
        if zero:
            basis = self.basis(zero, far)
        else:
            # A causal basis starts at distance 0 and only grows, so a cache can keep it.
            basis = heads.keep("basis", far + 1, lambda n: self.basis(0, n - 1))
        r = heads.scale * (heads.q + self.position[:, None])
        constant = (heads.keys() * (heads.scale * self.content[:, None])).sum(-1, keepdim=True)
        flat = basis.new_ones(1, 1, 1).expand(-1, -1, basis.shape[-1])
        return RelativeCurves(r, basis, zero, (constant, flat))

    def basis(self, left: int, right: int) -> Float[Tensor, "h e m"]:
        """Return W_R R of the distances from -left to right, both up to the clamp.

        R(-d) is R(d) with its sines negated, so sines and cosines are projected separately, and
        only for distances from 0 on.
        """
        if self.config.clamp is not None:
            left, right = min(left, self.config.clamp), min(right, self.config.clamp)
        waves = self.sinusoids(max(left, right) + 1)
        # [h n e] is the kernels' layout, so they need no copy.
        sine, cosine = (x @ w for x, w in zip(waves, self.split(), strict=True))
        by_right = (cosine + sine)[:, : right + 1]
        if not left:
            return by_right.mT
        by_left = (cosine - sine)[:, 1 : left + 1]
        return torch.cat([by_left.flip(1), by_right], dim=1).mT

    def split(self) -> tuple[Float[Tensor, "h m e"], Float[Tensor, "h m e"]]:
        """Return the columns of W_R for sines and those for cosines, per head."""
        heads, half = self.shape.heads, self.shape.width // 2
        if self.config.layout == "halves":
            sine, cosine = self.project.weight.reshape(heads, -1, 2, half).unbind(2)
        else:
            sine, cosine = self.project.weight.reshape(heads, -1, half, 2).unbind(3)
        return sine.mT, cosine.mT

    def sinusoids(self, count: int) -> tuple[Float[Tensor, "n m"], Float[Tensor, "n m"]]:
        """Return the sines and the cosines in R of distances 0, 1, 2 ...

        exp(i (a + b) w) = exp(i a w) exp(i b w): every 64th distance and 64 steps need a sine, with
        angles in float64; the rest are products.
        """
        width, dtype, device = self.shape.width, self.content.dtype, self.content.device
        m = torch.arange(0, width, 2, dtype=torch.float64, device=device)
        speed = self.config.base ** (-m / width)
        exact = dtype if dtype == torch.float64 else torch.float32
        steps = torch.arange(0, count, STEP, device=device), torch.arange(STEP, device=device)
        angles = [x[:, None] * speed for x in steps]
        coarse, fine = (torch.polar(torch.ones_like(x), x).to(exact.to_complex()) for x in angles)
        turns = (coarse[:, None] * fine).flatten(0, 1)[:count]
        return turns.imag.to(dtype).contiguous(), turns.real.to(dtype).contiguous()
