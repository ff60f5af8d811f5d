"""CARoPE: RoPE whose base frequency is read off each token (Veisi et al. 2025, arXiv:2507.23083).

    f_th = 1 / (softplus(x_t w_h) + 1)        angle_ihm = sum_{t <= i} f_th^m,   m = 1 .. e/2

RoPE is the case f = base^(-2/e) for every token, up to its exponents, which start at 0. From the
paper; no public code was found, so nothing is verified against code. The paper leaves two points
open, which are fields here: where the exponents start, and whether a token's own frequency counts.
Sums and angles are float64.
"""

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
import torch.nn.functional as F
from torch import nn

from headscape.call.positions import Turn, pairs_of
from headscape.encodings.base import Config, Encoding, Shape
from headscape.encodings.context import LayerInput, Side, Stream
from headscape.encodings.token_sums import running_sum


@dataclass(frozen=True, kw_only=True)
class CARoPEConfig(Config):
    """Options of CARoPE."""

    first_power: int = 1
    """The exponent of the first pair."""
    own: Literal["counted", "left-out"] = "counted"
    """Whether a token's own frequency is in its angle."""
    pairing: Literal["interleaved", "halves"] = "interleaved"
    """Which dims form a pair."""

    AT_LEAST: ClassVar = {"first_power": 0}


class CARoPE(Encoding):
    """Rotation by a running sum of powers of a frequency per token and head."""

    title = "CARoPE"
    paper = "Veisi et al. 2025, arXiv:2507.23083"
    formula = "S = (R_i q_i).(R_j k_j) / sqrt(e), angle_im = sum_{t<=i} (1/(softplus(x_t w)_h+1))^m"
    shows = "final"
    toeplitz = False
    context_dependent = True
    config: CARoPEConfig

    def __init__(self, shape: Shape, config: CARoPEConfig) -> None:
        super().__init__(shape, config)
        self.pairs = pairs_of(self.title, shape.head_dim)
        self.frequency = nn.Linear(shape.width, shape.heads, bias=False)

    def stream(self, read: LayerInput) -> Stream:
        """Return the angles of every token, and the last sum."""
        base = 1 / (F.softplus(self.frequency(read.x)).double().transpose(1, 2) + 1)
        first = self.config.first_power
        power = torch.arange(first, first + self.pairs, device=read.x.device)
        step = base[..., None] ** power
        total = running_sum(step, read.carry, read.starts)
        angle = total if self.config.own == "counted" else total - step
        return Stream(angle=angle, carry=total[:, :, -1])

    def turn(self, side: Side) -> Turn:
        """Return the rotation of each token's pairs by its angles."""
        return Turn.by(self.need_angle(side), self.config.pairing)
