"""Diagonals as columns: blocks of query-key maps aligned by distance."""

import torch
from jaxtyping import Shaped
from torch import Tensor


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
