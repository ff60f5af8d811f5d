"""Tiles of one capture for a viewer: exact where they can be, labelled as a preview where not.

`position` multiplies the positional part of the scores (captures/scaled_position.py).

A tile is 256 x 256 cells, a cell 2^level x 2^level pairs, anchored to tokens. Level 0 is exact
always. Zoomed out, closed forms are exact at once; otherwise every pair is visited up to
FOREGROUND pairs. Beyond that the weights' overview is computed in the background and, until it is
there, whole rows at even spacing stand in: a preview. Least and greatest scores of so many pairs
stay a preview, from some pairs of every cell; their mean is exact.

A very long capture has no log-sum-exp. It is computed for the rows looked at and kept; a finished
overview gives all of it.
"""

import threading
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Final

import numpy as np
from jaxtyping import Float, Float64

from headscape.captures.overview_file import OverviewJob, Progress, overview_level
from headscape.captures.pack import Pack
from headscape.captures.pooling import (
    REDUCTIONS,
    CellGrid,
    ClosedBias,
    Pooled,
    Reduction,
    WeightCells,
    bias_block,
    pool,
    sampled_cells,
    weight_cells,
)
from headscape.captures.profile import HeadProfile, Minus, profile
from headscape.captures.saved_call import SavedCall
from headscape.captures.scaled_position import ScaledPosition
from headscape.errors import InputError

TILE: Final = 256
"""Cells a side of a tile."""
FOREGROUND: Final = 1 << 28
"""Pairs that are visited while somebody waits."""


KEPT_FACTORS: Final = 64
"""Layers with their positional part scaled that are kept."""


@dataclass(frozen=True, kw_only=True)
class MapRequest:
    """Which map of a capture is asked for."""

    layer: int
    """Counted from 0, as the head is."""
    head: int
    quantity: str
    minus: Minus = "nothing"
    """What is taken away from the map: its means by row or by distance."""
    position: float = 1.0
    """Factor of the positional part of the scores."""


@dataclass(frozen=True, eq=False)
class Tile:
    """Reduced maps of a tile; those named in `exact` are."""

    values: Mapping[Reduction, Float[np.ndarray, "r c"]]
    exact: tuple[Reduction, ...] = REDUCTIONS
    progress: Progress | None = None
    """Of the job that will make it exact."""


@dataclass(eq=False)
class Tiles:
    """Everything computed for one capture; safe to use from several threads."""

    pack: Pack
    _pooled: dict[int, Pooled] = field(default_factory=dict, init=False)
    _norms: dict[tuple[int, int], np.ndarray] = field(default_factory=dict, init=False)
    _profiles: dict[MapRequest, HeadProfile] = field(default_factory=dict, init=False)
    _previews: dict[tuple[Any, ...], Tile] = field(default_factory=dict, init=False)
    _jobs: dict[tuple[int, int], OverviewJob] = field(default_factory=dict, init=False)
    _scaled: dict[tuple[int, float], ScaledPosition] = field(default_factory=dict, init=False)
    _overviews: dict[tuple[int, int], WeightCells] = field(default_factory=dict, init=False)
    _lock: threading.RLock = field(default_factory=threading.RLock, init=False)

    def tile(self, asked: MapRequest, level: int, row: int, column: int) -> Tile:
        """Return one tile of a map.

        Args:
            asked: The map.
            level: A cell is 2^level tokens a side.
            row: Row of tiles, counted from 0.
            column: Column of tiles, counted from 0.
        """
        quantity, layer = asked.quantity, asked.layer
        saved, at = self._layer(asked), self.pack.head_index(asked.head)
        grid = _grid(saved.length, level, row, column, saved)
        if level == 0:
            # A tile is sent as float32; where heads are mixed it is computed so, in half the time.
            dtype = np.float32 if saved.mixes_heads else np.float64
            exact = self.values(asked, grid.rows, grid.cols, blank=np.nan, dtype=dtype)
            return Tile(dict.fromkeys(REDUCTIONS, exact))
        if isinstance(saved, ScaledPosition):
            if self._cost(saved, quantity, grid) > FOREGROUND:
                raise InputError("with position scaled this map is too large at once: zoom in.")
            return Tile(pool(grid, partial(self.values, asked, blank=np.nan)))
        taken = self._minus(asked)
        pooled, norms = self._pool(layer), self._norms_of(layer)
        quick: list[Reduction] = [how for how in REDUCTIONS if pooled.closed(quantity, how, taken)]
        slow = len(quick) < len(REDUCTIONS) and self._cost(saved, quantity, grid) > FOREGROUND
        # What is taken away is known for moderate lengths only, so every pair can be visited.
        if not slow or taken is not None:
            dtype = np.float64 if grid.pairs < 1 << 22 else np.float32
            values = pooled.cells(quantity, at, grid, minus=taken, norms=norms, dtype=dtype)
            return Tile(values)
        if quantity == "weights":
            overview = self._overview(layer, asked.head)
            if isinstance(overview, WeightCells) and level >= overview_level(saved.length):
                coarse, cells = overview.coarser(level - overview_level(saved.length)), grid.cells
                return Tile({how: coarse.values(how)[cells] for how in REDUCTIONS})
            waits = overview if isinstance(overview, Progress) else None
            return self._preview(layer, asked.head, grid, waits)
        values = pooled.cells(quantity, at, grid, quick)
        return Tile(sampled_cells(saved, at, quantity, grid) | values, tuple(quick))

    def difference(
        self,
        other: "Tiles",
        asked: MapRequest,
        level: int,
        row: int,
        column: int,
    ) -> Tile:
        """Return one tile of this map minus another capture's, over the tokens both have."""
        length = min(self.pack.length, other.pack.length)
        grid = _grid(length, level, row, column, self.pack.layer(asked.layer))
        if grid.pairs > FOREGROUND:
            raise InputError("this difference is too large to compute at once: zoom in.")

        def block(rows: slice, cols: slice) -> np.ndarray:
            ours, theirs = (each.values(asked, rows, cols, blank=np.nan) for each in (self, other))
            apart: np.ndarray = ours - theirs
            return apart

        if level == 0:
            return Tile(dict.fromkeys(REDUCTIONS, block(grid.rows, grid.cols)))
        return Tile(pool(grid, block))

    def values(
        self,
        asked: MapRequest,
        rows: slice,
        cols: slice,
        *,
        blank: float | None = None,
        dtype: Any = np.float64,
    ) -> Float[np.ndarray, "r c"]:
        """Return exact values.

        Args:
            asked: The map.
            rows: Queries.
            cols: Keys.
            blank: Value of hidden pairs; by default NaN, and 0 in weights.
            dtype: What the scores are computed in.
        """
        saved, at = self._layer(asked), self.pack.head_index(asked.head)
        lse = None
        if asked.quantity == "weights" and not isinstance(saved, ScaledPosition):
            lse = self._norms_of(asked.layer)(at, rows)
        values = saved.block(asked.quantity, at, rows, cols, lse=lse, dtype=dtype)
        taken = self._minus(asked)
        if taken is not None:
            values = values - bias_block(taken, rows, cols)
        hidden = 0.0 if asked.quantity == "weights" and taken is None else np.nan
        seen = saved.visible(rows, cols)
        return np.where(seen, values, hidden if blank is None else blank)

    def profile(self, asked: MapRequest) -> HeadProfile:
        """Return the head's map by distance and by query, before anything is taken away."""
        key = replace(asked, minus="nothing")
        with self._lock:
            if key not in self._profiles:
                self._profiles[key] = profile(
                    self._layer(asked),
                    self.pack.head_index(asked.head),
                    asked.quantity,
                    norms=self._norms_of(asked.layer),
                )
            return self._profiles[key]

    def stop(self) -> None:
        """End all background jobs."""
        for job in self._jobs.values():
            job.stop()

    def _layer(self, asked: MapRequest) -> SavedCall:
        """Return the layer with its positional part multiplied by the factor asked for."""
        layer, position = asked.layer, asked.position
        if position == 1:
            return self.pack.layer(layer)
        with self._lock:
            if (layer, position) not in self._scaled:
                for old in list(self._scaled)[: 1 - KEPT_FACTORS]:
                    del self._scaled[old]
                scaled = ScaledPosition.of(self.pack.layer(layer), position)
                self._scaled[layer, position] = scaled
            return self._scaled[layer, position]

    def _minus(self, asked: MapRequest) -> ClosedBias | None:
        return None if asked.minus == "nothing" else self.profile(asked).minus(asked.minus)

    def _pool(self, layer: int) -> Pooled:
        with self._lock:
            if layer not in self._pooled:
                self._pooled[layer] = Pooled(self.pack.layer(layer))
            return self._pooled[layer]

    def _cost(self, saved: SavedCall, quantity: str, grid: CellGrid) -> int:
        """Pairs to visit, those of missing log-sum-exps included."""
        heads = 32 if saved.mixes_heads else 1
        rows = grid.rows
        scaled = isinstance(saved, ScaledPosition)
        if quantity == "weights" and saved.lse is None and (saved.has_norms or scaled):
            pairs: int = (rows.stop - rows.start) * (
                rows.stop if saved.orders_keys else saved.length
            )
            return pairs
        return grid.pairs * heads

    def _norms_of(self, layer: int) -> Any:
        """Log-sum-exp of a layer's rows: stored, or computed once where looked at."""
        saved = self.pack.layer(layer)

        def norms(head: int, rows: slice) -> Float64[np.ndarray, " r"] | None:
            if not saved.has_norms:
                return None
            if saved.lse is not None:
                return saved.lse[head, rows]
            with self._lock:
                known = self._norms.setdefault((layer, head), np.full(saved.length, np.nan))
            missing = np.flatnonzero(np.isnan(known[rows]))
            if len(missing):
                part = slice(rows.start + int(missing[0]), rows.start + int(missing[-1]) + 1)
                known[part] = saved.log_sum_exp([head], part, dtype=np.float32)[0]
            return known[rows]

        return norms

    def _overview(self, layer: int, head: int) -> WeightCells | Progress | None:
        """The weights' overview, or how far it is; None where the capture is not a file."""
        if self.pack.path is None:
            return None
        with self._lock:
            if (layer, head) in self._overviews:
                return self._overviews[layer, head]
            job = self._jobs.setdefault((layer, head), OverviewJob(self.pack.path, layer, head))
            job.start()
            overview = job.result()
            if overview is None:
                return job.progress()
            self._overviews[layer, head] = overview
            self._norms[layer, self.pack.head_index(head)] = overview.lse
            return overview

    def _preview(self, layer: int, head: int, grid: CellGrid, progress: Progress | None) -> Tile:
        key = (layer, head, grid.level, grid.cell_rows.start, grid.cell_cols.start)
        if key not in self._previews:
            saved, at = self.pack.layer(layer), self.pack.head_index(head)
            some = weight_cells(saved, at, grid.level, grid.cell_rows, samples=1)
            part = slice(grid.cell_cols.start, grid.cell_cols.stop)
            self._previews[key] = Tile({how: some.values(how)[:, part] for how in REDUCTIONS})
        return Tile(self._previews[key].values, (), progress)


def _grid(length: int, level: int, row: int, column: int, layer: SavedCall) -> CellGrid:
    coarsest = (length - 1).bit_length()
    cells = -(-length // (1 << level)) if 0 <= level <= coarsest else 0
    if not (0 <= row * TILE < cells and 0 <= column * TILE < cells):
        raise InputError(f"there is no tile ({row}, {column}) at level {level}.")
    spans = [range(x * TILE, min(cells, (x + 1) * TILE)) for x in (row, column)]
    return replace(CellGrid.of(layer, level, spans[0], spans[1]), length=length)
