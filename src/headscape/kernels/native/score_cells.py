"""The scores of one sequence reduced to a grid of cells, without a row of them in memory.

Two passes of the native kernels over all pairs: attention, for the softmax's denominators (of
sticks, for what is left), then the scores once more, reduced tile by tile. Float32; memory is of
order length + heads x cells^2.
"""

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Float32, Int64
from torch import Tensor

from headscape.call.bias import RelativeCurves
from headscape.call.definition import AttentionCall, shared
from headscape.call.quantities import QUANTITIES
from headscape.errors import InputError
from headscape.kernels.native import adapter, ops
from headscape.kernels.native.ops import fields_of

Grid = Mapping[str, Float32[np.ndarray, "h r r"]]


def refuses(inputs: AttentionCall) -> str | None:
    """Why the scores cannot be reduced natively; None when they can."""
    if (reason := adapter.refuses(inputs)) is not None:
        return reason
    at, visible = inputs.positions, inputs.visible
    if inputs.q.shape[0] != 1 or inputs.q.shape[2] != inputs.k.shape[2]:
        return "cells are for one sequence against itself"
    if visible.q_group is not None:
        return "cells are for one sequence without groups"
    if visible.chunk is not None:
        return "cells are for attention without chunks"
    for positions in (at.q, at.k):
        if positions.shape[0] != 1 or bool((positions.diff() != 1).any()):
            return "cells are for consecutive positions"
    return None if int(at.q[0, 0]) == int(at.k[0, 0]) else "cells are for one sequence"


@torch.no_grad()
def reduce_scores(inputs: AttentionCall, edges: Int64[np.ndarray, " edges"]) -> Mapping[str, Grid]:
    """The mean, min and max of every cell, by quantity; NaN where a cell has no visible entry.

    `edges` are the first token of each cell, followed by the number of tokens.
    """
    if (reason := refuses(inputs)) is not None:
        raise InputError(f"scores cannot be reduced natively: {reason}.")
    _check_edges(edges, inputs.q.shape[2])
    wide = replace(inputs, q=inputs.q.float(), k=inputs.k.float(), v=inputs.v.float())
    operator = adapter.operands(wide)
    lse = adapter.run_with_lse(wide)[1]
    heads, cells = inputs.q.shape[1], len(edges) - 1
    shape = (len(QUANTITIES), heads, cells, cells)
    total = torch.zeros(shape, dtype=torch.float64)
    least = torch.full(shape, torch.inf)
    greatest = torch.full(shape, -torch.inf)
    held: dict[str, Tensor | float | None] = {
        "cells": cells, "edges": torch.from_numpy(np.ascontiguousarray(edges, dtype=np.int64)),
        "sum": total, "least": least, "greatest": greatest,
        "additive": int(_adds_only(inputs)),
    }  # fmt: skip
    if inputs.unrotated is not None:
        raw_q, raw_k = (_widened(x, wide.q.shape[-1]) for x in inputs.unrotated)
        held |= {"raw_q": raw_q, "raw_k": shared(raw_k, wide.k.shape[1]).contiguous()}
    grid = ops.Cells()
    ops.fill(grid, held)
    q, k, v = (x.contiguous() for x in operator[:3])
    ops.call("cells", fields_of(q, k, v, *operator[3:]) | {"lse": lse}, grid)
    seen = _counts(inputs, edges)
    return {name: _grid(total[n], least[n], greatest[n], seen) for n, name in enumerate(QUANTITIES)}


def _adds_only(inputs: AttentionCall) -> bool:
    """Whether the bias is taken as added; a sheared one is not kept apart from the scores."""
    changes = inputs.mixing is not None or inputs.unrotated is not None or inputs.score_transform
    return not changes and not isinstance(inputs.bias, RelativeCurves)


def _widened(x: Tensor, dims: int) -> Tensor:
    """Zeros after the dims that x has, for a rotation that widens: q . k stays what it is."""
    return F.pad(x.float(), (0, dims - x.shape[-1])).contiguous()


def _check_edges(edges: Int64[np.ndarray, " edges"], length: int) -> None:
    if len(edges) < 2 or edges[0] != 0 or edges[-1] != length or (np.diff(edges) < 1).any():
        raise InputError(f"edges must rise from 0 to {length}, the number of tokens.")


def _counts(inputs: AttentionCall, edges: Int64[np.ndarray, " edges"]) -> np.ndarray:
    """Visible entries per cell."""
    length, visible = inputs.q.shape[2], inputs.visible
    at, wide = np.arange(length)[:, None], length if visible.window is None else visible.window
    first = np.maximum(at - wide + 1, edges[None, :-1])
    last = np.minimum(at if visible.causal else at + wide - 1, edges[None, 1:] - 1)
    per_query = np.maximum(last - first + 1, 0)
    return np.add.reduceat(per_query, edges[:-1], axis=0)


def _grid(total: Tensor, least: Tensor, greatest: Tensor, seen: np.ndarray) -> Grid:
    empty = seen == 0
    mean = total.numpy() / np.where(empty, 1, seen)
    maps = {"mean": mean, "min": least.numpy(), "max": greatest.numpy()}
    return {name: np.where(empty, np.nan, x).astype(np.float32) for name, x in maps.items()}
