"""A small picture of a head: mean weights by cells of queries and keys."""

from typing import Final

import torch
from jaxtyping import Float
from torch import Tensor

SIDE: Final = 32
"""Cells a side."""


class MapCells:
    """Running sums of weights, averaged over the batch."""

    def __init__(self, length: int, heads: int) -> None:
        side = min(SIDE, length)
        self.cell = torch.arange(length) * side // length
        self.sums = torch.zeros(heads, side, side, dtype=torch.float64)
        self.queries = torch.zeros(side, dtype=torch.float64)

    def add(self, rows: slice, weights: Float[Tensor, "b h r s"]) -> None:
        """Add a block of queries."""
        mean = weights.mean(dim=0).double().cpu()
        side = self.sums.shape[-1]
        by_key = mean.new_zeros(*mean.shape[:2], side).index_add_(2, self.cell, mean)
        self.sums.index_add_(1, self.cell[rows], by_key)
        self.queries.index_add_(0, self.cell[rows], torch.ones(mean.shape[1], dtype=torch.float64))

    def mean(self) -> Float[Tensor, "h c c"]:
        """Return the weight that the mean query of a row of cells puts into each cell."""
        return self.sums / self.queries.clamp(min=1)[:, None]
