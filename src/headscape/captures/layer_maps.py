"""The maps of one layer, from what its attention is a function of.

Maps are kept whole, or reduced to a grid of cells while they are computed, with one exact window
beside the cells. The native kernels reduce what they serve (attention/native/score_cells.py). All
else comes from the dense definition, a block of queries at a time, in memory of order block x
length.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Int64
from torch import Tensor

from headscape.call.definition import AttentionCall, scores
from headscape.captures.choice import QUANTITIES
from headscape.captures.pyramid import Reducer, cell_edges
from headscape.captures.sinks import Exact, Maps, Reduced, Sink, Whole
from headscape.errors import InputError, at_least
from headscape.kernels.native.score_cells import reduce_scores, refuses

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
        at_least(1, resolution=self.resolution)
        if self.window is not None and self.resolution is None:
            raise InputError("window keeps part of a reduced map exactly: give a resolution too.")


def layer_maps(layer: int, inputs: AttentionCall, request: Request, progress: Progress) -> Maps:
    """The maps asked for of one layer, by their name in a capture."""
    length = inputs.q.shape[2]
    sinks = {name: _sinks(name, inputs, request) for name in request.quantities}
    maps: Maps = {}
    rows, cells = slice(0, length), edges(length, request)
    if cells is not None and refuses(inputs) is None:
        maps = _native(inputs, cells, request)
        rows = slice(0, 0) if request.window is None else request.window[0]
        progress(length - (rows.stop - rows.start))
    _fill(inputs, rows, request.heads, sinks, progress)
    for name, own in sinks.items():
        maps |= {name + suffix: value for sink in own for suffix, value in sink.result().items()}
    return {f"layer.{layer}.{name}": value for name, value in maps.items()}


def _sinks(name: str, inputs: AttentionCall, request: Request) -> list[Sink]:
    """Where the rows of one quantity go that the dense definition computes."""
    length, heads = inputs.q.shape[2], len(request.heads)
    blank = 0.0 if name == "weights" else np.nan
    if request.resolution is None:
        return [Whole(heads, length, blank)]
    sinks: list[Sink] = []
    if refuses(inputs) is not None:
        causal = inputs.visible.causal
        sinks.append(
            Reduced(
                Reducer(heads=heads, length=length, resolution=request.resolution, causal=causal)
            )
        )
    if request.window is not None:
        _check_window(request.window, length)
        sinks.append(Exact(heads, request.window, blank))
    return sinks


def _native(inputs: AttentionCall, cells: Int64[np.ndarray, " edges"], request: Request) -> Maps:
    """Cells by the native kernels, which take all heads at once."""
    found = reduce_scores(inputs, cells)
    heads = list(request.heads)
    return {
        f"{name}.{part}": values[heads]
        for name in request.quantities
        for part, values in found[name].items()
    }


def _fill(
    inputs: AttentionCall,
    rows: slice,
    heads: tuple[int, ...],
    sinks: Mapping[str, Sequence[Sink]],
    progress: Progress,
) -> None:
    """Compute some queries' rows by the dense definition, a block at a time."""
    length = inputs.k.shape[2]
    block = max(1, min(length, BLOCK_ENTRIES // length))
    for start in range(rows.start, rows.stop, block):
        part = slice(start, min(rows.stop, start + block))
        every = scores(inputs, part)
        hidden = ~every.visible[0, 0].cpu().numpy()
        for name, own in sinks.items():
            values: Tensor = getattr(every, name)[0, list(heads)]
            entries = values.float().cpu().numpy()
            for sink in own:
                sink.add(part, entries, hidden)
        progress(part.stop - part.start)


def edges(length: int, request: Request) -> np.ndarray | None:
    """Where the cells of a reduced map begin and end."""
    cells = cells_of(length, request)
    return None if cells is None else cell_edges(length, cells)


def cells_of(length: int, request: Request) -> int | None:
    """Cells a side of a reduced map: never more than tokens."""
    return None if request.resolution is None else min(request.resolution, length)


def _check_window(window: tuple[slice, slice], length: int) -> None:
    for part in window:
        if not 0 <= part.start < part.stop <= length:
            raise InputError(
                f"window {part.start}:{part.stop} is outside the sequence of length {length}."
            )
