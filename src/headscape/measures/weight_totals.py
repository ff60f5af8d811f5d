"""Sums of attention weights: slash, sink, reach, entropy and its growth."""

import torch
from jaxtyping import Float
from torch import Tensor

from headscape.call.definition import Scores
from headscape.measures.row_blocks import Rows
from headscape.measures.shear import sheared

SHARES = (0.5, 0.9)
REST = 1e-6
"""Weight outside the first key below which a query has no reach without the sink."""


class WeightTotals:
    """Running sums of one layer over late queries; over all queries for the entropy's growth."""

    def __init__(self, rows: Rows, batch: int, heads: int) -> None:
        self.rows = rows
        self.queries = 0
        every = (batch, heads)
        self.by_distance = torch.zeros(*every, 2 * rows.length - 1, dtype=torch.float64)
        self.first, self.entropy = (torch.zeros(every, dtype=torch.float64) for _ in range(2))
        self.reach = torch.zeros(2, len(SHARES), *every, dtype=torch.float64)
        """Sums of reach with the sink, and without it."""
        self.reached = torch.zeros(2, *every, dtype=torch.float64)
        self.line = torch.zeros(5, *every, dtype=torch.float64)
        """n, x, xx, y, xy of the entropy y against x = ln(visible keys)."""

    def add(self, rows: slice, scores: Scores) -> None:
        """Add a block of consecutive queries, all late or none."""
        weights = scores.weights.double()
        entropy = torch.special.entr(weights).sum(dim=-1)
        self._add_to_line(scores, entropy)
        if rows.start not in self.rows.late:
            return
        self.queries += rows.stop - rows.start
        places = slice(rows.start, rows.stop + self.rows.length - 1)
        aligned = sheared(weights)
        self.by_distance[:, :, places] += aligned.sum(dim=2)
        self.first += (1 - weights.sum(dim=-1) + weights[..., 0]).sum(dim=-1)
        self.entropy += entropy.sum(dim=-1)
        self._add_reach(0, rows, aligned)
        rest = weights.clone()
        rest[..., 0] = 0.0
        self._add_reach(1, rows, sheared(rest))

    def slash(self) -> Float[Tensor, "b h n"]:
        """Return the mean weight at the distances of `Rows.slashes`."""
        zero, chosen = self.rows.length - 1, self.rows.slashes
        return self.by_distance[..., zero + chosen.start : zero + chosen.stop] / self.queries

    def measures(self) -> dict[str, Float[Tensor, "b h"]]:
        """Return everything but the slash by name."""
        found = {"sink_score": self.first / self.queries, "entropy": self.entropy / self.queries}
        for without, suffix in enumerate(("", "_no_sink")):
            for at, share in enumerate(SHARES):
                reach = self.reach[without, at] / self.reached[without]
                found[f"reach_{share * 100:.0f}{suffix}"] = reach
        n, x, xx, y, xy = self.line
        spread = n * xx - x * x
        slope = torch.where(spread > 1e-9, (n * xy - x * y) / spread.clamp(min=1e-9), torch.nan)
        return {**found, "entropy_growth": slope}

    def _add_to_line(self, scores: Scores, entropy: Tensor) -> None:
        keys = scores.visible.sum(dim=-1).double().expand_as(entropy)
        counts = (keys >= 2).double()
        x = keys.clamp(min=1).log() * counts
        y = entropy * counts
        self.line += torch.stack([part.sum(dim=-1) for part in (counts, x, x * x, y, x * y)])

    def _add_reach(self, without: int, rows: slice, aligned: Tensor) -> None:
        """Add the distances that contain each share, from weights aligned by distance."""
        zero = self.rows.length - 1 - rows.start
        near = torch.zeros(*aligned.shape[:-1], self.rows.length, dtype=torch.float64)
        near[..., : aligned.shape[-1] - zero] += aligned[..., zero:]
        near[..., 1 : zero + 1] += aligned[..., :zero].flip(-1)
        within = near.cumsum(dim=-1)
        whole = within[..., -1:]
        counted = whole[..., 0] > REST
        self.reached[without] += counted.sum(dim=-1)
        for at, share in enumerate(SHARES):
            found = (within < share * whole).sum(dim=-1)
            self.reach[without, at] += (found * counted).sum(dim=-1)
