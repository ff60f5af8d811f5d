"""A table over the offsets of a two-dimensional grid: Swin (Liu et al. 2021, arXiv:2103.14030).

    B_ij = r_h[y_i - y_j, x_i - x_j],     token p is at row y = p // columns, column x = p % columns

The table has (2 rows - 1)(2 columns - 1) entries per head; offset (dy, dx) is entry
(dy + rows - 1)(2 columns - 1) + dx + columns - 1. If the tokens fill more than `rows` rows,
larger offsets in y use the entry of the largest one.

BEiT (Bao et al. 2021, arXiv:2106.08254) has a class token in front, at position 0 here
(`class_token`), and three more entries at the end: class to token, token to class, class to class.
transformers' BEiT resizes the table on grids that are not square and then reads wrong entries;
this class does not.
"""

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from headscape.call.bias import Pairwise
from headscape.call.positions import Positions
from headscape.encodings.base import Config, Encoding, Shape
from headscape.encodings.context import LayerContext


@dataclass(frozen=True, kw_only=True)
class GridConfig(Config):
    """Options of the table."""

    rows: int | None = None
    """Rows of the grid; enough for the context length if left out."""
    columns: int | None = None
    """Columns of the grid; the square root of the context length, rounded up, if left out."""
    class_token: bool = False
    """Position 0 is a class token, outside the grid."""

    AT_LEAST: ClassVar = {"rows": 1, "columns": 1}


class GridTable(Encoding):
    """One scalar per head and offset in a grid of tokens."""

    title = "Grid table"
    paper = "Liu et al. 2021, arXiv:2103.14030 (Swin)"
    formula = "S = A + r_h[y_i-y_j, x_i-x_j]"
    published = ({"relative_position_bias_table": "table"},)
    shift_invariant = False
    toeplitz = False
    config: GridConfig

    def __init__(self, shape: Shape, config: GridConfig) -> None:
        super().__init__(shape, config)
        tokens = 1
        if not (config.rows and config.columns):
            trained = shape.trained(self.title, "rows and columns")
            tokens = max(1, trained - config.class_token)
        self.columns = config.columns or math.ceil(tokens**0.5)
        self.rows = config.rows or math.ceil(tokens / self.columns)
        entries = (2 * self.rows - 1) * (2 * self.columns - 1) + 3 * config.class_token
        self.table = nn.Parameter(torch.randn(entries, shape.heads) * 0.02)

    def bias(self, layer: LayerContext) -> Pairwise:
        """Return the table's value for every pair."""

        def fn(rows: slice, cols: slice) -> Float[Tensor, "#b h t s"]:
            return self.table[self.index(layer.positions.block(rows, cols))].movedim(-1, 1)

        return Pairwise(fn, layer.positions)

    def index(self, positions: Positions) -> Int[Tensor, "#b t s"]:
        """Return the entry of the table for every pair."""
        first = int(self.config.class_token)
        q, k = positions.q[:, :, None] - first, positions.k[:, None] - first
        reach = self.rows - 1
        down = (_over(q, self.columns) - _over(k, self.columns)).clamp(-reach, reach)
        across = q.remainder(self.columns) - k.remainder(self.columns)
        entry = (down + reach) * (2 * self.columns - 1) + across + self.columns - 1
        if not first:
            return entry
        last = self.table.shape[0] - 1
        entry = torch.where(q < 0, last - 2, entry)
        return torch.where(k < 0, last - (q >= 0).long(), entry)


def _over(at: Int[Tensor, "*n"], columns: int) -> Int[Tensor, "*n"]:
    return at.div(columns, rounding_mode="floor")
