"""What the measures of a layer are computed from: sums over its pairs of queries and keys.

Scores S and weights w come a block of queries at a time, from the attention inputs of a model's
layer (`sums_of_call`) or from the maps of a capture (`sums_of_maps`), so whole maps are never in
memory. A measure (definitions.py) reads what is added up here:

    scores.kernel()       kappa(d), the mean of S_ij over visible pairs with i - j = d
    scores.within()       sum (S_ij - kappa(i - j))^2
    scores.between()      sum (kappa(i - j) - mean S)^2
    weights.at_distance(d), weights.first, weights.entropy ...     of late queries

Queries are split into eight bands. Late queries are bands 4 to 7 of a causal model and bands 2 to 5
of a bidirectional one, so that slashes up to half the length (a quarter on either side) are
averaged over the same queries and never meet the first key.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import torch
from jaxtyping import Bool, Float, Shaped
from torch import Tensor

from headscape.call.definition import AttentionCall, scores
from headscape.captures.pooling import CellReducer, cell_edges
from headscape.errors import InputError

BANDS: Final = 8
ENTRIES: Final = 1 << 21
"""Scores in memory at once."""
CELLS: Final = 32
"""Cells a side of a head's small picture."""
SHARES: Final = (0.5, 0.9)
REST: Final = 1e-6
"""Weight outside the first key below which a query has no reach without the sink."""

Progress = Callable[[int], None]
"""Called with the number of queries just done."""
MapBlock = tuple[slice, Float[np.ndarray, "h r c"], Float[np.ndarray, "h r c"] | None]
"""Queries, their scores from key 0 on (NaN where a key is invisible), and their weights."""


@dataclass(frozen=True)
class QueryRows:
    """The queries of a sequence: bands, late queries, distances of slashes."""

    length: int
    causal: bool
    sample: int | None = None
    """Late queries to look at, evenly spaced; None looks at all queries."""

    @property
    def edges(self) -> list[int]:
        """The first query of each band, and the length."""
        return [self.length * band // BANDS for band in range(BANDS + 1)]

    @property
    def late(self) -> range:
        """The late queries, all of them."""
        edges = self.edges
        return range(edges[4], edges[8]) if self.causal else range(edges[2], edges[6])

    @property
    def slashes(self) -> range:
        """The distances of a slash."""
        reach = self.late.start
        return range(reach) if self.causal else range(1 - reach, reach)

    def blocks(self, maps: int) -> Iterator[tuple[int, slice]]:
        """Yield bands and consecutive queries within them; `maps` is the number of heads."""
        if self.sample is not None:
            count = min(self.sample, len(self.late))
            for number in range(count):
                at = self.late[number * len(self.late) // count]
                yield from self.in_bands(slice(at, at + 1))
            return
        size = max(1, ENTRIES // (maps * self.length))
        for band, rows in self.in_bands(slice(0, self.length)):
            for start in range(rows.start, rows.stop, size):
                yield band, slice(start, min(rows.stop, start + size))

    def in_bands(self, rows: slice) -> Iterator[tuple[int, slice]]:
        """Yield consecutive queries cut at the edges of bands."""
        edges = self.edges
        for band in range(BANDS):
            start, stop = max(rows.start, edges[band]), min(rows.stop, edges[band + 1])
            if start < stop:
                yield band, slice(start, stop)


class ScoreSums:
    """Sums of scores by distance; index T - 1 of the last axis is distance 0."""

    def __init__(
        self, rows: QueryRows, batch: int, heads: int, device: torch.device | str = "cpu"
    ) -> None:
        self.rows, self.zero = rows, rows.length - 1
        size = (batch, heads, 2 * rows.length - 1)
        options: dict[str, Any] = {"dtype": torch.float64, "device": device}
        self.count = torch.zeros(BANDS, size[-1], **options)
        """Visible pairs by band and distance."""
        self.band = torch.zeros(BANDS, *size, **options)
        """Sums of S by band and distance."""
        self.bias = torch.zeros(size, **options)
        """Sums of the positional part S - q.k; a capture's maps do not have it."""
        self._origin, self._off, self._squares = torch.zeros(3, *size, **options)

    def add(self, band: int, rows: slice, final: Tensor, seen: Tensor, bias: Tensor | None) -> None:
        """Add consecutive queries of one band; hidden scores must be 0."""
        places = slice(rows.start, rows.stop + self.rows.length - 1)
        moved, at = sheared(final), sheared(seen[0, 0])
        fresh = at.any(dim=0) & (self.count[:, places].sum(dim=0) == 0)
        first = moved.gather(2, at.byte().argmax(dim=0).expand(*moved.shape[:2], 1, -1))[:, :, 0]
        self._origin[:, :, places] += torch.where(fresh, first, 0.0)
        self.count[band, places] += at.double().sum(dim=0)
        self.band[band, :, :, places] += moved.sum(dim=2, dtype=torch.float64)
        # Relative to one entry of the same diagonal, so that equal entries leave exactly 0.
        off = (moved.double() - self._origin[:, :, None, places]) * at
        self._off[:, :, places] += off.sum(dim=2)
        self._squares[:, :, places] += off.square_().sum(dim=2)
        if bias is not None:
            self.bias[:, :, places] += sheared(bias).sum(dim=2, dtype=torch.float64)

    @property
    def pairs(self) -> Float[Tensor, " n"]:
        """Visible pairs by distance."""
        return self.count.sum(dim=0)

    def kernel(self) -> Float[Tensor, "b h n"]:
        """Return kappa(d); NaN at distances without a visible pair."""
        return self.band.sum(dim=0) / self.pairs

    def bias_kernel(self) -> Float[Tensor, "b h n"]:
        """Return the mean positional part S - q.k at each distance."""
        return self.bias / self.pairs

    def within(self) -> Float[Tensor, "b h"]:
        """Return the squares about the kernel; exactly 0 for a Toeplitz map."""
        left: Tensor = self._squares - self._off.square() / self.pairs.clamp(min=1)
        return left.sum(dim=-1).clamp(min=0.0)

    def between(self) -> Float[Tensor, "b h"]:
        """Return the squares of the kernel about the mean."""
        count, kernel = self.pairs, self.kernel().nan_to_num(0.0)
        mean = (count * kernel).sum(dim=-1, keepdim=True) / count.sum()
        return (count * (kernel - mean).square()).sum(dim=-1)

    def constant(self) -> Bool[Tensor, "b h"]:
        """Return which maps have one value everywhere."""
        origin = self._origin[..., self.pairs > 0]
        constant: Tensor = (origin == origin[..., :1]).all(dim=-1) & ~self._squares.any(dim=-1)
        return constant


class WeightSums:
    """Sums of weights over late queries; over all queries for the entropy's growth."""

    def __init__(
        self, rows: QueryRows, batch: int, heads: int, device: torch.device | str = "cpu"
    ) -> None:
        self.rows = rows
        self.queries = 0
        maps = (batch, heads)
        options: dict[str, Any] = {"dtype": torch.float64, "device": device}
        self.by_distance = torch.zeros(*maps, 2 * rows.length - 1, **options)
        self.first, self.entropy = (torch.zeros(maps, **options) for _ in range(2))
        self.reach = torch.zeros(2, len(SHARES), *maps, **options)
        """Sums of reach with the sink, and without it."""
        self.reached = torch.zeros(2, *maps, **options)
        self.line = torch.zeros(5, *maps, **options)
        """n, x, xx, y, xy of the entropy y against x = ln(visible keys)."""

    def add(self, rows: slice, weights: Float[Tensor, "b h r s"], seen: Tensor) -> None:
        """Add consecutive queries of one band; hidden weights must be 0.

        All queries count for the growth of the entropy, late queries for everything else.
        """
        entropy = torch.special.entr(weights).sum(dim=-1)
        keys = seen.sum(dim=-1).double().expand_as(entropy)
        counts = (keys >= 2).double()
        x = keys.clamp(min=1).log() * counts
        y = entropy * counts
        self.line += torch.stack([part.sum(dim=-1) for part in (counts, x, x * x, y, x * y)])
        if rows.start not in self.rows.late:
            return
        self.queries += rows.stop - rows.start
        places = slice(rows.start, rows.stop + self.rows.length - 1)
        moved = sheared(weights)
        self.by_distance[:, :, places] += moved.sum(dim=2)
        self.first += (1 - weights.sum(dim=-1) + weights[..., 0]).sum(dim=-1)
        self.entropy += entropy.sum(dim=-1)
        rest = weights.clone()
        rest[..., 0] = 0.0
        for without, part in enumerate((moved, sheared(rest))):
            whole, distances = _reach(part, self.rows.length - 1 - rows.start, SHARES)
            counted = whole > REST
            self.reached[without] += counted.sum(dim=-1)
            for at, distance in enumerate(distances):
                self.reach[without, at] += (distance * counted).sum(dim=-1)

    def slash(self) -> Float[Tensor, "b h n"]:
        """Return the mean weight at the distances of `QueryRows.slashes`."""
        zero, chosen = self.rows.length - 1, self.rows.slashes
        return self.by_distance[..., zero + chosen.start : zero + chosen.stop] / self.queries

    def at_distance(self, distance: int) -> Float[Tensor, "b h"]:
        """Return the mean weight at one distance."""
        return self.by_distance[..., self.rows.length - 1 + distance] / self.queries

    def mean_reach(self, share: float, *, sink: bool) -> Float[Tensor, "b h"]:
        """Return the mean distance that contains a share of SHARES, with or without the sink."""
        return self.reach[int(not sink), SHARES.index(share)] / self.reached[int(not sink)]


class HeadProducts:
    """Sums of products of the heads' scores in one sequence."""

    def __init__(self, heads: int) -> None:
        self._origin: Tensor | None = None
        self._sum = torch.zeros(heads, dtype=torch.float64)
        self._products = torch.zeros(heads, heads, dtype=torch.float64)
        self._count = 0

    def add(self, entries: Float[Tensor, "h n"]) -> None:
        """Add the scores of visible pairs."""
        if self._origin is None:
            self._origin = entries.double().mean(dim=1, keepdim=True)
        centred = entries.double() - self._origin
        self._sum += centred.sum(dim=1)
        self._products += centred @ centred.mT
        self._count += entries.shape[1]

    def similarity(self, constant: Bool[Tensor, " h"]) -> Float[Tensor, "h h"]:
        """Return the correlation of every pair of heads; 0 with a constant map."""
        products = self._products - self._sum[:, None] * self._sum / self._count
        variance = products.diagonal()
        # Rounding leaves a constant map with residuals that would correlate.
        size = variance.clamp(min=0.0).sqrt().where(~constant & (variance > 0), torch.inf)
        return (products / size / size[:, None]).clamp(-1, 1).fill_diagonal_(1.0)


class LayerSums:
    """Everything that the measures of one layer are computed from; a part may be missing."""

    def __init__(
        self, rows: QueryRows, batch: int, heads: int, device: torch.device | str = "cpu"
    ) -> None:
        self.rows = rows
        self.scores = ScoreSums(rows, batch, heads, device)
        self.weights: Any = None
        """`WeightSums`; None where a capture has no weights."""
        self.products: Any = None
        """`HeadProducts` of a capture."""
        self.reach: Any = None
        """The distance that contains 90% of each query's weight [h t], in a capture."""
        self.call: AttentionCall | None = None
        """The layer's attention inputs; None for a capture."""
        self.context: int | None = None
        """The trained length, if known."""
        self.maps: Float[np.ndarray, "h c c"] | None = None
        """The weight that the mean query of a row of cells puts into each cell of keys."""

    def add(
        self,
        band: int,
        rows: slice,
        *,
        final: Float[Tensor, "b h r s"],
        seen: Bool[Tensor, "#b 1 r s"],
        weights: Float[Tensor, "b h r s"] | None,
        bias: Float[Tensor, "b h r s"] | None = None,
    ) -> None:
        """Add consecutive queries of one band."""
        final = final.detach().masked_fill(~seen, 0.0)
        bias = None if bias is None else bias.detach().masked_fill(~seen, 0.0)
        self.scores.add(band, rows, final, seen, bias)
        if weights is not None:
            weights = weights.detach().double()
            self.weights.add(rows, weights, seen)
            if self.reach is not None:
                zero = self.rows.length - 1 - rows.start
                whole, (distance,) = _reach(sheared(weights)[0], zero, (0.9,))
                self.reach[:, rows] = torch.where(whole > 0, distance, torch.nan).flip(-1)
        if self.products is not None and seen.any():
            self.products.add(final[0][:, seen[0, 0]])

    def most_similar(self) -> tuple[Float[Tensor, "1 h"], Float[Tensor, "1 h"]]:
        """Return the place of the most similar other head, and the correlation; NaN for none."""
        constant = self.scores.constant()[0]
        others = self.products.similarity(constant).fill_diagonal_(-torch.inf)
        others[constant], others[:, constant] = -torch.inf, -torch.inf
        value, place = others.max(dim=1)
        known = value > -torch.inf
        return place.double().where(known, torch.nan)[None], value.where(known, torch.nan)[None]


def sums_of_call(
    call: AttentionCall,
    *,
    context: int | None = None,
    sample: int | None = None,
    progress: Progress = lambda _: None,
) -> LayerSums:
    """Return the sums of one layer over a batch of sequences of equal length.

    call      the layer's attention inputs
    context   the trained length, which decides what a low band of a rotation is
    sample    look at this many late queries only, and make no picture
    progress  called with the number of queries just done
    """
    batch, heads, length, _ = call.q.shape
    rows = QueryRows(length, call.visible.causal, sample)
    sums = LayerSums(rows, batch, heads, call.q.device)
    sums.weights = WeightSums(rows, batch, heads, call.q.device)
    sums.call, sums.context = call, context
    edges = cell_edges(length, min(CELLS, length))
    picture = CellReducer(edges, edges, heads=heads, dtype=np.float32)
    for band, block in rows.blocks(batch * heads):
        part = scores(call, block)
        sums.add(
            band, block, final=part.final, seen=part.visible, weights=part.weights, bias=part.bias
        )
        if sample is None:
            picture.add(block, part.weights.detach().mean(dim=0).cpu().numpy())
        progress(block.stop - block.start)
    if sample is None:
        mean = picture.result()["mean"].astype(np.float32)
        sums.maps = mean.astype(np.float64) * np.diff(edges)
    return sums


def sums_of_maps(
    blocks: Iterable[MapBlock], *, heads: int, length: int, causal: bool, weighed: bool = True
) -> LayerSums:
    """Return the sums of the maps of one layer and one sequence.

    blocks   queries with their scores and weights, each query once
    heads    number of maps
    length   tokens of the sequence
    causal   whether queries see earlier keys only
    weighed  whether the blocks have weights
    """
    rows = QueryRows(length, causal)
    sums = LayerSums(rows, 1, heads)
    sums.products = HeadProducts(heads)
    if weighed:
        sums.weights = WeightSums(rows, 1, heads)
        sums.reach = torch.full((heads, length), torch.nan, dtype=torch.float64)
    for block, final, weights in blocks:
        values = _whole_rows(final, length)
        seen = values.isfinite().all(dim=1, keepdim=True)
        weighted = None
        if weights is not None:
            weighted = _whole_rows(weights, length)
            weighted = weighted.where(weighted.isfinite(), 0.0)
        for band, part in rows.in_bands(block):
            at = slice(part.start - block.start, part.stop - block.start)
            here = None if weighted is None else weighted[:, :, at]
            sums.add(band, part, final=values[:, :, at], seen=seen[:, :, at], weights=here)
    if not sums.scores.count.any():
        raise InputError("a head has no finite score, so it cannot be measured.")
    if weighed and sums.reach.isnan().all(dim=1).any():
        raise InputError("a head has no finite attention weight, so its reach cannot be measured.")
    return sums


def sheared(block: Shaped[Tensor, "*b r s"]) -> Shaped[Tensor, "*b r wide"]:
    """Return r consecutive rows with equal distances in one column, zero where there is no key.

    Rows come back in reversed order. If the first row is query i, column c of the s + r - 1
    columns is distance i + 1 - s + c, so the last column is distance i + r - 1.
    """
    *batch, rows, keys = block.shape
    wide = torch.nn.functional.pad(block.flip(-2), (0, rows))
    # Each row of the shorter view starts one place earlier in memory than a row of the padded one.
    moved = wide.flatten(-2)[..., : rows * (keys + rows - 1)]
    return moved.reshape(*batch, rows, keys + rows - 1).flip(-1)


def _reach(
    moved: Float[Tensor, "*b r wide"], zero: int, shares: tuple[float, ...]
) -> tuple[Tensor, list[Tensor]]:
    """Return each query's whole weight and the least distances that contain shares of it.

    `moved` are sheared weights whose column `zero` is distance 0.
    """
    length = max(zero, moved.shape[-1] - zero - 1) + 1
    near = moved.new_zeros(*moved.shape[:-1], length)
    near[..., : moved.shape[-1] - zero] += moved[..., zero:]
    near[..., 1 : zero + 1] += moved[..., :zero].flip(-1)
    within = near.cumsum(dim=-1)
    whole = within[..., -1:]
    return whole[..., 0], [(within < share * whole).sum(dim=-1) for share in shares]


def _whole_rows(block: Float[np.ndarray, "h r c"], length: int) -> Float[Tensor, "1 h r s"]:
    """Return a block with all keys, NaN for those that were left out."""
    values = torch.from_numpy(np.ascontiguousarray(block))[None]
    missing = length - values.shape[-1]
    return torch.nn.functional.pad(values, (0, missing), value=torch.nan) if missing else values
