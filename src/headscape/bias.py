"""What an additive encoding hands to attention: data that says what it is.

    Toeplitz    B_ij = table[i - j]                     ALiBi, T5, Kerple, Sandwich
    Slope       B_ij = weight_i (row_i - col_j)         CABLE, FoX
    Perceptron  B_ij = mlp(near[i - j] / far_i)         FIRE
    Sheared     B_ij = r_i . basis[i - j]               Shaw, Transformer-XL, DeBERTa, Inkling
    Pairwise    B_ij = whatever a function says         K-CABLE, bidirectional CABLE

One value serves the dense definition (`dense` below), the fused kernels, the cache, the capture
and the plot. Entries that the mask hides (a key after its query in a causal model) are finite
and mean nothing.

Values keep the precision they were made in (a running sum is float64 even in a float32 model);
whoever adds them to scores casts the result, not the parts.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from headscape.types import ALL, Positions


@dataclass(frozen=True)
class Toeplitz:
    """A value per head and distance: column `zero` is distance 0, the next one distance 1."""

    table: Float[Tensor, "h n"]
    zero: int

    def block(self, positions: Positions, rows: slice, cols: slice) -> Float[Tensor, "#b h t s"]:
        """The bias of some queries and keys."""
        column = positions.block(rows, cols).distance() + self.zero
        return self.table[:, column.clamp(0, self.table.shape[1] - 1)].movedim(0, 1)


@dataclass(frozen=True)
class Slope:
    """weight_i (row_i - col_j): one running sum per token, one weight per query."""

    weight: Float[Tensor, "#b h t"] | None
    """None is a weight of one."""
    row: Float[Tensor, "#b h t"]
    col: Float[Tensor, "#b h s"]

    def block(self, positions: Positions, rows: slice, cols: slice) -> Float[Tensor, "#b h t s"]:
        """The bias of some queries and keys."""
        gap = self.row[:, :, rows, None] - self.col[:, :, None, cols]
        return gap if self.weight is None else self.weight[:, :, rows, None] * gap


@dataclass(frozen=True)
class Perceptron:
    """A two-layer perceptron of one input u_ij = near[i - j] / far_i, one output per head.

    mlp(u)_h = out_bias_h + sum_m out_weight_hm act(in_weight_m u + in_bias_m), where act(z) is z
    for z > 0 and leak z below: piecewise linear in u, which is what makes it cheap.
    """

    near: Float[Tensor, " n"]
    zero: int
    """The column of `near` that holds distance 0."""
    far: Float[Tensor, "#b t"]
    in_weight: Float[Tensor, " m"]
    in_bias: Float[Tensor, " m"]
    out_weight: Float[Tensor, "h m"]
    out_bias: Float[Tensor, " h"]
    leak: float

    def block(self, positions: Positions, rows: slice, cols: slice) -> Float[Tensor, "#b h t s"]:
        """The bias of some queries and keys."""
        column = positions.block(rows, cols).distance() + self.zero
        near = self.near[column.clamp(0, self.near.shape[0] - 1)]
        u = near / self.far[:, rows, None]
        hidden = torch.nn.functional.leaky_relu(
            u[..., None] * self.in_weight + self.in_bias, self.leak
        )
        return (hidden @ self.out_weight.T + self.out_bias).movedim(-1, 1)


@dataclass(frozen=True)
class Sheared:
    """r_i . basis[i - j], a curve by distance for every query, and the same for every key.

    Distances beyond the columns of a basis take its first or last column. Columns of zeros there
    end the bias.
    """

    r: Float[Tensor, "#b h t c"]
    basis: Float[Tensor, "#h c n"]
    zero: int
    """The column of both bases that holds distance 0."""
    key: tuple[Float[Tensor, "#b h s c2"], Float[Tensor, "#h c2 n"]] | None = None
    """u and its basis, which add u_j . basis[i - j]: DeBERTa's position-to-content term."""

    def block(self, positions: Positions, rows: slice, cols: slice) -> Float[Tensor, "#b h t s"]:
        """The bias of some queries and keys."""
        distance = positions.block(rows, cols).distance()
        found = self._curves(self.r[:, :, rows], self.basis, distance)
        if self.key is not None:
            u, basis = self.key
            found = found + self._curves(u[:, :, cols], basis, distance.mT).mT
        return found

    def _curves(self, r: Tensor, basis: Tensor, distance: Tensor) -> Float[Tensor, "#b h t s"]:
        """Every token's curve at the distances given."""
        low, high = int(distance.min()), int(distance.max())
        column = torch.arange(low, high + 1, device=r.device) + self.zero
        curves = r @ basis[:, :, column.clamp(0, basis.shape[-1] - 1)]
        shape = (max(r.shape[0], distance.shape[0]), r.shape[1], *distance.shape[1:])
        at = (distance - low)[:, None].expand(shape)
        return curves.expand(shape[0], -1, -1, -1).gather(3, at)


@dataclass(frozen=True)
class Pairwise:
    """Any other bias, computed a block at a time from the indices of its queries and keys."""

    fn: Callable[[slice, slice], Float[Tensor, "#b h t s"]]

    def block(self, positions: Positions, rows: slice, cols: slice) -> Float[Tensor, "#b h t s"]:
        """The bias of some queries and keys."""
        return self.fn(rows, cols)


Bias = Toeplitz | Slope | Perceptron | Sheared | Pairwise


def dense(
    bias: Bias, positions: Positions, rows: slice = ALL, cols: slice = ALL
) -> Float[Tensor, "#b h t s"]:
    """The bias written out, for all queries and keys or for a block of them."""
    return bias.block(positions, rows, cols)
