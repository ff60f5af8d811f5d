"""Sandwich: the inner product of sinusoids as a bias (Chi et al. 2023, arXiv:2212.10356).

    S_ij = A_ij + (sum_m cos((i - j) base^(-2m/R)) - R/2) H / (8h),   m = 1 .. R/2,  h = 1 .. H

No parameters. R is the head dim in NeMo (our default) and 128 in the paper; the paper's snippet
counts m from 0 and omits -R/2, which shifts all scores of a row equally.
"""

from dataclasses import dataclass
from typing import Literal

import torch

from headscape.call.bias import Toeplitz
from headscape.encodings.base import Config, Encoding
from headscape.encodings.context import LayerContext
from headscape.errors import InputError


@dataclass(frozen=True, kw_only=True)
class SandwichConfig(Config):
    """Options of Sandwich."""

    dims: int | None = None
    """R; the head dim if left out."""
    base: float = 10_000.0
    """Base of the frequencies; the longest wavelength is below 2 pi base tokens."""
    first: int = 1
    """The first m, 0 or 1."""
    centre: Literal["own-token", "none"] = "own-token"
    """own-token subtracts R/2, so the bias of a token on itself is 0."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.first not in {0, 1}:
            raise InputError(f"first must be 0 or 1, got {self.first}.")
        if self.dims is not None and (self.dims < 2 or self.dims % 2):
            raise InputError(f"dims must be even and at least 2, got {self.dims}.")


class Sandwich(Encoding):
    """A sum of cosines of the distance, steeper in the first heads."""

    title = "Sandwich"
    paper = "Chi et al. 2023, arXiv:2212.10356"
    formula = "S = A + (sum_m cos((i-j) w_m) - R/2) H/(8h)"
    config: SandwichConfig

    def bias(self, layer: LayerContext) -> Toeplitz:
        """Return the sum by distance, in float64."""
        distance, zero = self.distances(layer.positions, layer.positions.q.device)
        dims = self.config.dims or self.shape.head_dim
        m = torch.arange(dims // 2, dtype=torch.float64, device=distance.device)
        wave = (distance[:, None] * self.config.base ** (-2 * (m + self.config.first) / dims)).cos()
        total = wave.sum(dim=-1)
        if self.config.centre == "own-token":
            total = total - dims // 2
        head = torch.arange(1, self.shape.heads + 1, dtype=torch.float64, device=distance.device)
        return Toeplitz(total * self.shape.heads / (8 * head[:, None]), zero)
