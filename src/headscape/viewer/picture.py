"""A still picture of some heads, for places where the viewer cannot run: an exported notebook."""

import io
from typing import Final

import numpy as np
from jaxtyping import Float, UInt8
from PIL import Image

from headscape.captures.browser import Pack
from headscape.captures.pooling import Grid, Pooled, weight_cells

SIDE: Final = 128
"""Pixels a side of a head, at most; cells are whole powers of two of tokens."""
GAP: Final = 4
HIDDEN: Final = (232, 232, 232)
"""Colour of pairs that no query sees."""
RAMP: Final = np.array(
    [[253, 250, 205], [254, 198, 122], [240, 120, 87], [184, 55, 110], [96, 30, 110], [20, 12, 60]]
)
"""Light to dark in even steps of lightness, readable without colour."""


def picture(pack: Pack, layer: int, quantity: str, heads: list[int]) -> bytes:
    """A PNG with one panel per head (counted from 0), four in a row."""
    panels = [_panel(pack, layer, quantity, head) for head in heads]
    side, across = len(panels[0]), min(4, len(panels))
    down = -(-len(panels) // across)
    sheet = np.full((down * (side + GAP) - GAP, across * (side + GAP) - GAP, 3), 255, np.uint8)
    for number, panel in enumerate(panels):
        y, x = (side + GAP) * (number // across), (side + GAP) * (number % across)
        sheet[y : y + side, x : x + side] = panel
    file = io.BytesIO()
    Image.fromarray(sheet).save(file, format="PNG")
    return file.getvalue()


def _panel(pack: Pack, layer: int, quantity: str, head: int) -> UInt8[np.ndarray, "r r 3"]:
    factors, at = pack.layer(layer), pack.head_index(head)
    level = max(0, (-(-pack.length // SIDE) - 1).bit_length())
    cells = range(-(-pack.length // (1 << level)))
    if quantity == "weights":
        sampled = None if factors.lse is not None else 1
        values = weight_cells(factors, at, level, cells, samples=sampled).values("max")
    else:
        grid = Grid.of(factors, level, cells, cells)
        values = Pooled(factors).cells(quantity, at, grid, ["mean"])["mean"]
    return paint(values)


def paint(values: Float[np.ndarray, "r c"]) -> UInt8[np.ndarray, "r c 3"]:
    """Least value light, greatest dark; hidden pairs grey."""
    seen = np.isfinite(values)
    low, high = (values[seen].min(), values[seen].max()) if seen.any() else (0.0, 1.0)
    share = np.where(seen, values - low, 0.0) / (high - low if high > low else 1.0)
    at = share * (len(RAMP) - 1)
    below = np.minimum(at.astype(np.int64), len(RAMP) - 2)
    mixed = RAMP[below] + (at - below)[..., None] * (RAMP[below + 1] - RAMP[below])
    return np.where(seen[..., None], mixed, HIDDEN).astype(np.uint8)
