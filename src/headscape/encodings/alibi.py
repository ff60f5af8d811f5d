"""ALiBi: a linear penalty on distance (Press et al. 2022, arXiv:2108.12409).

    S_ij = A_ij - m_h |i - j|

No parameters; the same in every layer. Public code disagrees on the slopes m_h, h = 1..H:

    geometric   2^(-8h/H) for any H             the CABLE paper's figures
    fairseq     the list of the largest power of two P <= H, then every other entry of the list
                of 2P until H are there         official code, gpt-neox, BLOOM, x-transformers
    mpt         the list of the smallest power of two P >= H, its odd positions first, then its
                even ones, cut to H             MPT
    falcon      fairseq's, rounded to bfloat16  Falcon, with divisor sqrt_head_dim

All four agree where H is a power of two, up to Falcon's rounding. The bias is -m |i - j|. The form
+m j, which some models add and which is equal after the softmax, is deliberately absent.
"""

from dataclasses import dataclass
from typing import Literal

import torch

from headscape.call.bias import Toeplitz
from headscape.encodings.base import Config, Encoding
from headscape.encodings.context import LayerContext


def geometric(heads: int) -> list[float]:
    """Return 2^(-8h/H) for h = 1..H."""
    return [2.0 ** (-8 * (h + 1) / heads) for h in range(heads)]


def fairseq(heads: int) -> list[float]:
    """Return the official slopes: a power of two of them, then every other one of twice as many."""
    power = 1 << (heads.bit_length() - 1)
    return geometric(power) + geometric(2 * power)[::2][: heads - power]


def mpt(heads: int) -> list[float]:
    """Return MPT's slopes: those of the next power of two, odd positions first."""
    power = 1 << (heads - 1).bit_length()
    slopes = geometric(power)
    return slopes if power == heads else (slopes[1::2] + slopes[::2])[:heads]


def falcon(heads: int) -> list[float]:
    """Return the official slopes rounded to bfloat16."""
    return torch.tensor(fairseq(heads)).bfloat16().tolist()


SLOPES = {"geometric": geometric, "fairseq": fairseq, "mpt": mpt, "falcon": falcon}


@dataclass(frozen=True, kw_only=True)
class ALiBiConfig(Config):
    """Slopes and divisor of ALiBi."""

    slopes: Literal["geometric", "fairseq", "mpt", "falcon"] = "geometric"
    """Which rule gives the slopes; see the top of alibi.py."""
    divisor: Literal["one", "sqrt_head_dim"] = "one"
    """sqrt_head_dim divides the bias by sqrt(head dim) too, as Falcon does."""


class ALiBi(Encoding):
    """A fixed slope per head."""

    title = "ALiBi"
    paper = "Press et al. 2022, arXiv:2108.12409"
    formula = "S = A - m_h |i-j|"
    config: ALiBiConfig

    def bias(self, layer: LayerContext) -> Toeplitz:
        """Return -m_h |i - j| by distance, in float64."""
        distance, zero = self.distances(layer.positions, layer.positions.q.device)
        slopes = torch.tensor(
            SLOPES[self.config.slopes](self.shape.heads),
            dtype=torch.float64,
            device=distance.device,
        )
        if self.config.divisor == "sqrt_head_dim":
            slopes = slopes / self.shape.head_dim**0.5
        return Toeplitz(-slopes[:, None] * distance.abs(), zero)
