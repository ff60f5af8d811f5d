"""Sums of final scores by distance: the kernel, the position share, the absolute leak, the decay.

    kappa(d)        mean of S_ij over visible pairs with i - j = d
    position share  1 - sum (S_ij - kappa(i - j))^2 / sum (S_ij - mean S)^2
    absolute leak   sum over bands b and d of n_bd dev_bd dev'_bd / sum (S_ij - mean S)^2

where dev_bd is the mean of S in band b at distance d minus kappa(d), and dev' is the mean of dev
over the other sequences: the product leaves only what sequences have in common.
"""

import torch
from jaxtyping import Float
from torch import Tensor

from headscape.call.definition import Scores
from headscape.measures.row_blocks import BANDS, Rows
from headscape.measures.shear import sheared


class ScoreTotals:
    """Running sums of one layer; index T - 1 of the last axis is distance 0."""

    def __init__(self, rows: Rows, batch: int, heads: int) -> None:
        self.rows, self.zero = rows, rows.length - 1
        size = (batch, heads, 2 * rows.length - 1)
        self.count = torch.zeros(BANDS, size[-1], dtype=torch.float64)
        self.band = torch.zeros(BANDS, *size, dtype=torch.float64)
        self.bias = torch.zeros(size, dtype=torch.float64)
        self.squares = torch.zeros(size[:2], dtype=torch.float64)

    def add(self, band: int, rows: slice, scores: Scores) -> None:
        """Add a block of consecutive queries."""
        seen = scores.visible
        places = slice(rows.start, rows.stop + self.rows.length - 1)
        final = scores.final.masked_fill(~seen, 0.0)
        self.count[band, places] += sheared(seen[0, 0].double()).sum(dim=0)
        self.band[band, :, :, places] += sheared(final).sum(dim=2, dtype=torch.float64)
        bias = scores.bias.masked_fill(~seen, 0.0)
        self.bias[:, :, places] += sheared(bias).sum(dim=2, dtype=torch.float64)
        self.squares += final.double().square().sum(dim=(2, 3))

    def kernel(self) -> Float[Tensor, "b h n"]:
        """Return kappa(d); NaN at distances without a visible pair."""
        return self.band.sum(dim=0) / self.count.sum(dim=0)

    def bias_kernel(self) -> Float[Tensor, "b h n"]:
        """Return the mean positional part S - q.k at each distance."""
        return self.bias / self.count.sum(dim=0)

    def position_share(self) -> Float[Tensor, "b h"]:
        """Return the share of the variance that d explains; 0 for constant scores."""
        return _ratio(self._total() - self._within(), self._total())

    def absolute_leak(self) -> Float[Tensor, "b h"]:
        """Return the share that the query's band adds; NaN for a single sequence."""
        batch = self.bias.shape[0]
        if batch < 2:
            return torch.full_like(self.squares, torch.nan)
        seen = self.count[:, None, None]
        mean = torch.where(seen > 0, self.band / seen.clamp(min=1), 0.0)
        dev = torch.where(seen > 0, mean - self.kernel().nan_to_num(0.0), 0.0)
        others = (dev.sum(dim=1, keepdim=True) - dev) / (batch - 1)
        return _ratio((seen * dev * others).sum(dim=(0, 3)), self._total()).clamp(min=0.0)

    def decay(self) -> Float[Tensor, "b h"]:
        """Return minus the slope of a line through the kernel, each pair counting once."""
        reach = torch.tensor([d for d in self.rows.slashes if d != 0])
        count = self.count.sum(dim=0)[reach + self.zero]
        used = count > 0
        x, n = reach.abs().double()[used], count[used]
        y = self.kernel()[..., reach + self.zero][..., used]
        if len(x) < 2:
            return torch.full_like(self.squares, torch.nan)
        x = x - (n * x).sum() / n.sum()
        return -(n * x * y).sum(dim=-1) / (n * x * x).sum()

    def _total(self) -> Float[Tensor, "b h"]:
        """Squares about the mean."""
        pairs = self.count.sum()
        return (self.squares - self.band.sum(dim=(0, 3)) ** 2 / pairs).clamp(min=0.0)

    def _within(self) -> Float[Tensor, "b h"]:
        """Squares about the kernel."""
        by_distance = self.band.sum(dim=0)
        count = self.count.sum(dim=0).clamp(min=1)
        return (self.squares - (by_distance**2 / count).sum(dim=-1)).clamp(min=0.0)


def _ratio(part: Tensor, whole: Tensor) -> Tensor:
    return torch.where(whole > 0, part / whole.where(whole > 0, torch.ones(())), 0.0)
