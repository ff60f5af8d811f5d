"""What position does in the heads of a trained layer, and how biases are fitted to it.

training/kernel_start.py measures it; `Encoding.fit` takes it. What a softmax gives no weight does
not matter, so everything is weighted by attention: a table takes means (`means`), and a curve with
a factor the one with which q.k looks as far, on average, as the head does (`matched`).
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

BISECTIONS = 20
"""Of a fit; 20 find a slope to a few parts in a million."""


@dataclass(frozen=True)
class MeasuredKernel:
    """What position does in the heads of a trained causal layer, for a fit by distance."""

    values: Float[Tensor, "h n"]
    """What position adds to a score, its mean at distance 0, 1 ... n - 1 weighted by attention."""
    share: Float[Tensor, "h n"]
    """The share of a head's attention at each distance."""
    rows: Float[Tensor, "m d"]
    """What the layer read: its input for some tokens."""
    content: Float[Tensor, "b h r n"]
    """The scaled q.k of some queries and all keys; minus infinity where a key is hidden."""
    distance: Int[Tensor, "r n"]
    """From key to query; 0 where a key is hidden."""

    def slope(self) -> Float[Tensor, " h"]:
        """Return the slope with which a head looks as far, on average, as it does."""
        at = torch.arange(self.values.shape[1], device=self.values.device)
        return self.matched(at.double())[0]

    def matched(
        self, shape: Float[Tensor, " n"]
    ) -> tuple[Float[Tensor, " h"], Float[Tensor, " h"]]:
        """Return the f for which q.k - f shape gives the nearest attention, and its divergence.

        That is where the mean of the shape over attention is the old one, found by bisection; the
        divergence is KL(old, new) up to a constant. f lowers the last distance by at least 1, so
        that parameters have a gradient, and the second by at most 50.
        """
        wanted = (self.share * shape).sum(dim=1)
        by_pair = shape.to(self.content.dtype)[self.distance]
        low = (1 / shape[-1]).log().expand_as(wanted)
        high = torch.maximum((50 / shape[1]).log().expand_as(wanted), low)
        for _ in range(BISECTIONS):
            middle = (low + high) / 2
            scores = self.content - middle.exp().to(self.content.dtype)[:, None, None] * by_pair
            mean = (scores.softmax(dim=-1) * by_pair).sum(dim=-1).mean(dim=(0, 2)).double()
            low, high = (
                torch.where(mean > wanted, middle, low),
                torch.where(mean > wanted, high, middle),
            )
        f = ((low + high) / 2).exp()
        scores = self.content - f.to(self.content.dtype)[:, None, None] * by_pair
        return f, scores.logsumexp(dim=-1).mean(dim=(0, 2)).double() + f * wanted

    def means(self, row: Int[Tensor, " n"], rows: int) -> Float[Tensor, "{rows} h"]:
        """Return the table with a row per distance that is nearest to the values.

        It minimises sum_d share(d) (table[row(d)] - values(d))^2. A row without a distance repeats
        the one before it.
        """
        mass = self.share.new_zeros(rows, len(self.share)).index_add_(0, row, self.share.T)
        total = torch.zeros_like(mass).index_add_(0, row, (self.share * self.values).T)
        filled = torch.arange(rows, device=row.device)[:, None].where(mass > 0, 0)
        return (total / mass.clamp(min=torch.finfo(mass.dtype).tiny)).gather(
            0, filled.cummax(dim=0).values
        )

    def offsets(
        self,
        read: Float[Tensor, "m h"],
        activation: Callable[[Tensor], Tensor],
        wanted: Float[Tensor, " h"],
    ) -> Float[Tensor, " h"]:
        """Return the b for which the mean of activation(read + b) is as wanted, by bisection.

        The activation increases from 0.
        """
        read = read.double()
        low, high = -wanted.new_full(wanted.shape, 100), wanted + read.abs().amax(dim=0)
        for _ in range(3 * BISECTIONS):
            middle = (low + high) / 2
            above = activation(read + middle).mean(dim=0) > wanted
            low, high = torch.where(above, low, middle), torch.where(above, middle, high)
        return high
