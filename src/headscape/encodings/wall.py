"""Wall attention: every channel forgets at its own rate (Tilde Research 2026, no paper).

    S_ij = sum_c q_ic k_jc exp(sum_{j<t<=i} g_tc) / sqrt(e),     g_t = clamp(ln sigmoid(x_t W + b))

The gates are per token, head and channel. The soft clamp g_max expm1(g / g_max) keeps a token's log
gate above -g_max. With `scalar_gate`, FoX's sum of ln sigmoid(x_t w + c) is added to S, not divided
by sqrt(e).

The released code (bicycleman15/wall-attention-release) takes the gates as an argument; the
projection and its initial bias of 1 are ours. Its sink is a field of every encoding. Grouped
queries are absent.
"""

from dataclasses import dataclass
from typing import ClassVar

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from headscape.call.bias import Bias, Slope
from headscape.call.transition import Decay
from headscape.encodings.base import Config, Encoding, Shape
from headscape.encodings.context import LayerContext, LayerInput, Stream


@dataclass(frozen=True, kw_only=True)
class WallConfig(Config):
    """Options of Wall attention."""

    g_max: float = 0.86
    """A token's log gate stays above minus this."""
    gate_bias: float = 1.0
    """Initial b; at 1 a token keeps about 3/4 of every channel."""
    scalar_gate: bool = False
    """Whether to add FoX's sum of forget gates, one gate per head."""

    ABOVE: ClassVar = {"g_max": 0}


class Wall(Encoding):
    """A product of gates between key and query in every channel."""

    title = "Wall"
    paper = "Tilde Research 2026, no paper"
    formula = "S = sum_c q_ic k_jc exp(sum_{j<t<=i} g_tc) / sqrt(e)"
    shows = "final"
    no_bidirectional_form = "its gates are those between a key and a later query"
    toeplitz = False
    context_dependent = True
    config: WallConfig

    def __init__(self, shape: Shape, config: WallConfig) -> None:
        super().__init__(shape, config)
        self.adds_bias = config.scalar_gate
        self.gate = nn.Linear(shape.width, shape.heads * shape.head_dim)
        self.forget = nn.Linear(shape.width, shape.heads) if config.scalar_gate else None
        self.initialise()

    def initialise(self) -> None:
        """Set the gates' bias to `gate_bias`."""
        nn.init.constant_(self.gate.bias, self.config.gate_bias)

    def stream(self, read: LayerInput) -> Stream:
        """Return every token's log gates, and the scalar gates' sum in float64."""
        logits = self.gate(read.x).unflatten(-1, (self.shape.heads, -1)).transpose(1, 2)
        total = None
        if self.forget is not None:
            total = F.logsigmoid(self.forget(read.x)).double().cumsum(dim=1).transpose(1, 2)
            total = total if read.carry is None else total + read.carry[..., None]
        return Stream(total, decay=Decay(self.clamped(F.logsigmoid(logits))))

    def clamped(self, gate: Float[Tensor, "*n"]) -> Float[Tensor, "*n"]:
        """Return log gates softly bounded from below by -g_max."""
        return self.config.g_max * torch.expm1(gate / self.config.g_max)

    def bias(self, layer: LayerContext) -> Bias | None:
        """Return the sum of the scalar gates between key and query."""
        if self.forget is None:
            return None
        queries, keys = self.need_streams(layer)
        return Slope(None, queries.sums, keys.sums)
