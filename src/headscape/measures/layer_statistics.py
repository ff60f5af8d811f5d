"""One layer's measures from its attention inputs, a block of queries at a time."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from headscape.call.definition import AttentionCall, scores
from headscape.measures.map_cells import MapCells
from headscape.measures.rotation_measures import (
    band_use,
    closed_form,
    massive_ratio,
    r_squared,
    wavelengths,
)
from headscape.measures.row_blocks import Rows
from headscape.measures.score_totals import ScoreTotals
from headscape.measures.weight_totals import WeightTotals

Progress = Callable[[int], None]
"""Called with the number of queries just done."""


@dataclass(frozen=True, kw_only=True)
class LayerStatistics:
    """The measures of one layer for every sequence of a batch."""

    measures: dict[str, Float[np.ndarray, "b h"]]
    slash: Float[np.ndarray, "b h n"]
    """Mean weight at each distance of `Rows.slashes`."""
    kernel: Float[np.ndarray, "b h n"]
    """Mean final score at distances 1 - T to T - 1; NaN where none is visible."""
    bias_kernel: Float[np.ndarray, "b h n"]
    """Mean positional part at the same distances."""
    closed_form: Float[np.ndarray, "b h n"] | None
    bands: Float[np.ndarray, "b h m"] | None
    map: Float[np.ndarray, "h c c"]
    """Mean weight by cells of queries and keys."""


def layer_statistics(
    inputs: AttentionCall,
    *,
    context: int | None = None,
    sample: int | None = None,
    progress: Progress = lambda _: None,
) -> LayerStatistics:
    """Return what one layer does with a batch of sequences of equal length.

    `context` is the trained length, which decides what a low band is. With `sample`, only so many
    late queries are looked at, for sequences whose whole maps would take too long.
    """
    batch, heads, length, _ = inputs.q.shape
    rows = Rows(length, inputs.visible.causal, sample)
    totals, weights = ScoreTotals(rows, batch, heads), WeightTotals(rows, batch, heads)
    cells = MapCells(length, heads)
    for band, block in rows.blocks(batch * heads):
        found = scores(inputs, block)
        totals.add(band, block, found)
        weights.add(block, found)
        cells.add(block, found.weights)
        progress(block.stop - block.start)
    measures = {
        "position_share": totals.position_share(),
        "absolute_leak": totals.absolute_leak(),
        "decay": totals.decay(),
        **weights.measures(),
    }
    fit, bands = closed_form(inputs), band_use(inputs)
    if fit is not None:
        measures["closed_form_r2"] = r_squared(totals.kernel(), fit, totals.count.sum(dim=0))
    tokens_per_turn = wavelengths(inputs)
    if bands is not None and tokens_per_turn is not None:
        slow = tokens_per_turn > (context or length)
        measures["low_band"] = bands[..., slow].sum(dim=-1)
    massive = massive_ratio(inputs)
    if massive is not None:
        measures["massive_ratio"] = massive
    return LayerStatistics(
        measures={name: _array(value) for name, value in measures.items()},
        slash=_array(weights.slash()),
        kernel=_array(totals.kernel()),
        bias_kernel=_array(totals.bias_kernel()),
        closed_form=None if fit is None else _array(fit),
        bands=None if bands is None else _array(bands),
        map=_array(cells.mean()),
    )


def _array(value: Tensor) -> np.ndarray:
    found: np.ndarray = value.detach().to(torch.float64).cpu().numpy()
    return found
