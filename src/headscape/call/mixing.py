"""How whole rows of scores are mixed, as data: the counterpart of bias.py.

    Product         S_ij = A_ij table[i - j] + B_ij                       Kerple's weight form
    PairPerceptron  S_.ij = A + B + mlp([A_.ij ; B_.ij])                  DAPE
    KeyConvolution  S = A + B + conv2(leaky(conv1([A ; B])))              DAPEv2
    CountedTable    S_ij = A_ij + q_i . e[sum of gates from j to i] + B   CoPE

A is the scaled R(q).R(k) of all heads, B their bias, absent where there is none. The definition and
the kernels match on these classes, never on an encoding. A class of your own needs `pointwise` and
`final`; the paths that compute rows of scores serve it, the fused kernels refuse it. What a block
of scores needs besides itself is said by `by_head` (whether heads are independent) and `keys`; a
class without them gets whole rows of all heads.
"""

from dataclasses import dataclass
from typing import ClassVar, Literal, Protocol, runtime_checkable

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor, arange, cat

from headscape.call.bias import Toeplitz, dense
from headscape.call.positions import Positions

LEAK = 0.01
"""Slope of LeakyReLU below 0, in DAPE and DAPEv2."""


@dataclass(frozen=True)
class Rows:
    """Some rows of scores before they are mixed."""

    scores: Float[Tensor, "b h t s"]
    """The scaled R(q).R(k)."""
    bias: Float[Tensor, "#b h t s"] | None
    visible: Bool[Tensor, "#b 1 t s"]
    queries: Float[Tensor, "b h t e"]
    positions: Positions
    """Those of these queries and keys."""

    @property
    def added(self) -> Float[Tensor, "b h t s"]:
        """Scores plus bias."""
        return self.scores if self.bias is None else self.scores + self.bias

    @property
    def channels(self) -> Float[Tensor, "b c t s"]:
        """The scores of all heads and, below them, their biases."""
        if self.bias is None:
            return self.scores
        return cat([self.scores, self.bias.expand_as(self.scores)], dim=1)


@runtime_checkable
class Mixing(Protocol):
    """What the scores before the mask are a function of, besides scores and bias."""

    @property
    def pointwise(self) -> bool:
        """Whether the score of a pair depends on no other key."""
        ...

    def final(self, rows: Rows) -> Float[Tensor, "b h t s"]:
        """Return the scores before the mask."""
        ...


@dataclass(frozen=True)
class Product:
    """Scores times a table by distance, plus the bias."""

    table: Toeplitz
    pointwise: ClassVar[bool] = True
    by_head: ClassVar[bool] = True

    def final(self, rows: Rows) -> Float[Tensor, "b h t s"]:
        """Return A_ij table[i - j] + B_ij."""
        product = rows.scores * dense(self.table, rows.positions).to(rows.scores.dtype)
        return product if rows.bias is None else product + rows.bias


@dataclass(frozen=True)
class PairPerceptron:
    """A perceptron over all heads, for each pair of tokens."""

    in_weight: Float[Tensor, "m c"]
    in_bias: Float[Tensor, " m"]
    out_weight: Float[Tensor, "h m"]
    out_bias: Float[Tensor, " h"]
    adds_bias: bool = True
    """Whether B is added to the scores as well; otherwise only the perceptron reads it."""
    pointwise: ClassVar[bool] = True

    def final(self, rows: Rows) -> Float[Tensor, "b h t s"]:
        """Return scores plus bias plus the perceptron's output."""
        inner = F.linear(rows.channels.movedim(1, -1), self.in_weight, self.in_bias)
        outer = F.linear(F.leaky_relu(inner, LEAK), self.out_weight, self.out_bias)
        mixed = rows.scores + outer.movedim(-1, 1)
        return mixed + rows.bias if self.adds_bias and rows.bias is not None else mixed


@dataclass(frozen=True)
class KeyConvolution:
    """Two convolutions along the keys, over all heads."""

    in_weight: Float[Tensor, "m c k"]
    in_bias: Float[Tensor, " m"]
    out_weight: Float[Tensor, "h m k"]
    out_bias: Float[Tensor, " h"]
    boundary: Literal["masked", "released"] = "masked"
    """The hidden maps beyond the last key; see the top of encodings/dapev2.py."""
    pointwise: ClassVar[bool] = False

    def keys(self, asked: slice, seen: slice) -> slice:  # noqa: ARG002
        """Return the keys that scores of the keys asked for are a function of; it may reach out."""
        reach = 2 * (self.in_weight.shape[2] // 2)
        return slice(asked.start - reach, asked.stop + reach)

    def final(self, rows: Rows) -> Float[Tensor, "b h t s"]:
        """Return scores plus bias plus the convolution's output."""
        half = self.in_weight.shape[2] // 2
        channels = rows.channels.masked_fill(~rows.visible, 0.0)
        padded = F.pad(channels, (0, half if self.boundary == "masked" else 0))
        hidden = F.leaky_relu(_convolve(padded, self.in_weight, self.in_bias), LEAK)
        first = rows.visible.to(arange(0).dtype).argmax(dim=-1, keepdim=True)
        column = arange(hidden.shape[-1], device=hidden.device)
        hidden = hidden.masked_fill(column < first, 0.0)
        mixed = _convolve(hidden, self.out_weight, self.out_bias)[..., : rows.scores.shape[-1]]
        return rows.added + mixed


def _convolve(
    x: Float[Tensor, "b c t s"], weight: Float[Tensor, "m c k"], bias: Float[Tensor, " m"]
) -> Float[Tensor, "b m t s"]:
    return F.conv2d(x, weight[:, :, None], bias, padding=(0, weight.shape[2] // 2))


@dataclass(frozen=True)
class CountedTable:
    """A vector per counted position, multiplied with the query."""

    table: Float[Tensor, "e n"]
    divisor: float = 1.0
    """What the product of query and vector is divided by."""
    pointwise: ClassVar[bool] = False
    by_head: ClassVar[bool] = True

    def keys(self, asked: slice, seen: slice) -> slice:
        """Return the keys from those asked for to the last that the queries see."""
        return slice(asked.start, max(asked.stop, seen.stop))

    def final(self, rows: Rows) -> Float[Tensor, "b h t s"]:
        """Return scores plus z_i at the counted position, plus the bias."""
        scores = rows.scores
        # At least float32: a bfloat16 count stops growing at 256.
        work = torch.promote_types(scores.dtype, torch.float32)
        gates = scores.to(work).sigmoid() * rows.visible
        count = gates.flip(-1).cumsum(dim=-1).flip(-1).clamp(max=self.table.shape[1] - 1)
        z = rows.queries.to(work) @ self.table.to(work)
        # A count that is not a number has no index; the last line makes its score NaN.
        index = count.nan_to_num(nan=0.0)
        below = index.floor()
        lower = z.gather(-1, below.long())
        upper = z.gather(-1, index.ceil().long())
        term = (lower + (count - below) * (upper - lower)) / self.divisor
        mixed = scores + term.to(scores.dtype)
        return mixed if rows.bias is None else mixed + rows.bias
