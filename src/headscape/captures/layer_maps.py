"""The maps of one layer, from what its attention is a function of.

Maps are kept whole, or reduced to a grid of cells while they are computed, with one exact window
beside the cells. The native kernels reduce what they serve (kernels/native/score_cells.py). All
else comes from the dense definition, a block of queries at a time, in memory of order block x
length.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from jaxtyping import Bool, Float32, Int64
from torch import Tensor

from headscape.call.definition import AttentionCall, scores
from headscape.captures.choice import QUANTITIES
from headscape.captures.pooling import CellReducer, cell_edges
from headscape.errors import InputError, at_least
from headscape.kernels.native.score_cells import reduce_scores, refuses

BLOCK_ENTRIES = 1 << 20
"""Query-key pairs per head in memory at once."""

Maps = dict[str, Float32[np.ndarray, "h _ _"]]
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


class RowWriter(Protocol):
    """Takes the rows of one quantity."""

    def add(
        self, rows: slice, block: Float32[np.ndarray, "h t s"], hidden: Bool[np.ndarray, "t s"]
    ) -> None:
        """Take some queries' rows; `hidden` is True where a query does not see a key."""

    def result(self) -> Maps:
        """What was kept, by the end of its name in a capture."""


class Exact:
    """Keeps the entries of some queries and keys; hidden ones become `blank`."""

    def __init__(
        self, heads: int, queries: slice, keys: slice, blank: float, name: str = ""
    ) -> None:
        self.queries, self.keys, self.name = queries, keys, name
        size = (queries.stop - queries.start, keys.stop - keys.start)
        self.map = np.empty((heads, *size), dtype=np.float32)
        self.blank = np.float32(blank)

    def add(
        self, rows: slice, block: Float32[np.ndarray, "h t s"], hidden: Bool[np.ndarray, "t s"]
    ) -> None:
        """Take some queries' rows."""
        first, last = max(rows.start, self.queries.start), min(rows.stop, self.queries.stop)
        if first < last:
            own = np.s_[first - rows.start : last - rows.start, self.keys]
            shown = np.where(hidden[own], self.blank, block[:, *own])
            self.map[:, first - self.queries.start : last - self.queries.start] = shown

    def result(self) -> Maps:
        """The entries."""
        return {self.name: self.map}


class Reduced:
    """Keeps cells of visible entries."""

    def __init__(self, heads: int, cells: Int64[np.ndarray, " edges"]) -> None:
        self.cells = CellReducer(cells, cells, heads=heads, dtype=np.float32)

    def add(
        self, rows: slice, block: Float32[np.ndarray, "h t s"], hidden: Bool[np.ndarray, "t s"]
    ) -> None:
        """Take some queries' rows."""
        self.cells.add(rows, np.where(hidden, np.float32(np.nan), block))

    def result(self) -> Maps:
        """The mean, min and max of every cell."""
        return {f".{name}": x.astype(np.float32) for name, x in self.cells.result().items()}


def layer_maps(layer: int, inputs: AttentionCall, request: Request, progress: Progress) -> Maps:
    """The maps asked for of one layer, by their name in a capture."""
    length = inputs.q.shape[2]
    rows, cells = slice(0, length), edges(length, request)
    native = cells is not None and refuses(inputs) is None
    writers = {name: _writers(name, length, request, native=native) for name in request.quantities}
    maps: Maps = {}
    if native and cells is not None:
        maps = _native(inputs, cells, request)
        rows = slice(0, 0) if request.window is None else request.window[0]
        progress(length - (rows.stop - rows.start))
    _fill(inputs, rows, request.heads, writers, progress)
    for name, own in writers.items():
        maps |= {name + suffix: x for writer in own for suffix, x in writer.result().items()}
    return {f"layer.{layer}.{name}": value for name, value in maps.items()}


def _writers(name: str, length: int, request: Request, *, native: bool) -> list[RowWriter]:
    """Where the rows of one quantity go that the dense definition computes."""
    heads, cells = len(request.heads), edges(length, request)
    blank = 0.0 if name == "weights" else np.nan
    if cells is None:
        every = slice(0, length)
        return [Exact(heads, every, every, blank)]
    writers: list[RowWriter] = [] if native else [Reduced(heads, cells)]
    if request.window is not None:
        _check_window(request.window, length)
        writers.append(Exact(heads, *request.window, blank, ".exact"))
    return writers


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
    writers: Mapping[str, Sequence[RowWriter]],
    progress: Progress,
) -> None:
    """Compute some queries' rows by the dense definition, a block at a time."""
    length = inputs.k.shape[2]
    block = max(1, min(length, BLOCK_ENTRIES // length))
    for start in range(rows.start, rows.stop, block):
        part = slice(start, min(rows.stop, start + block))
        every = scores(inputs, part)
        hidden = ~every.visible[0, 0].cpu().numpy()
        for name, own in writers.items():
            values: Tensor = getattr(every, name)[0, list(heads)]
            entries = values.float().cpu().numpy()
            for writer in own:
                writer.add(part, entries, hidden)
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
