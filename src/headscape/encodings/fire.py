"""FIRE: functional interpolation of the distance (Li et al. 2024, arXiv:2310.04418).

    S_ij = A_ij + mlp(u_ij)_h,   u_ij = ln(1 + |c| (i - j)) / (ln(1 + |c| max(i, T)) + 1e-6)

mlp: Linear(1, m), ReLU, Linear(m, H). T = |multiplier * length|, where `length` is frozen and the
multiplier learned; c is learned. The normaliser uses the 0-based query position i, so it needs
the true position of a query, not its index in a window.

Public code: the CABLE and DAPE trees freeze length 512 (our default); DAPE's megatron tree halves
what it is given; FIRE inside DAPE's wrappers uses LeakyReLU(0.01) (activation="leaky_relu").
"""

from dataclasses import dataclass
from typing import Literal

import torch
from torch import nn

from headscape.bias import Perceptron
from headscape.encodings.base import Config, Encoding, Shape, Stream
from headscape.errors import InputError
from headscape.types import Positions

EPSILON = 1e-6
LEAK = {"relu": 0.0, "leaky_relu": 0.01}


@dataclass(frozen=True, kw_only=True)
class FIREConfig(Config):
    """FIRE's starting values and its perceptron."""

    c: float = 0.1
    """Where the learned rate of the logarithm starts."""
    length_multiplier: float = 1.0
    """Where the learned factor of the frozen length starts."""
    length: float = 512.0
    """The frozen length L0."""
    mlp_width: int = 32
    """Hidden units."""
    activation: Literal["relu", "leaky_relu"] = "relu"
    """The hidden units' nonlinearity."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.mlp_width < 1:
            raise InputError(f"mlp_width must be at least 1, not {self.mlp_width}.")
        if self.length <= 0:
            raise InputError(f"length must be above 0, not {self.length}.")


class FIRE(Encoding):
    """A perceptron of the distance, normalised by the query's position."""

    paper = "Li et al. 2024, arXiv:2310.04418"
    formula = "S = A + mlp(ln(1+c(i-j)) / ln(1+c max(i,T)))_h"
    no_bidirectional_form = "its normaliser is the query's own position, which bounds only i - j"
    adds_bias = True
    shift_invariant = False
    toeplitz = False
    config_type = FIREConfig
    config: FIREConfig

    def __init__(self, shape: Shape, config: FIREConfig) -> None:
        super().__init__(shape, config)
        self.c = nn.Parameter(torch.tensor(config.c))
        self.length_multiplier = nn.Parameter(torch.tensor(config.length_multiplier))
        self.inner = nn.Linear(1, config.mlp_width)
        self.outer = nn.Linear(config.mlp_width, shape.heads)

    def bias(
        self, positions: Positions, queries: Stream | None = None, keys: Stream | None = None
    ) -> Perceptron:
        """The perceptron and its two inputs: by distance, and by query."""
        distance, zero = self.distances(positions, self.c.device)
        # At least float32: bfloat16 does not tell positions above 256 apart.
        work = torch.promote_types(self.c.dtype, torch.float32)
        threshold = (self.length_multiplier.to(work) * self.config.length).abs()
        rate = self.c.to(work).abs()
        at = torch.maximum(positions.q.to(rate.dtype), threshold)
        return Perceptron(
            near=torch.log1p(rate * distance),
            zero=zero,
            far=torch.log1p(rate * at) + EPSILON,
            in_weight=self.inner.weight[:, 0].to(work),
            in_bias=self.inner.bias.to(work),
            out_weight=self.outer.weight.to(work),
            out_bias=self.outer.bias.to(work),
            leak=LEAK[self.config.activation],
        )
