"""The bias that an additive encoding adds to the scores, as data in one of these forms.

    Toeplitz    B_ij = table[i - j]                     ALiBi, T5, Kerple, Sandwich
    Slope       B_ij = weight_i (row_i - col_j)         CABLE, FoX
    Perceptron  B_ij = mlp(near[i - j] / far_i)         FIRE
    RelativeCurves  B_ij = r_i . basis[i - j]           Shaw, Transformer-XL, DeBERTa, Inkling
    GapKernel   B_ij = weight_i f(row_i - col_j)        K-CABLE, bidirectional CABLE
    BiasSum     B_ij = the sum of other biases          combinations
    Matrix      B_ij = a number per pair                what a capture writes out
    Pairwise    B_ij = any function of i and j          a form of your own

The dense definition (`dense` below), the fused kernels, the cache, the capture and the figures all
read the same value. Entries that the mask hides (a key after its query in a causal model) are
finite and have no meaning.

Values keep the dtype they were computed in (a running sum is float64 even in a float32 model). Code
that adds a bias to scores casts the sum, not the parts.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor

from headscape.call.positions import ALL, Positions


@dataclass(frozen=True)
class Toeplitz:
    """One value per head and distance: column `zero` is distance 0, the next one distance 1."""

    table: Float[Tensor, "h n"]
    zero: int

    def block(self, positions: Positions, rows: slice, cols: slice) -> Float[Tensor, "#b h t s"]:
        """Return the bias of some of the queries and keys."""
        column = positions.block(rows, cols).distance() + self.zero
        return self.table[:, column.clamp(0, self.table.shape[1] - 1)].movedim(0, 1)


@dataclass(frozen=True)
class Slope:
    """weight_i (row_i - col_j): one running sum per token, one weight per query."""

    weight: Float[Tensor, "#b h t"] | None
    """None means a weight of 1."""
    row: Float[Tensor, "#b h t"]
    col: Float[Tensor, "#b h s"]

    def block(self, positions: Positions, rows: slice, cols: slice) -> Float[Tensor, "#b h t s"]:
        """Return the bias of some of the queries and keys."""
        gap = self.row[:, :, rows, None] - self.col[:, :, None, cols]
        return gap if self.weight is None else self.weight[:, :, rows, None] * gap


@dataclass(frozen=True)
class Perceptron:
    """A two-layer perceptron of one input u_ij = near[i - j] / far_i, one output per head.

    mlp(u)_h = out_bias_h + sum_m out_weight_hm act(in_weight_m u + in_bias_m), where act(z) is z
    for z > 0 and leak z otherwise. It is piecewise linear in u, which the kernels use.
    """

    near: Float[Tensor, " n"]
    zero: int
    """The column of `near` for distance 0."""
    far: Float[Tensor, "#b t"]
    in_weight: Float[Tensor, " m"]
    in_bias: Float[Tensor, " m"]
    out_weight: Float[Tensor, "h m"]
    out_bias: Float[Tensor, " h"]
    leak: float
    at: Int[Tensor, "#b t"] | None = None
    """The query positions that `far` was computed for."""

    def block(self, positions: Positions, rows: slice, cols: slice) -> Float[Tensor, "#b h t s"]:
        """Return the bias of some of the queries and keys."""
        column = positions.block(rows, cols).distance() + self.zero
        near = self.near[column.clamp(0, self.near.shape[0] - 1)]
        u = near / self.far[:, rows, None]
        hidden = torch.nn.functional.leaky_relu(
            u[..., None] * self.in_weight + self.in_bias, self.leak
        )
        return (hidden @ self.out_weight.T + self.out_bias).movedim(-1, 1)


@dataclass(frozen=True)
class RelativeCurves:
    """r_i . basis[i - j], a curve by distance for every query, and the same for every key.

    Distances beyond the columns of a basis take its first or last column. Columns of zeros there
    end the bias.
    """

    r: Float[Tensor, "#b h t c"]
    basis: Float[Tensor, "#h c n"]
    zero: int
    """The column of both bases for distance 0; with `column`, its entry for distance 0."""
    key: tuple[Float[Tensor, "#b h s c2"], Float[Tensor, "#h c2 n"]] | None = None
    """u and its basis, which add u_j . basis[i - j]: DeBERTa's position-to-content term.

    For a basis that is one expanded column, the kernels add one number per key."""
    column: Int[Tensor, " m"] | None = None
    """The columns of both bases for distances from -zero on, where some share one: buckets."""

    def columns(self, distance: Int[Tensor, "*d"]) -> Int[Tensor, "*d"]:
        """Return the column of both bases for every distance."""
        last = self.basis.shape[-1] if self.column is None else self.column.shape[0]
        at = (distance + self.zero).clamp(0, last - 1)
        return at if self.column is None else self.column[at]

    def block(self, positions: Positions, rows: slice, cols: slice) -> Float[Tensor, "#b h t s"]:
        """Return the bias of some of the queries and keys."""
        distance = positions.block(rows, cols).distance()
        by_query = self._curves(self.r[:, :, rows], self.basis, distance)
        return by_query if self.key is None else by_query + self._by_key(*self.key, cols, distance)

    def _by_key(
        self, u: Tensor, basis: Tensor, cols: slice, distance: Tensor
    ) -> Float[Tensor, "#b h t s"]:
        """Return u_j . basis[i - j], as many keys at a time as there are queries.

        A key's curve then has few more distances than are read, if positions are consecutive.
        """
        if distance.shape[1] == 1:
            picked = basis[:, :, self.columns(distance[:, 0])]  # [h c b s]
            return torch.einsum("bhsc,hcbs->bhs", *_same_batch(u[:, :, cols], picked))[:, :, None]
        size = max(distance.shape[1], 16)
        parts = zip(
            torch.split(u[:, :, cols], size, 2), torch.split(distance, size, 2), strict=True
        )
        return torch.cat([self._curves(keys, basis, some.mT).mT for keys, some in parts], dim=3)

    def _curves(self, r: Tensor, basis: Tensor, distance: Tensor) -> Float[Tensor, "#b h t s"]:
        """Return every token's curve at the given distances."""
        low, high = int(distance.min()), int(distance.max())
        first, last = low + self.zero, high + self.zero
        if self.column is None and first >= 0 and last < basis.shape[-1]:
            curves = r @ basis[:, :, first : last + 1]
        else:
            # Distances may share a column, so compute the products of each column once.
            columns = self.columns(torch.arange(low, high + 1, device=r.device))
            start = int(columns.min())
            curves = (r @ basis[:, :, start : int(columns.max()) + 1])[..., columns - start]
        shape = (max(r.shape[0], distance.shape[0]), r.shape[1], *distance.shape[1:])
        at = (distance - low)[:, None].expand(shape)
        return curves.expand(shape[0], -1, -1, -1).gather(3, at)


def _same_batch(u: Tensor, picked: Tensor) -> tuple[Tensor, Tensor]:
    """Return u [b h s c] and a basis per key [h c b s], expanded to the same batch and heads."""
    b, h = max(u.shape[0], picked.shape[2]), max(u.shape[1], picked.shape[0])
    picked = picked.expand(h, -1, b, -1)
    return u.expand(b, h, -1, -1).to(picked.dtype), picked


@dataclass(frozen=True)
class GapKernel:
    """weight_i f(row_i - col_j), or f(weight_i (row_i - col_j)) if the weight is inside.

    f(x) is -|x| ("distance") or -ln(1 + x^2) ("log").
    """

    weight: Float[Tensor, "#b h t"] | None
    """None means a weight of 1."""
    row: Float[Tensor, "#b h t"]
    col: Float[Tensor, "#b h s"]
    kernel: Literal["distance", "log"]
    inside: bool = False

    def block(self, positions: Positions, rows: slice, cols: slice) -> Float[Tensor, "#b h t s"]:
        """Return the bias of some of the queries and keys."""
        gap = self.row[:, :, rows, None] - self.col[:, :, None, cols]
        weight = None if self.weight is None else self.weight[:, :, rows, None]
        if weight is not None and self.inside:
            gap = weight * gap
        values = -gap.abs() if self.kernel == "distance" else -torch.log1p(gap.square())
        return values if weight is None or self.inside else weight * values


@dataclass(frozen=True)
class Matrix:
    """A bias written out."""

    values: Float[Tensor, "#b h t s"]

    def block(self, positions: Positions, rows: slice, cols: slice) -> Float[Tensor, "#b h t s"]:
        """Return the bias of some of the queries and keys."""
        return self.values[:, :, rows, cols]


@dataclass(frozen=True)
class BiasSum:
    """The sum of biases that were all made for the same positions."""

    parts: tuple["Bias", ...]
    positions: Positions | None = None
    """The positions that the biases were built for."""

    def block(self, positions: Positions, rows: slice, cols: slice) -> Float[Tensor, "#b h t s"]:
        """Return the bias of some of the queries and keys."""
        work = self.parts[0].block(positions, rows, cols)
        for each in self.parts[1:]:
            work = work + each.block(positions, rows, cols)
        return work


@dataclass(frozen=True)
class Pairwise:
    """Any other bias, computed a block at a time from the indices of its queries and keys."""

    fn: Callable[[slice, slice], Float[Tensor, "#b h t s"]]
    positions: Positions | None = None
    """The positions that the bias was built for."""

    def block(self, positions: Positions, rows: slice, cols: slice) -> Float[Tensor, "#b h t s"]:
        """Return the bias of some of the queries and keys."""
        return self.fn(rows, cols)


BlockBias = GapKernel | Matrix | BiasSum | Pairwise
"""Forms that the fused kernels do not compute from their data."""
Bias = Toeplitz | Slope | Perceptron | RelativeCurves | BlockBias


def covered_distances(bias: Bias) -> tuple[int, int] | None:
    """Return the smallest and largest distance in a bias's table; None if it takes any distance."""
    if isinstance(bias, Toeplitz):
        return -bias.zero, bias.table.shape[-1] - 1 - bias.zero
    if isinstance(bias, Perceptron):
        return -bias.zero, bias.near.shape[-1] - 1 - bias.zero
    return None


def dense(
    bias: Bias, positions: Positions, rows: slice = ALL, cols: slice = ALL
) -> Float[Tensor, "#b h t s"]:
    """Return the bias as a matrix, for all queries and keys or for a block of them."""
    return bias.block(positions, rows, cols)


def total(biases: Sequence[Bias | None], positions: Positions) -> Bias | None:
    """Return the sum of biases that were all made for the same positions.

    Tables by distance stay one table; any other sum is computed a block at a time.
    """
    present = [bias for bias in biases if bias is not None]
    if len(present) < 2:
        return present[0] if present else None
    tables = [bias for bias in present if isinstance(bias, Toeplitz)]
    spans = {(bias.zero, bias.table.shape[1]) for bias in tables}
    if len(tables) == len(present) and len(spans) == 1:
        work = tables[0].table
        for each in tables[1:]:
            work = work + each.table
        return Toeplitz(work, tables[0].zero)
    return BiasSum(tuple(present), positions)
