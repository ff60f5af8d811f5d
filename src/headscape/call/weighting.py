"""Weights that are not a softmax, as data for the kernels: stick-breaking, and given ones.

    Sticks  w_ij = sigmoid(S_ij) prod_{j < t} (1 - sigmoid(S_it)),  rest_i = 1 - sum_j w_ij
    Given   w_ij = exp(S_ij)

where j and t run over the keys that take part, in order of position. `weights` is the dense
definition. Products are computed as sums of log(1 - sigmoid), at least in float32.
"""

from dataclasses import dataclass
from typing import Final, Protocol, runtime_checkable

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor


@runtime_checkable
class Weighting(Protocol):
    """How attention weights follow from scores, where that is not the softmax."""

    def weights(
        self, scores: Float[Tensor, "b h t s"], visible: Bool[Tensor, "#b 1 t s"]
    ) -> Float[Tensor, "b h t s"]:
        """Return the weights; 0 where hidden, and in a row that sees no key."""
        ...


@dataclass(frozen=True)
class Sticks:
    """From the last key to the first, each takes a part of what later keys have left."""

    takes_own: bool
    """The query's own key, the last that it sees, takes part."""
    keeps_rest: bool
    """What is left goes to the query's own value."""

    def weights(
        self, scores: Float[Tensor, "b h t s"], visible: Bool[Tensor, "#b 1 t s"]
    ) -> Float[Tensor, "b h t s"]:
        """Return the weights; 0 where hidden, and in a row that sees no key."""
        work = torch.promote_types(scores.dtype, torch.float32)
        a = scores.to(work)
        own = visible & (visible.flip(-1).cumsum(dim=-1).flip(-1) == 1)
        taking = visible if self.takes_own else visible & ~own
        left = F.logsigmoid(-a).masked_fill(~taking, 0.0)
        # What the nearer keys leave: the sum over all later columns that take part.
        nearer = left.flip(-1).cumsum(dim=-1).flip(-1) - left
        weights = (F.logsigmoid(a) + nearer).exp().masked_fill(~taking, 0.0)
        if self.keeps_rest:
            rest = left.sum(dim=-1, keepdim=True).exp()
            weights = weights + rest * own
        return weights.to(scores.dtype)


LOG_OF_ZERO: Final = -1000.0
"""Stands for the logarithm of 0: its exponential is 0 in float64."""


@dataclass(frozen=True)
class Given:
    """Weights known without what made them: the scores are their logarithms."""

    def weights(
        self, scores: Float[Tensor, "b h t s"], visible: Bool[Tensor, "#b 1 t s"]
    ) -> Float[Tensor, "b h t s"]:
        """Return the weights; 0 where hidden."""
        return scores.exp().masked_fill(~visible, 0.0)
