"""CABLE: a bias summed from the tokens between query and key (arXiv:2503.08067, EMNLP 2025).

    delta_t = act(x_t w + b) >= 0          S_i = - sum_{t <= i} delta_t
    cable      B_ij = g_i (S_i - S_j)      g_i = softplus(x_i u + c)
    cable-nw   B_ij = S_i - S_j
    k-cable    B_ij = -ln((S_i - S_j)^2 + 1), with g_i outside or inside the kernel if weighted

x is the layer's input after its norm; w and u map it to one number per head. Bidirectional:
-|S_i - S_j| takes the place of S_i - S_j. The printed sign of S is positive; only the negative sum
gives a penalty, and the released code has it.

Released conventions: increments are ReLU in the weighted form and softplus without weights; the
first release does not scale q.k (a model's score scale "one"), later ones use 1/sqrt(e).
A token's own increment never counts towards itself, and the first token's never counts at all.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from headscape.bias import Bias, Pairwise, Slope
from headscape.encodings.base import Config, Encoding, Shape, Stream
from headscape.types import Positions

ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {"relu": F.relu, "softplus": F.softplus}


@dataclass(frozen=True, kw_only=True)
class WeightedConfig(Config):
    """CABLE with weights, as released."""

    increments: Literal["relu", "softplus"] = "relu"
    """What makes the increments positive."""


@dataclass(frozen=True, kw_only=True)
class UnweightedConfig(Config):
    """CABLE without weights, as first released."""

    increments: Literal["relu", "softplus"] = "softplus"
    """What makes the increments positive."""


@dataclass(frozen=True, kw_only=True)
class KernelConfig(Config):
    """CABLE under a logarithmic kernel."""

    increments: Literal["relu", "softplus"] = "softplus"
    """What makes the increments positive."""
    weights: Literal["none", "outside", "inside"] = "none"
    """g_i k(S_i - S_j) as released (outside), or k(g_i (S_i - S_j)) as printed (inside)."""


class _Summed(Encoding):
    """What the three forms share: the increments, their sum and the queries' weights."""

    paper = "Veisi et al. 2025, arXiv:2503.08067"
    adds_bias = True
    toeplitz = False
    context_dependent = True
    config: WeightedConfig | UnweightedConfig | KernelConfig

    def __init__(self, shape: Shape, config: Config, *, weighted: bool) -> None:
        super().__init__(shape, config)
        self.increment = nn.Linear(shape.width, shape.heads)
        self.weight = nn.Linear(shape.width, shape.heads) if weighted else None

    def stream(
        self, x: Float[Tensor, "b t d"], carry: Float[Tensor, "b h"] | None = None
    ) -> Stream:
        """S of every token, in float64, and its weight as a query."""
        delta = ACTIVATIONS[self.config.increments](self.increment(x))
        total = -delta.double().cumsum(dim=1).transpose(1, 2)
        if carry is not None:
            total = total + carry[..., None]
        if self.weight is None:
            return Stream(total)
        return Stream(total, F.softplus(self.weight(x)).transpose(1, 2))

    def bias(
        self, positions: Positions, queries: Stream | None = None, keys: Stream | None = None
    ) -> Bias:
        """weight_i (S_i - S_j)."""
        assert queries is not None
        assert keys is not None
        if self.shape.causal:
            return Slope(queries.weight, queries.total, keys.total)
        return _pairwise(queries, keys, lambda gap: -gap.abs())


class CABLE(_Summed):
    """The sum of increments, weighed by its query."""

    formula = "S = A - softplus(x_i u)_h sum_{j<t<=i} relu(x_t w)_h"
    config_type = WeightedConfig

    def __init__(self, shape: Shape, config: WeightedConfig) -> None:
        super().__init__(shape, config, weighted=True)


class CABLENW(_Summed):
    """The sum of the increments between key and query, unweighted."""

    formula = "S = A - sum_{j<t<=i} softplus(x_t w)_h"
    config_type = UnweightedConfig

    def __init__(self, shape: Shape, config: UnweightedConfig) -> None:
        super().__init__(shape, config, weighted=False)


class KCABLE(_Summed):
    """A logarithmic kernel over the sum of increments."""

    formula = "S = A - ln((sum_{j<t<=i} softplus(x_t w)_h)^2 + 1)"
    config_type = KernelConfig
    config: KernelConfig

    def __init__(self, shape: Shape, config: KernelConfig) -> None:
        super().__init__(shape, config, weighted=config.weights != "none")

    def bias(
        self, positions: Positions, queries: Stream | None = None, keys: Stream | None = None
    ) -> Bias:
        """-ln((S_i - S_j)^2 + 1), which is even, so both directions are the same formula."""
        assert queries is not None
        assert keys is not None
        inside = self.config.weights == "inside"
        return _pairwise(queries, keys, lambda gap: -torch.log1p(gap.square()), inside=inside)


def _pairwise(
    queries: Stream, keys: Stream, kernel: Callable[[Tensor], Tensor], *, inside: bool = False
) -> Pairwise:
    def fn(rows: slice, cols: slice) -> Float[Tensor, "b h t s"]:
        gap = queries.total[:, :, rows, None] - keys.total[:, :, None, cols]
        if queries.weight is None:
            return kernel(gap)
        weight = queries.weight[:, :, rows, None]
        return kernel(weight * gap) if inside else weight * kernel(gap)

    return Pairwise(fn)
