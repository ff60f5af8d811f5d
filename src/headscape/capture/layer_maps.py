"""The maps of one layer, from what its attention is a function of.

Scores are computed by the dense definition, a block of queries at a time, so memory is of order
block x length. Maps are kept whole, or reduced to a grid of cells while they are computed, with one
exact window beside the cells.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from headscape.arrays.choice import QUANTITIES
from headscape.arrays.pyramid import Reducer, cell_edges
from headscape.attention.reference import AttentionInputs, scores
from headscape.capture.sinks import Maps, Reduced, Whole
from headscape.errors import InputError

BLOCK_ENTRIES = 1 << 20
"""Query-key pairs per head in memory at once."""

Progress = Callable[[int], None]
"""Called with the number of queries just done."""


@dataclass(frozen=True, kw_only=True)
class Request:
    """What to keep of a forward pass."""

    layers: tuple[int, ...]
    heads: tuple[int, ...]
    quantities: tuple[str, ...] = QUANTITIES
    resolution: int | None = None
    """Cells a side to reduce to; None keeps whole maps."""
    window: tuple[slice, slice] | None = None
    """Queries and keys to keep exactly, besides a reduced map."""

    def __post_init__(self) -> None:
        for name in self.quantities:
            if name not in QUANTITIES:
                raise InputError(f"unknown quantity {name!r}: choose from {', '.join(QUANTITIES)}.")
        if self.resolution is not None and self.resolution < 1:
            raise InputError(f"resolution must be at least 1, got {self.resolution}.")
        if self.window is not None and self.resolution is None:
            raise InputError("window keeps part of a reduced map exactly: give a resolution too.")


def layer_maps(layer: int, inputs: AttentionInputs, request: Request, progress: Progress) -> Maps:
    """The maps asked for of one layer, by their name in a capture."""
    length = inputs.q.shape[2]
    sinks = {name: _sink(length, inputs.visible.causal, request) for name in request.quantities}
    block = max(1, min(length, BLOCK_ENTRIES // length))
    heads = list(request.heads)
    for start in range(0, length, block):
        rows = slice(start, min(length, start + block))
        every = scores(inputs, rows)
        hidden = ~every.visible
        for name, sink in sinks.items():
            blank = 0.0 if name == "weights" else torch.nan
            values: Tensor = getattr(every, name)[0, heads]
            sink.add(rows, values.masked_fill(hidden[0], blank).float().cpu().numpy())
        progress(rows.stop - rows.start)
    return {
        f"layer.{layer}.{name}{suffix}": value
        for name, sink in sinks.items()
        for suffix, value in sink.result().items()
    }


def edges(length: int, request: Request) -> np.ndarray | None:
    """Where the cells of a reduced map begin and end."""
    cells = cells_of(length, request)
    return None if cells is None else cell_edges(length, cells)


def cells_of(length: int, request: Request) -> int | None:
    """Cells a side of a reduced map: never more than tokens."""
    return None if request.resolution is None else min(request.resolution, length)


def _sink(length: int, causal: bool, request: Request) -> Whole | Reduced:  # noqa: FBT001
    heads = len(request.heads)
    if request.resolution is None:
        return Whole(heads, length)
    if request.window is not None:
        for part in request.window:
            if not 0 <= part.start < part.stop <= length:
                raise InputError(
                    f"window {part.start}:{part.stop} is outside the sequence of {length} tokens."
                )
    reducer = Reducer(heads=heads, length=length, resolution=request.resolution, causal=causal)
    return Reduced(reducer, heads, request.window)
