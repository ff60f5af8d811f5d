"""RePo: a real-valued position, read off each token (Li et al. 2025, arXiv:2512.14391).

    z_th = W_f (silu(W_g x_t) * W_c x_t)        S_ij = (R(z_i) q_i).(R(z_j) k_j) / sqrt(e)

with RoPE's rotation R, pairs (m, m + e/2), w_m = base^(-2m/e), and z of every head. No index and no
sum enters: order is seen through the causal mask and through layers with ordinary RoPE. The authors
use it from layer 5 on and RoPE below, which a schedule writes as "rope*5,repo*11". They read x
before the layer's norm; ours reads what the layer's projections read. W_g and W_c have width/8
rows. Options of their code: z as one linear map of x (`position_map`), and one z for all heads
(`per_head`). In training they mix z with the index, which is absent here. Angles are float64.
"""

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from headscape.call.positions import Turn, pairs_of, powers
from headscape.encodings.base import Config, Encoding, Shape
from headscape.encodings.context import LayerInput, Side, Stream
from headscape.errors import InputError


@dataclass(frozen=True, kw_only=True)
class RePoConfig(Config):
    """Options of RePo."""

    base: float = 500_000.0
    """Base of the frequencies."""
    position_map: Literal["swiglu", "linear"] = "swiglu"
    """How z is computed from x: W_f (silu(W_g x) * W_c x), or W_f x."""
    per_head: bool = True
    """Whether every head has a position of its own."""
    hidden: int | None = None
    """Rows of W_g and W_c; width/8 if left out."""
    pairing: Literal["interleaved", "halves"] = "halves"
    """Which dims form a pair."""

    AT_LEAST: ClassVar = {"hidden": 1}
    ABOVE: ClassVar = {"base": 1}

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.hidden is not None and self.position_map == "linear":
            raise InputError(
                f"hidden={self.hidden} has no effect with position_map='linear': leave it out."
            )


class RePo(Encoding):
    """Rotation by a position that the token itself gives."""

    title = "RePo"
    paper = "Li et al. 2025, arXiv:2512.14391"
    formula = "S = (R(z_i) q_i).(R(z_j) k_j) / sqrt(e), z = W_f (silu(W_g x) * W_c x)"
    shows = "final"
    published = (
        {
            "gate_map.weight": "gate.weight",
            "content_map.weight": "content.weight",
            "final_map.weight": "final.weight",
        },
        {"dynamic_map.weight": "final.weight"},
    )
    toeplitz = False
    context_dependent = True
    config: RePoConfig

    def __init__(self, shape: Shape, config: RePoConfig) -> None:
        super().__init__(shape, config)
        pairs_of(self.title, shape.head_dim)
        hidden = config.hidden or max(1, shape.width // 8)
        self.gate = self.content = None
        if config.position_map == "swiglu":
            self.gate = nn.Linear(shape.width, hidden, bias=False)
            self.content = nn.Linear(shape.width, hidden, bias=False)
        inputs = shape.width if self.gate is None else hidden
        self.final = nn.Linear(inputs, shape.heads if config.per_head else 1, bias=False)

    def position(self, x: Float[Tensor, "b t d"]) -> Float[Tensor, "b h t"]:
        """Return z of every token and head."""
        if self.gate is not None and self.content is not None:
            x = F.silu(self.gate(x)) * self.content(x)
        z: Tensor = self.final(x)
        return z.transpose(1, 2)

    def stream(self, read: LayerInput) -> Stream:
        """Return the angles of every token."""
        rate = powers(self.config.base, self.shape.head_dim).to(read.x.device)
        return Stream(angle=self.position(read.x).double()[..., None] * rate)

    def turn(self, side: Side) -> Turn:
        """Return the rotation of each token's pairs by its angles."""
        return Turn.by(self.need_angle(side), self.config.pairing)
