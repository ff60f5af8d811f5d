"""What an additive encoding hands to attention: data that says what it is.

    Toeplitz    B_ij = table[i - j]                     ALiBi, T5, Kerple, Sandwich
    Slope       B_ij = weight_i (row_i - col_j)         CABLE, FoX
    Perceptron  B_ij = mlp(near[i - j] / far_i)         FIRE
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
class Pairwise:
    """Any other bias, computed a block at a time from the indices of its queries and keys."""

    fn: Callable[[slice, slice], Float[Tensor, "#b h t s"]]

    def block(self, positions: Positions, rows: slice, cols: slice) -> Float[Tensor, "#b h t s"]:
        """The bias of some queries and keys."""
        return self.fn(rows, cols)


Bias = Toeplitz | Slope | Perceptron | Pairwise


def dense(
    bias: Bias, positions: Positions, rows: slice = ALL, cols: slice = ALL
) -> Float[Tensor, "#b h t s"]:
    """The bias written out, for all queries and keys or for a block of them."""
    return bias.block(positions, rows, cols)
