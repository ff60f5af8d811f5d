"""Shaw: a learned vector per clipped distance, read by the query (Shaw et al. 2018, 1803.02155).

    S_ij = (q_i . k_j + q_i . a[clip(j - i, -left, right)]) / sqrt(e)

One table of left + right + 1 vectors for all heads. Row 0 is the farthest key to the left, so row
numbers grow with j - i, not with the distance i - j. wav2vec2-BERT and SeamlessM4T v2 use left 64
and right 8. A causal table has no rows to the right unless `right` is given.

Music Transformer (Huang et al. 2018, arXiv:1809.04281) has the same form with as many rows as
tokens: left = rows - 1, right = 0, beyond="refuse" and init="uniform". The paper's second table,
which is added to the values, is in none of these models and absent here.
"""

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import nn

from headscape.call.bias import RelativeCurves
from headscape.encodings.base import Config, Encoding, Shape
from headscape.encodings.context import LayerContext
from headscape.errors import InputError


@dataclass(frozen=True, kw_only=True)
class ShawConfig(Config):
    """Options of Shaw."""

    left: int = 64
    """Keys further to the left count as this far."""
    right: int | None = None
    """The same to the right; None is 8, and 0 in a causal model."""
    beyond: Literal["clip", "refuse"] = "clip"
    """What to do with a distance that has no row: take the last one, or raise."""
    init: Literal["normal", "uniform"] = "normal"
    """Normal with standard deviation 0.02, or uniform from 0 to 1."""

    AT_LEAST: ClassVar = {"left": 0, "right": 0}


class Shaw(Encoding):
    """Relative keys."""

    title = "Shaw"
    paper = "Shaw et al. 2018, arXiv:1803.02155"
    formula = "S = (q_i.k_j + q_i.a[clip(j-i,-l,r)]) / sqrt(e)"
    published = (
        {"distance_embedding.weight": "table"},
        {"Er": "table"},
    )
    toeplitz = False
    context_dependent = True
    config: ShawConfig

    def __init__(self, shape: Shape, config: ShawConfig) -> None:
        super().__init__(shape, config)
        self.right = (0 if shape.causal else 8) if config.right is None else config.right
        table = torch.empty(config.left + self.right + 1, shape.head_dim)
        self.table = nn.Parameter(
            nn.init.normal_(table, std=0.02) if config.init == "normal" else nn.init.uniform_(table)
        )

    def bias(self, layer: LayerContext) -> RelativeCurves:
        """Return the product of every query with the vector of its distance to every key."""
        heads = self.need_heads(layer)
        low, high = layer.positions.bounds
        low = 0 if self.shape.causal else low
        if self.config.beyond == "refuse" and not -self.right <= low <= high <= self.config.left:
            raise InputError(
                f"Shaw has rows for distances {-self.right} to {self.config.left}, but the "
                f"positions have {low} to {high}: use beyond='clip' or a larger left and right."
            )
        return RelativeCurves(heads.scale * heads.q, self.table.flip(0).T[None], self.right)
