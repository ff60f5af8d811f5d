"""xPos: RoPE whose pairs fade with distance (Sun et al. 2023, arXiv:2212.10554).

    S_ij = sum over pairs m of zeta_m^((i - j)/scale_base) times RoPE's term,
    zeta_m = (2m + gamma e) / ((1 + gamma) e)

A query is multiplied by zeta^(i/scale_base), a key by zeta^(-j/scale_base). Public code measures i
and j from half the length, which cancels in the scores; here they are measured from position 0, so
a cached key never changes. The factor overflows float32 near position 35,000; larger positions are
an error. Keys to the right would be amplified, so there is no bidirectional form. The paper's
blockwise masking at inference is absent.
"""

import math
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from jaxtyping import Float
from torch import Tensor

from headscape.call.positions import Turn, pairs_of, powers
from headscape.encodings.base import Config, Encoding, Shape
from headscape.encodings.context import Side
from headscape.errors import InputError


@dataclass(frozen=True, kw_only=True)
class XPosConfig(Config):
    """Options of xPos."""

    pairing: Literal["interleaved", "halves"] = "interleaved"
    """Which dims form a pair."""
    base: float = 10_000.0
    """Base of the frequencies; the longest wavelength is below 2 pi base tokens."""
    scale_base: float = 512.0
    """Distance, in tokens, at which a pair is multiplied by its zeta."""
    gamma: float = 0.4
    """gamma in zeta; a larger value makes all pairs decay more slowly."""

    ABOVE: ClassVar = {"gamma": 0, "scale_base": 0, "base": 1}


class XPos(Encoding):
    """Rotation with an exponential decay per pair."""

    title = "xPos"
    paper = "Sun et al. 2023, arXiv:2212.10554"
    formula = "S = sum_m zeta_m^((i-j)/512) RoPE_m(q_i, k_j)"
    shows = "final"
    no_bidirectional_form = "a key to the right of its query would be amplified without bound"
    toeplitz = False
    context_dependent = True
    config: XPosConfig

    def __init__(self, shape: Shape, config: XPosConfig) -> None:
        super().__init__(shape, config)
        pairs_of(self.title, shape.head_dim)

    def turn(self, side: Side) -> Turn:
        """Return the rotation of each pair, scaled by a power of zeta."""
        dims, gamma = self.shape.head_dim, self.config.gamma
        m = torch.arange(0, dims, 2, dtype=torch.float64, device=side.at.device)
        zeta = (m + gamma * dims) / ((1 + gamma) * dims)
        position = side.at[:, None, :, None]
        angle = position * powers(self.config.base, dims).to(side.at.device)
        scale = zeta ** (position / self.config.scale_base)
        scale = scale if side.role == "query" else 1 / scale
        return Turn(angle.cos() * scale, angle.sin() * scale, self.config.pairing)

    def rotate(self, x: Float[Tensor, "b h t e"], side: Side) -> Float[Tensor, "b h t e"]:
        """Return x turned; raise if the scale overflows its dtype."""
        gamma, last = self.config.gamma, int(side.at.max())
        steepest = -math.log(gamma / (1 + gamma)) / self.config.scale_base
        limit = int(math.log(torch.finfo(x.dtype).max) / steepest * 0.95)
        if last > limit:
            raise InputError(
                f"xPos overflows {x.dtype} at position {last}: use positions up to {limit} or "
                f"float64."
            )
        return super().rotate(x, side)
