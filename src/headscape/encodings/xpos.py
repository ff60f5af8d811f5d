"""xPos: RoPE whose pairs fade with distance (Sun et al. 2023, arXiv:2212.10554).

    S_ij = sum over pairs m of zeta_m^((i - j)/scale_base) times RoPE's term,
    zeta_m = (2m + gamma e) / ((1 + gamma) e)

A query is multiplied by zeta^(i/scale_base), a key by its inverse. Public code centres i and j on
half the length, which cancels in the scores; here the centre is position 0, so a cached key never
changes. That leaves float32's range near position 35,000: beyond, an error says so.
Keys to the right would be amplified, so there is no bidirectional form. The paper's blockwise
masking at inference is absent.
"""

import math
from dataclasses import dataclass
from typing import Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor

from headscape.encodings.base import Config, Encoding, Role, Shape
from headscape.encodings.rotation import powers, turn
from headscape.errors import InputError


@dataclass(frozen=True, kw_only=True)
class XPosConfig(Config):
    """Pairing and decay."""

    pairing: Literal["interleaved", "halves"] = "interleaved"
    """Which dims make a pair."""
    base: float = 10_000.0
    """The longest wavelength is 2 pi base."""
    scale_base: float = 512.0
    """Distance over which a pair fades by its zeta."""
    gamma: float = 0.4
    """Offset of the slowest-fading pair."""

    def __post_init__(self) -> None:
        super().__post_init__()
        for name, low in (("gamma", 0.0), ("scale_base", 0.0), ("base", 1.0)):
            if getattr(self, name) <= low:
                raise InputError(f"{name} must be above {low:g}, not {getattr(self, name)}.")


class XPos(Encoding):
    """Rotation with an exponential decay per pair."""

    paper = "Sun et al. 2023, arXiv:2212.10554"
    formula = "S = sum_m zeta_m^((i-j)/512) RoPE_m(q_i, k_j)"
    no_bidirectional_form = "a key to the right of its query would be amplified without bound"
    toeplitz = False
    context_dependent = True
    rotates = True
    config_type = XPosConfig
    config: XPosConfig

    def __init__(self, shape: Shape, config: XPosConfig) -> None:
        super().__init__(shape, config)
        if shape.head_dim % 2:
            raise InputError(
                f"xPos turns pairs, so the head dim must be even, not {shape.head_dim}."
            )

    def rotate(
        self, x: Float[Tensor, "b h t e"], at: Int[Tensor, "#b t"], role: Role
    ) -> Float[Tensor, "b h t e"]:
        """Turn each pair and scale it by zeta to the power of its position, or its inverse."""
        dims, gamma = self.shape.head_dim, self.config.gamma
        m = torch.arange(0, dims, 2, dtype=torch.float64, device=at.device)
        zeta = (m + gamma * dims) / ((1 + gamma) * dims)
        steepest = -math.log(gamma / (1 + gamma)) / self.config.scale_base
        limit = int(math.log(torch.finfo(x.dtype).max) / steepest * 0.95)
        if int(at.max()) > limit:
            raise InputError(
                f"xPos at position {int(at.max())} leaves the range of {x.dtype}: "
                f"stay below {limit} or use float64."
            )
        position = at[:, None, :, None]
        angle = position * powers(self.config.base, dims).to(at.device)
        scale = zeta ** (position / self.config.scale_base)
        scale = scale if role == "query" else 1 / scale
        cos, sin = (angle.cos() * scale).to(x.dtype), (angle.sin() * scale).to(x.dtype)
        return turn(x, cos, sin, self.config.pairing)
