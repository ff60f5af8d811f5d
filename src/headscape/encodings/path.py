"""PaTH: keys pass a reflection per token on their way (Yang et al. 2025, arXiv:2505.16381).

    S_ij = q_i^T H_i H_{i-1} ... H_{j+1} k_j / sqrt(e),    H_t = I - beta_t w_t w_t^T

w_t is the unit vector of silu(causal convolution of W2 W1 x_t), one per head, and beta_t is
2 sigmoid(x_t u + b), so that H_t may also reflect. Options of the authors' layer: one full matrix
in place of W2 W1 (`low_rank`), and no convolution, then also no silu (`convolution`). With `gate`
the score is (q_i^T ... k_j + sum_{j < t <= i} ln sigmoid(x_t g + c)) / sqrt(e): the sum is divided
too.

The scores are exact (call/transition.py): a triangular solve per block of queries and of tokens, in
float32 at least. A cache applies each new token's reflection to all its keys. QK-norm is a field of
the model, grouped queries are absent.
"""

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from headscape.call.bias import Bias, Slope
from headscape.call.transition import Reflections
from headscape.encodings.base import Config, Encoding, Shape
from headscape.encodings.context import LayerContext, LayerInput, Stream
from headscape.encodings.token_sums import running_sum, short_convolution
from headscape.errors import InputError

FLOOR = 1e-6
"""Added to a squared length before w is divided by it, as in the authors' code."""


@dataclass(frozen=True, kw_only=True)
class PaTHConfig(Config):
    """Options of PaTH."""

    rank: int = 32
    """Rank of the projection that w is made from."""
    low_rank: bool = True
    """Whether the projection is W2 W1 of that rank; otherwise it is one matrix."""
    convolution: bool = True
    """Whether a convolution and silu follow the projection."""
    kernel: int = 3
    """Taps of the convolution."""
    convolution_bias: bool = False
    """Whether the convolution has a bias per channel."""
    gate: bool = False
    """Whether a forget gate is summed as well (PaTH-FoX)."""

    AT_LEAST: ClassVar = {"rank": 1, "kernel": 1}

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.convolution_bias and not self.convolution:
            raise InputError(
                "convolution_bias=True has no effect without the convolution: leave it out."
            )


class PaTH(Encoding):
    """A product of reflections between key and query."""

    title = "PaTH"
    paper = "Yang et al. 2025, arXiv:2505.16381"
    formula = "S = q_i^T prod_{j<t<=i} (I - beta_t w_t w_t^T) k_j / sqrt(e)"
    shows = "final"
    published = tuple(
        {
            **projection,
            "w_conv1d.weight": "taps",
            "w_conv1d.bias": "tap_bias",
            "bt_proj.weight": "strength.weight",
            "bt_proj.bias": "strength.bias",
            "g_proj.weight": "forget.weight",
            "g_proj.bias": "forget.bias",
        }
        for projection in (
            {"w_proj.0.weight": "down.weight", "w_proj.1.weight": "up.weight"},
            {"w_proj.weight": "up.weight"},
        )
    )
    no_bidirectional_form = "its reflections are those between a key and a later query"
    toeplitz = False
    context_dependent = True
    config: PaTHConfig

    def __init__(self, shape: Shape, config: PaTHConfig) -> None:
        super().__init__(shape, config)
        self.adds_bias = config.gate
        low, size = config.low_rank, (shape.heads, shape.head_dim)
        self.down = nn.Linear(shape.width, config.rank, bias=False) if low else None
        self.up = nn.Linear(config.rank if low else shape.width, math.prod(size), bias=False)
        self.taps = self.tap_bias = None
        if config.convolution:
            bound = config.kernel**-0.5
            taps = torch.empty(*size, config.kernel).uniform_(-bound, bound)
            self.taps = nn.Parameter(taps)
            if config.convolution_bias:
                self.tap_bias = nn.Parameter(torch.empty(size).uniform_(-bound, bound))
        self.strength = nn.Linear(shape.width, shape.heads)
        self.forget = nn.Linear(shape.width, shape.heads) if config.gate else None

    def from_published(self, parameter: str, value: Tensor) -> Tensor:
        """Convert the convolution's [h e, 1, taps] and [h e] to [h, e, taps] and [h, e]."""
        size = self.shape.heads, self.shape.head_dim
        if parameter == "taps":
            return value.reshape(*size, -1)
        return value.reshape(size) if parameter == "tap_bias" else value

    def stream(self, read: LayerInput) -> Stream:
        """Return w and beta of every token and the gates' sum; the carry is both their pasts."""
        heads = self.shape.heads
        before, tail = (
            (None, None) if read.carry is None else (read.carry[:, :, 0, :1], read.carry[:, :, 1:])
        )
        raw = self.up(read.x if self.down is None else self.down(read.x))
        raw = raw.unflatten(-1, (heads, -1)).transpose(1, 2)
        if self.taps is None:
            tail = raw[:, :, :0]
        else:
            raw, tail = short_convolution(raw, self.taps, tail, read.starts)
            raw = F.silu(raw if self.tap_bias is None else raw + self.tap_bias[:, None])
        w = raw * (raw.square().sum(-1, keepdim=True) + FLOOR).rsqrt()
        beta = 2 * torch.sigmoid(self.strength(read.x)).transpose(1, 2)
        total = None
        last = w.new_zeros(w.shape[0], heads, 1, w.shape[-1], dtype=torch.float64)
        if self.forget is not None:
            step = F.logsigmoid(self.forget(read.x)).transpose(1, 2)[..., None]
            total = running_sum(step, before, read.starts)
            last = last + total[:, :, -1:]
            total = total[..., 0]
        left = torch.cat([last, tail.double()], dim=2)
        return Stream(total, reflections=Reflections(w, beta), carry=left)

    def bias(self, layer: LayerContext) -> Bias | None:
        """Return the sum of the gates between key and query, divided as the scores are."""
        if self.forget is None:
            return None
        queries, keys = self.need_streams(layer)
        scale = self.shape.head_dim**-0.5
        return Slope(None, scale * queries.sums, scale * keys.sums)
