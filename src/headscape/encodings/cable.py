"""CABLE: a bias summed from the tokens between query and key (arXiv:2503.08067, EMNLP 2025).

    delta_t = act(x_t w + b) >= 0          S_i = - sum_{t <= i} delta_t
    cable      B_ij = g_i (S_i - S_j)      g_i = softplus(x_i u + c)
    cable-nw   B_ij = S_i - S_j
    k-cable    B_ij = -ln((S_i - S_j)^2 + 1), with g_i outside or inside the kernel if weighted

x is the layer's input after its norm; w and u map it to one number per head. Bidirectional:
-|S_i - S_j| replaces S_i - S_j. The paper prints S with a plus sign; only the negative sum is a
penalty, and the released code uses the minus.

Released conventions: increments are ReLU in the weighted form and softplus without weights; the
first release does not scale q.k (a model's score scale "one"), later ones use 1/sqrt(e).
The bias of a token on itself is 0, so the first token's increment has no effect.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from headscape.call.bias import Bias, GapKernel, Slope
from headscape.encodings.base import Config, Encoding, Shape
from headscape.encodings.context import LayerContext, LayerInput, Stream
from headscape.encodings.measured_kernel import MeasuredKernel

ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {"relu": F.relu, "softplus": F.softplus}


@dataclass(frozen=True, kw_only=True)
class WeightedConfig(Config):
    """Options of weighted CABLE."""

    increments: Literal["relu", "softplus"] = "relu"
    """The activation that makes the increments non-negative."""


@dataclass(frozen=True, kw_only=True)
class UnweightedConfig(Config):
    """Options of unweighted CABLE."""

    increments: Literal["relu", "softplus"] = "softplus"
    """The activation that makes the increments non-negative."""


@dataclass(frozen=True, kw_only=True)
class KernelConfig(Config):
    """Options of K-CABLE."""

    increments: Literal["relu", "softplus"] = "softplus"
    """The activation that makes the increments non-negative."""
    weights: Literal["none", "outside", "inside"] = "none"
    """outside: g_i k(S_i - S_j), as released; inside: k(g_i (S_i - S_j)), as printed."""


class _RunningSum(Encoding):
    """What the three forms share: the increments, their running sum and the query weights."""

    paper = "Veisi et al. 2025, arXiv:2503.08067"
    published = (
        {
            "cable_layer.weight": "increment.weight",
            "cable_layer.bias": "increment.bias",
            "cable_layer_scale.weight": "weight.weight",
            "cable_layer_scale.bias": "weight.bias",
        },
        {"h_attn.weight": "increment.weight", "h_attn.bias": "increment.bias"},
    )
    toeplitz = False
    context_dependent = True
    config: WeightedConfig | UnweightedConfig | KernelConfig

    def __init__(self, shape: Shape, config: Config, *, weighted: bool) -> None:
        super().__init__(shape, config)
        self.increment = nn.Linear(shape.width, shape.heads)
        self.weight = nn.Linear(shape.width, shape.heads) if weighted else None

    @torch.no_grad()
    def fit(self, kernel: MeasuredKernel) -> bool:
        """Set b so that the mean of g_i times the mean of delta_t is the kernel's slope."""
        slope, read = kernel.slope(), F.linear(kernel.rows, self.increment.weight)
        if self.weight is not None:
            slope = slope / F.softplus(self.weight(kernel.rows)).mean(dim=0)
        act = ACTIVATIONS[self.config.increments]
        self.increment.bias.copy_(kernel.offsets(read, act, slope))
        return True

    def stream(self, read: LayerInput) -> Stream:
        """Return S of every token, in float64, and its weight as a query."""
        delta = ACTIVATIONS[self.config.increments](self.increment(read.x))
        total = -delta.double().cumsum(dim=1).transpose(1, 2)
        if read.carry is not None:
            total = total + read.carry[..., None]
        if self.weight is None:
            return Stream(total)
        return Stream(total, F.softplus(self.weight(read.x)).transpose(1, 2))

    def bias(self, layer: LayerContext) -> Bias:
        """Return weight_i (S_i - S_j)."""
        queries, keys = self.need_streams(layer)
        if self.shape.causal:
            return Slope(queries.weight, queries.sums, keys.sums)
        return GapKernel(queries.weight, queries.sums, keys.sums, "distance")


class CABLE(_RunningSum):
    """The sum of increments between key and query, times a weight of the query."""

    title = "CABLE"
    formula = "S = A - softplus(x_i u)_h sum_{j<t<=i} relu(x_t w)_h"
    config: WeightedConfig

    def __init__(self, shape: Shape, config: WeightedConfig) -> None:
        super().__init__(shape, config, weighted=True)


class CABLENW(_RunningSum):
    """The sum of increments between key and query, unweighted."""

    title = "CABLE_NW"
    formula = "S = A - sum_{j<t<=i} softplus(x_t w)_h"
    config: UnweightedConfig

    def __init__(self, shape: Shape, config: UnweightedConfig) -> None:
        super().__init__(shape, config, weighted=False)


class KCABLE(_RunningSum):
    """A logarithmic kernel of the sum of increments."""

    title = "K-CABLE"
    formula = "S = A - ln((sum_{j<t<=i} softplus(x_t w)_h)^2 + 1)"
    config: KernelConfig

    def __init__(self, shape: Shape, config: KernelConfig) -> None:
        super().__init__(shape, config, weighted=config.weights != "none")

    def fit(self, kernel: MeasuredKernel) -> bool:
        """Return False: its logarithm has no slope to match."""
        return False

    def bias(self, layer: LayerContext) -> Bias:
        """Return -ln((S_i - S_j)^2 + 1); it is even, so both directions use this formula."""
        queries, keys = self.need_streams(layer)
        inside = self.config.weights == "inside"
        return GapKernel(queries.weight, queries.sums, keys.sums, "log", inside)
