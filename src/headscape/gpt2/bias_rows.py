"""The bias row of each new token; what is the same for all of them is computed once.

    ByDistance   Toeplitz: the table, farthest first, so that a row is a view of it
    ByPosition   Perceptron: its two inputs for every distance and every query there is room for
    BySum        Slope: sums relative to a recent token, rounded once for many tokens

`row(count, bias)` is the bias of the last of `count` tokens, written out or, by BySum, as a slope
in the model's dtype; its own bias is handed in where it has one. BySum is not for encodings that
mix scores, which take rows, nor for half precision, where a key near the query but far from the
base would lose too much.
"""

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from headscape.call.bias import Bias, Perceptron, Slope, Toeplitz, covered_distances

FRESH = 64
"""Tokens for which sums stay relative to the same one: few, so that near keys stay near 0."""

GROWTH = 16.0
"""The same for scores: a base from which they have changed by more is replaced sooner."""


class Nothing:
    """Where nothing can be kept: no bias, or one that is new for every token."""

    def row(self, count: int, bias: Bias | None) -> None:  # noqa: ARG002
        """No row."""
        return


class ByDistance:
    """A view of one table."""

    def __init__(self, bias: Toeplitz, dtype: torch.dtype) -> None:
        self.table = bias.table[None, :, None, bias.zero :].flip(-1).to(dtype).contiguous()

    def row(self, count: int, bias: Bias | None) -> Float[Tensor, "1 h 1 s"]:  # noqa: ARG002
        """Distances count - 1 to 0."""
        return self.table.narrow(3, self.table.shape[3] - count, count)


class ByPosition:
    """Two small matrix products."""

    def __init__(self, bias: Perceptron, dtype: torch.dtype) -> None:
        self.near = bias.near[None, bias.zero :].flip(-1)
        self.far = bias.far[0]
        self.inner = bias.in_bias[:, None], bias.in_weight[:, None]
        self.outer = bias.out_bias[:, None], bias.out_weight
        self.leak, self.dtype = bias.leak, dtype

    def row(self, count: int, bias: Bias | None) -> Float[Tensor, "1 h 1 s"]:  # noqa: ARG002
        """Distances count - 1 to 0, as the last query sees them."""
        u = self.near.narrow(1, self.near.shape[1] - count, count) / self.far[count - 1]
        hidden = F.leaky_relu(torch.addmm(self.inner[0], self.inner[1], u), self.leak, inplace=True)
        return torch.addmm(self.outer[0], self.outer[1], hidden).to(self.dtype)[None, :, None]


class BySum:
    """weight_i ((sum_i - base) - (sum_j - base)), where the base is the sum at a recent token."""

    def __init__(self, capacity: int, dtype: torch.dtype) -> None:
        self.capacity, self.dtype = capacity, dtype
        self.first, self.last = 0, -1
        self.base = self.relative = torch.empty(0)

    def row(self, count: int, bias: Bias | None) -> Slope:
        """The same slope, its sums relative to the base."""
        assert isinstance(bias, Slope)
        if self.last != count - 1 or count > self.first + FRESH or self._grown(bias) > GROWTH:
            self.base, self.first = bias.col[..., -1:].clone(), count
            b, h = self.base.shape[:2]
            self.relative = self.base.new_empty(b, h, self.capacity, dtype=self.dtype)
            self.relative[:, :, :count] = bias.col - self.base
        own = self.relative.narrow(2, count - 1, 1)
        torch.sub(bias.row, self.base, out=own)
        self.last = count
        return Slope(bias.weight, own, self.relative.narrow(2, 0, count))

    def _grown(self, bias: Slope) -> float:
        """Return by how much scores have changed since the base, which is what rounding is of."""
        since = bias.row - self.base
        return float((since if bias.weight is None else since * bias.weight).abs().max())


Rows = ByDistance | ByPosition | BySum | Nothing


def keep(bias: Bias | None, capacity: int, dtype: torch.dtype, *, mixes: bool) -> Rows:
    """What can be kept of a bias that was made for `capacity` consecutive positions.

    Nothing of a table that is shorter: each token then asks for its own bias, which is checked.
    """
    covered = None if bias is None else covered_distances(bias)
    if covered is not None and covered[1] < capacity - 1:
        return Nothing()
    if isinstance(bias, Toeplitz):
        return ByDistance(bias, dtype)
    if isinstance(bias, Perceptron):
        return ByPosition(bias, dtype)
    if isinstance(bias, Slope) and not mixes and torch.finfo(dtype).bits >= 32:
        return BySum(capacity, dtype)
    return Nothing()
