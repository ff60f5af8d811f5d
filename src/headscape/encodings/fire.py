"""FIRE: functional interpolation of the distance (Li et al. 2024, arXiv:2310.04418).

    S_ij = A_ij + mlp(u_ij)_h,   u_ij = ln(1 + |c| (i - j)) / (ln(1 + |c| max(i, T)) + 1e-6)

mlp: Linear(1, m), ReLU, Linear(m, H). T = |multiplier * length|, where `length` is frozen and the
multiplier learned; c is learned. The normaliser uses the 0-based query position i, so it needs
the true position of a query, not its index in a window. There is no public bidirectional form.

Public code: the CABLE and DAPE trees freeze length 512 (our default); DAPE's megatron tree stores
half of the length it is given; FIRE inside DAPE's wrappers uses LeakyReLU(0.01)
(activation="leaky_relu").
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor, nn

from headscape.call.bias import Perceptron
from headscape.encodings.base import Config, Encoding, Shape
from headscape.encodings.context import LayerContext
from headscape.errors import InputError

EPSILON = 1e-6
LEAK = {"relu": 0.0, "leaky_relu": 0.01}


@dataclass(frozen=True, kw_only=True)
class FIREConfig(Config):
    """Initial values and perceptron of FIRE."""

    c: float = 0.1
    """Initial value of the learned c."""
    length_multiplier: float = 1.0
    """Initial value of the learned multiplier."""
    length: float = 512.0
    """The frozen length, in tokens."""
    mlp_width: int = 32
    """Hidden units."""
    activation: Literal["relu", "leaky_relu"] = "relu"
    """Activation of the hidden units."""

    AT_LEAST: ClassVar = {"mlp_width": 1}
    ABOVE: ClassVar = {"length": 0}


class FIRE(Encoding):
    """A perceptron of the distance, normalised by the query's position."""

    title = "Fire"
    paper = "Li et al. 2024, arXiv:2310.04418"
    formula = "S = A + mlp(ln(1+c(i-j)) / ln(1+c max(i,T)))_h"
    published = (
        {
            "c": "c",
            "L_multiplier": "length_multiplier",
            "mlp.0.weight": "inner.weight",
            "mlp.0.bias": "inner.bias",
            "mlp.2.weight": "outer.weight",
            "mlp.2.bias": "outer.bias",
        },
    )
    no_bidirectional_form = (
        "its normaliser is the query's position, which is an upper bound only for keys before it"
    )
    shift_invariant = False
    toeplitz = False
    config: FIREConfig

    def __init__(self, shape: Shape, config: FIREConfig) -> None:
        super().__init__(shape, config)
        self.c = nn.Parameter(torch.tensor(config.c))
        self.length_multiplier = nn.Parameter(torch.tensor(config.length_multiplier))
        self.inner = nn.Linear(1, config.mlp_width)
        self.outer = nn.Linear(config.mlp_width, shape.heads)

    def load_published(
        self,
        tensors: Mapping[str, Tensor],
        *,
        source: str = "the given tensors",
        prefix: str = "",
    ) -> None:
        """Copy the authors' tensors; their frozen `init_L`, if given, must equal `length`."""
        frozen = tensors.get(f"{prefix}init_L")
        if frozen is not None and frozen.item() != self.config.length:
            raise InputError(
                f"{source}: init_L is {frozen.item():g}, but this Fire was built with length "
                f"{self.config.length:g}; build it with length={frozen.item():g}."
            )
        super().load_published(tensors, source=source, prefix=prefix)

    def bias(self, layer: LayerContext) -> Perceptron:
        """Return the perceptron and its input, a table by distance over a divisor per query."""
        distance, zero = self.distances(layer.positions, self.c.device)
        # At least float32: bfloat16 cannot represent every position above 256.
        work = torch.promote_types(self.c.dtype, torch.float32)
        threshold = (self.length_multiplier.to(work) * self.config.length).abs()
        rate = self.c.to(work).abs()
        at = torch.maximum(layer.positions.q.to(rate.dtype), threshold)
        return Perceptron(
            near=torch.log1p(rate * distance),
            zero=zero,
            far=torch.log1p(rate * at) + EPSILON,
            in_weight=self.inner.weight[:, 0].to(work),
            in_bias=self.inner.bias.to(work),
            out_weight=self.outer.weight.to(work),
            out_bias=self.outer.bias.to(work),
            leak=LEAK[self.config.activation],
            at=layer.positions.q,
        )
