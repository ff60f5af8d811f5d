"""Saved calls made of arrays, for tests that need no model."""

from typing import Any

import numpy as np
import torch

from headscape.call.bias import Bias, Slope, Toeplitz
from headscape.call.definition import AttentionCall
from headscape.call.positions import Positions, Visible
from headscape.captures.call_blocks import save_call
from headscape.captures.saved_call import SavedCall


def saved(
    q: np.ndarray, k: np.ndarray, bias: Bias | None = None, *, lse: bool = True, **more: Any
) -> SavedCall:
    """A causal layer with queries and keys [h t e]."""
    queries, keys = (torch.from_numpy(x)[None] for x in (q, k))
    call = AttentionCall(
        q=queries,
        k=keys,
        v=keys,
        bias=bias,
        positions=Positions.span(q.shape[1]),
        visible=Visible(),
        scale=q.shape[2] ** -0.5,
        **more,
    )
    return save_call(call, lse=lse)


def slope(weight: np.ndarray | None, row: np.ndarray, col: np.ndarray) -> Slope:
    """weight_i (row_i - col_j), each [h t]."""
    scale = None if weight is None else torch.from_numpy(weight)[None]
    return Slope(scale, torch.from_numpy(row)[None], torch.from_numpy(col)[None])


def toeplitz(table: np.ndarray, zero: int = 0) -> Toeplitz:
    """table[i - j] of every head."""
    return Toeplitz(torch.from_numpy(table), zero)
