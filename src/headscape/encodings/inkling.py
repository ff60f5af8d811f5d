"""Inkling: a learned curve by distance for every token (Thinking Machines 2026, no paper).

    B_ij = r_i . P[:, i - j]   for 0 <= i - j < extent, 0 beyond      r_i = x_i W_r

x is the layer's input after its norm; r has `rank` numbers per head and token, P [rank, extent] is
shared by all heads. There is no rotation.

Inkling normalises q and k per head and scales q.k by 1/e, not 1/sqrt(e) (`qk_scale`). Its layers
with a window have extent = window; its full layers have extent 1024 and temperature="inkling",
which multiplies q.k and the bias. The norm and the short convolutions over k and v belong to the
model.
x-transformers' RelativeProj has a bias term in W_r (`projection_bias`) and the usual scale.

Inkling 2 bounds the curves and keeps the usual scale (`clip`, 8 in the model):

    r_i = min(1, clip / |x_i W_r * g|) (x_i W_r * g)      g [rank] is learned per head

and q and k the same way, which is `qk_norm_kind="clip"` of the model.
"""

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from headscape.call.bias import RelativeCurves
from headscape.encodings.base import Config, Encoding, Shape
from headscape.encodings.context import LayerContext, LayerInput, Stream

MAX_EXTENT = 1024
"""The extent of Inkling's full layers."""
SHORTEST = 1e-6
"""Added to a length that divides, as Inkling 2 does."""


@dataclass(frozen=True, kw_only=True)
class InklingConfig(Config):
    """Options of Inkling."""

    rank: int = 16
    """Numbers per head and token, and curves in the bank."""
    extent: int | None = None
    """Distances with a bias; None is the window, or the context length up to 1024."""
    qk_scale: Literal["head_dim", "model"] = "head_dim"
    """The factor of q.k: 1/e, or the model's."""
    projection_bias: bool = False
    """W_r has a bias term, as in x-transformers."""
    clip: float | None = None
    """The largest L2 norm of r, after a learned factor per head and number (Inkling 2: 8)."""

    AT_LEAST: ClassVar = {"rank": 1, "extent": 1}
    ABOVE: ClassVar = {"clip": 0}


class Inkling(Encoding):
    """A curve by distance per token and head, from a bank of curves."""

    title = "Inkling"
    paper = "Thinking Machines 2026, no paper"
    formula = "S = A + (x_i W_r)_h . P[i-j], 0 from i-j = extent on"
    published = (
        {
            "r_proj.weight": "project.weight",
            "rel_logits_proj.proj": "bank",
            "rel_l2_clip.scale": "gain",
        },
        {
            "to_distance_weights.0.weight": "project.weight",
            "to_distance_weights.0.bias": "project.bias",
            "distance_bank": "bank",
        },
    )
    no_bidirectional_form = "its curves start at distance 0"
    toeplitz = False
    context_dependent = True
    config: InklingConfig

    def __init__(self, shape: Shape, config: InklingConfig) -> None:
        super().__init__(shape, config)
        extent = config.extent or config.window
        if extent is None:
            extent = min(shape.trained(self.title, "extent"), MAX_EXTENT)
        wide = shape.heads * config.rank
        self.project = nn.Linear(shape.width, wide, bias=config.projection_bias)
        self.bank = nn.Parameter(torch.randn(config.rank, extent) * 0.02)
        gain = None if config.clip is None else torch.ones(shape.heads, config.rank)
        self.gain = None if gain is None else nn.Parameter(gain)

    @property
    def content_scale(self) -> float | None:
        """1/e, unless the model's scale is asked for."""
        return 1 / self.shape.head_dim if self.config.qk_scale == "head_dim" else None

    def stream(self, read: LayerInput) -> Stream:
        """Return r of every token."""
        r = self.project(read.x).unflatten(-1, (self.shape.heads, self.config.rank))
        if self.gain is not None and self.config.clip is not None:
            r = clipped(r * self.gain, self.config.clip)
        return Stream(query=r.transpose(1, 2))

    def bias(self, layer: LayerContext) -> RelativeCurves:
        """Return every query's curve; a column of zeros ends it."""
        queries, _ = self.need_streams(layer)
        assert queries.query is not None
        return RelativeCurves(queries.query, F.pad(self.bank, (0, 1))[None], 0)


def clipped(x: Float[Tensor, "*b e"], limit: float) -> Float[Tensor, "*b e"]:
    """Return the vectors, those longer than the limit scaled down to it."""
    wide = x.to(torch.promote_types(x.dtype, torch.float32))
    length: Tensor = torch.linalg.vector_norm(wide, dim=-1, keepdim=True)
    return (wide * (limit / (length + SHORTEST)).clamp(max=1)).to(x.dtype)
