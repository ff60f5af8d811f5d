"""T5's relative bias, and the clipped table that the CABLE paper calls T5-bias.

T5 (Raffel et al. 2020, arXiv:1910.10683): one learned scalar per head and distance bucket,

    S_ij = A_ij + r_h[bucket(i - j)]

Half of the buckets are one distance each, the rest grow by a constant ratio up to max_distance;
larger distances share the last bucket. Bidirectional: half of all buckets are for keys to the
right. T5 itself does not scale q.k (a model's score scale "one"); gpt-neox and
x-transformers multiply the bias by sqrt(e) (multiplier="sqrt_head_dim"), LayoutLMv3 divides it by
that (multiplier="inverse_sqrt_head_dim").

T5-clipped (released CABLE code, arXiv:2503.08067): no buckets, S_ij = A_ij + r_h[min(i - j, K)].
The released table has a row for each of -K..K; a causal model uses only 0..K. The released code
scales q.k by 1/sqrt(d) (a model's score scale "width").
"""

import math
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from jaxtyping import Int
from torch import Tensor, nn

from headscape.call.bias import Toeplitz
from headscape.encodings.base import Config, Encoding, Shape
from headscape.encodings.context import LayerContext
from headscape.encodings.measured_kernel import MeasuredKernel
from headscape.errors import InputError


def bucket(
    distance: Int[Tensor, " n"], *, buckets: int, max_distance: int, causal: bool
) -> Int[Tensor, " n"]:
    """Return T5's bucket of each distance i - j.

    It uses log(n/E), because log n - log E puts some distances into the wrong bucket.
    """
    if causal:
        far, start = distance.clamp(min=0), torch.zeros_like(distance)
    else:
        buckets //= 2
        far, start = distance.abs(), (distance < 0) * buckets
    exact = buckets // 2
    ratio = (far.clamp(min=1).float() / exact).log() / torch.tensor(max_distance / exact).log()
    coarse = (exact + (ratio * (buckets - exact)).long()).clamp(max=buckets - 1)
    return start + torch.where(far < exact, far, coarse)


@dataclass(frozen=True, kw_only=True)
class BucketConfig(Config):
    """Options of a table by buckets."""

    buckets: int = 32
    """Rows of the table."""
    max_distance: int = 128
    """Distances from here on share the last bucket."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.buckets < 4 or self.buckets % 4:
            raise InputError(f"buckets must be a multiple of 4, got {self.buckets}.")
        if self.max_distance <= self.buckets // 2:
            raise InputError(
                f"max_distance must be above buckets/2 = {self.buckets // 2}, "
                f"got {self.max_distance}."
            )


@dataclass(frozen=True, kw_only=True)
class T5Config(BucketConfig):
    """Options of T5's bias."""

    multiplier: Literal["one", "sqrt_head_dim", "inverse_sqrt_head_dim"] = "one"
    """Multiplier of the table's values."""


class T5(Encoding):
    """One scalar per head and bucket of distances."""

    title = "T5 buckets"
    paper = "Raffel et al. 2020, arXiv:1910.10683"
    formula = "S = A + r_h[bucket(i-j)]"
    published = ({"relative_attention_bias.weight": "table.weight"}, {"weight": "table.weight"})
    config: T5Config

    def __init__(self, shape: Shape, config: T5Config) -> None:
        super().__init__(shape, config)
        self.table = nn.Embedding(config.buckets, shape.heads)

    def bias(self, layer: LayerContext) -> Toeplitz:
        """Return r_h[bucket] by distance."""
        distance, zero = self.distances(layer.positions, self.table.weight.device)
        return Toeplitz(self.table.weight[self._rows(distance)].T * self._multiplier(), zero)

    @torch.no_grad()
    def fit(self, kernel: MeasuredKernel) -> bool:
        """Set every bucket to the kernel's mean over its distances."""
        at = torch.arange(kernel.values.shape[1], device=kernel.values.device)
        means = kernel.means(self._rows(at), self.config.buckets)
        self.table.weight.copy_(means / self._multiplier())
        return True

    def _rows(self, distance: Int[Tensor, " n"]) -> Int[Tensor, " n"]:
        """Return the row of the table at each distance."""
        return bucket(
            distance,
            buckets=self.config.buckets,
            max_distance=self.config.max_distance,
            causal=self.shape.causal,
        )

    def _multiplier(self) -> float:
        """Return what multiplies the table's values."""
        powers = {"one": 0.0, "sqrt_head_dim": 0.5, "inverse_sqrt_head_dim": -0.5}
        return math.pow(self.shape.head_dim, powers[self.config.multiplier])


@dataclass(frozen=True, kw_only=True)
class T5ClippedConfig(Config):
    """Options of the clipped table."""

    max_distance: int = 256
    """K; larger distances share its value."""

    AT_LEAST: ClassVar = {"max_distance": 1}


class T5Clipped(Encoding):
    """One scalar per head and distance, flat beyond K."""

    title = "T5-bias"
    slug = "t5-bias"
    paper = "Veisi et al. 2025, arXiv:2503.08067 (its T5-bias)"
    formula = "S = A + r_h[min(i-j, K)]"
    published = ({"relative_attention_bias.weight": "table.weight"}, {"weight": "table.weight"})
    config: T5ClippedConfig

    def __init__(self, shape: Shape, config: T5ClippedConfig) -> None:
        super().__init__(shape, config)
        self.table = nn.Embedding(2 * config.max_distance + 1, shape.heads)

    def bias(self, layer: LayerContext) -> Toeplitz:
        """Return r_h[clip(i - j)] by distance."""
        distance, zero = self.distances(layer.positions, self.table.weight.device)
        reach = self.config.max_distance
        return Toeplitz(self.table.weight[distance.clamp(-reach, reach) + reach].T, zero)

    @torch.no_grad()
    def fit(self, kernel: MeasuredKernel) -> bool:
        """Set every distance to the kernel's value."""
        reach = self.config.max_distance
        at = torch.arange(kernel.values.shape[1], device=kernel.values.device)
        self.table.weight.copy_(kernel.means(at.clamp(max=reach) + reach, 2 * reach + 1))
        return True
