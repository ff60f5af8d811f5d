"""Numbers behind the captions: one record per layer and head.

`shift_invariance`  1 - (squares left within diagonals) / (squares about the mean): how much of a
                    map's variance i - j explains. Exactly 1.0 for a Toeplitz map.
`effective_reach`   the least distance that contains 90% of a query's attention weight; per head the
                    median and the mean over queries. Both sides count where attention looks ahead.
`head_similarity`   Pearson correlation between the heads' maps; 0 for a constant map, which has no
                    most similar head.

Context-dependence, which needs many sequences, is in `context.py`. All work on [h t s] arrays with
NaN where a key is invisible (NaN or 0 in weights), or on blocks of their rows, so that the maps of
a long capture are never whole in memory. `Measures` puts them together for one or more layers;
how it is written as CSV, HTML and so on is in `measures_table.py`.
"""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from jaxtyping import Float, Float64, Int64

from headscape.captures.capture_file import CaptureData
from headscape.captures.choice import choose_layer, choose_quantity
from headscape.captures.saved_call import rows_at_once
from headscape.errors import InputError
from headscape.io.table_text import markdown_text
from headscape.measures import measures_table
from headscape.measures.context import ContextDependence
from headscape.measures.measures_table import Record


@dataclass(frozen=True, eq=False)
class RowBlocks:
    """Maps of one layer that are read a few rows at a time, as often as needed."""

    heads: int
    length: int
    read: Callable[[], Iterable[tuple[slice, Float[np.ndarray, "h r c"]]]]
    """Yields rows and their values from key 0 on; NaN where a key is invisible."""

    @classmethod
    def of(cls, maps: "Float[np.ndarray, 'h t t'] | RowBlocks") -> "RowBlocks":
        """Return the blocks of maps in memory."""
        if isinstance(maps, RowBlocks):
            return maps
        heads, length, _ = maps.shape

        def read() -> Iterator[tuple[slice, np.ndarray]]:
            return ((rows, maps[:, rows]) for rows in rows_at_once(heads, length))

        return cls(heads, length, read)

    def entries(self) -> Iterator[tuple[Int64[np.ndarray, " n"], Float64[np.ndarray, "h n"]]]:
        """Yield diagonals, numbered from the last key's on, and values of visible entries."""
        for rows, block in self.read():
            queries, keys = np.nonzero(np.isfinite(block).all(axis=0))
            if len(keys):
                diagonal = queries + rows.start - keys + self.length - 1
                yield diagonal, block[:, queries, keys].astype(np.float64)


@dataclass(frozen=True, kw_only=True)
class LayerMeasures:
    """The measures of one layer; a measure whose quantity was not captured is None."""

    layer: int
    """Counted from 0."""
    heads: tuple[int, ...]
    """Heads measured, counted from 0; every per-head tuple follows this order."""
    context: ContextDependence | None = None
    shift: tuple[float, ...]
    reach_median: tuple[float, ...] | None = None
    reach_mean: tuple[float, ...] | None = None
    similarity: tuple[tuple[float, ...], ...]

    def records(self) -> list[Record]:
        """Return one record per head."""
        nearest = self._most_similar()
        rows: list[Record] = []
        for row, head in enumerate(self.heads):
            other = nearest[row]
            low, high = self.context.head_intervals[row] if self.context else (None, None)
            rows.append(
                {
                    "layer": self.layer,
                    "head": head,
                    "context_dependence": self.context.heads[row] if self.context else None,
                    "low": low,
                    "high": high,
                    "shift_invariance": self.shift[row],
                    "reach_median": self.reach_median[row] if self.reach_median else None,
                    "reach_mean": self.reach_mean[row] if self.reach_mean else None,
                    "most_similar_head": None if other is None else self.heads[other],
                    "similarity": None if other is None else self.similarity[row][other],
                }
            )
        return rows

    def _most_similar(self) -> list[int | None]:
        """Return for each head the index of the most similar one; None if its map is constant."""
        others = np.array(self.similarity)
        np.fill_diagonal(others, 0)
        # Only a constant map has a correlation of exactly 0 with every other.
        constant = ~others.any(axis=1)
        others[constant], others[:, constant] = -np.inf, -np.inf
        np.fill_diagonal(others, -np.inf)
        best = others.argmax(axis=1).tolist()
        return [at if others[row, at] > -np.inf else None for row, at in enumerate(best)]


@dataclass(frozen=True, kw_only=True, repr=False)
class Measures:
    """Numbers per layer and head of one capture.

    Example:
        >>> import headscape as hs
        >>> model = hs.load(hs.GPT2.from_preset("nano", encoding="alibi", vocabulary=257))
        >>> row = model.capture([5, 6, 7, 8]).measures().rows()[0]
        >>> row["layer"], row["head"], row["shift_invariance"]
        (1, 0, 1.0)
    """

    quantity: str
    """The quantity measured: `bias`, or `final` for the scores themselves."""
    layers: tuple[LayerMeasures, ...]

    @classmethod
    def of(
        cls,
        capture: CaptureData,
        quantity: str | None = None,
        layers: Sequence[int] | None = None,
        *,
        context: ContextDependence | Mapping[int, ContextDependence] | None = None,
    ) -> "Measures":
        """Return the measures of a capture, which must not be reduced.

        `layers` count from 0, -1 is the last; by default all captured ones. `context` is the
        context-dependence over several sequences, of the only layer or by layer.
        """
        if capture.resolution is not None:
            raise InputError(
                f"a capture reduced to {capture.resolution} cells cannot be measured exactly; "
                "capture a shorter sequence without --resolution."
            )
        quantity = choose_quantity(quantity, capture)
        asked = capture.layers if layers is None else layers
        chosen = [choose_layer(layer, capture.layers) for layer in asked]
        if isinstance(context, ContextDependence):
            if len(chosen) != 1:
                raise InputError(
                    f"context-dependence of one layer is given for {len(chosen)} layers; give a "
                    "mapping from layer to context-dependence."
                )
            context = {chosen[0]: context}
        has_weights = "weights" in capture.quantities
        return cls(
            quantity=quantity,
            layers=tuple(
                measure_layer(
                    layer=layer,
                    heads=capture.heads,
                    maps=_blocks(capture, layer, quantity),
                    weights=_blocks(capture, layer, "weights") if has_weights else None,
                    context=(context or {}).get(layer),
                )
                for layer in chosen
            ),
        )

    def rows(self) -> list[Record]:
        """Return one record per layer and head, both counted from 0; None is not measured."""
        return [record for layer in self.layers for record in layer.records()]

    def to_json(self) -> str:
        """Return JSON text that `from_json` reads back; layers and heads count from 0."""
        return json.dumps(asdict(self), indent=2, allow_nan=False) + "\n"

    @classmethod
    def from_json(cls, text: str) -> "Measures":
        """Return the measures that `to_json` wrote."""
        read = _tuples(json.loads(text))
        return cls(
            quantity=read["quantity"],
            layers=tuple(
                LayerMeasures(**layer | {"context": ContextDependence(**found) if found else None})
                for layer in read["layers"]
                for found in [layer["context"]]
            ),
        )

    def to_csv(self, first: int = 0) -> str:
        """Return CSV text with a header; layers and heads count from `first`."""
        return measures_table.to_csv(self.rows(), first)

    def to_markdown(self, first: int = 1) -> str:
        """Return a Markdown table of what was measured; layers and heads count from `first`."""
        return measures_table.to_markdown(self.rows(), first)

    def to_html(self, first: int = 1) -> str:
        """Return an HTML table of what was measured; layers and heads count from `first`."""
        return measures_table.to_html(self.rows(), first)

    def to_frame(self) -> Any:
        """Return a pandas DataFrame of the rows; layers and heads count from 0."""
        return measures_table.to_frame(self.rows())

    def _repr_html_(self) -> str:
        return self.to_html(first=0)

    def __repr__(self) -> str:
        heads = sum(len(layer.heads) for layer in self.layers)
        return f"<Measures of {self.quantity}: {len(self.layers)} layers, {heads} heads>"


def written(files: Mapping[str, Measures], form: str) -> str:
    """Return the measures of several captures, by name, as `csv`, `json` or `md`.

    Layers and heads count from 1 in csv and md, from 0 in json. Names stand in a first column of
    csv and above each table of md, if there are several.
    """
    alone = len(files) == 1
    if form == "csv":
        parts = [(name, each.rows()) for name, each in files.items()]
        return measures_table.to_csv(parts[0][1], 1) if alone else measures_table.join_csv(parts, 1)
    if form == "md":
        heads = {name: "" if alone else f"## {markdown_text(name)}\n\n" for name in files}
        return "\n".join(heads[name] + each.to_markdown() for name, each in files.items())
    if form == "json":
        if alone:
            return next(iter(files.values())).to_json()
        whole = {name: json.loads(each.to_json()) for name, each in files.items()}
        return json.dumps(whole, indent=2, allow_nan=False, ensure_ascii=False) + "\n"
    raise InputError(f"measures cannot be written as {form!r}; choose csv, json or md.")


def _blocks(capture: CaptureData, layer: int, quantity: str) -> RowBlocks:
    def read() -> Iterator[tuple[slice, np.ndarray]]:
        return capture.row_blocks(quantity, layer, capture.heads)

    return RowBlocks(len(capture.heads), capture.length, read)


def measure_layer(
    *,
    layer: int,
    heads: tuple[int, ...],
    maps: Float[np.ndarray, "h t t"] | RowBlocks,
    weights: Float[np.ndarray, "h t t"] | RowBlocks | None = None,
    context: ContextDependence | None = None,
) -> LayerMeasures:
    """Return the measures of one sequence's maps, with `context` from many sequences."""
    median, mean = (None, None) if weights is None else effective_reach(weights)
    shift, similarity = _compare_entries(RowBlocks.of(maps))
    return LayerMeasures(
        layer=layer,
        heads=heads,
        context=context,
        shift=tuple(shift.tolist()),
        reach_median=None if median is None else tuple(median.tolist()),
        reach_mean=None if mean is None else tuple(mean.tolist()),
        similarity=tuple(tuple(row) for row in similarity.tolist()),
    )


def shift_invariance(maps: Float[np.ndarray, "h t t"] | RowBlocks) -> Float[np.ndarray, " h"]:
    """Return the share of each map's variance over visible entries that i - j explains."""
    return _compare_entries(RowBlocks.of(maps))[0]


def head_similarity(maps: Float[np.ndarray, "h t t"] | RowBlocks) -> Float[np.ndarray, "h h"]:
    """Return the correlation of every pair of heads over visible entries."""
    return _compare_entries(RowBlocks.of(maps))[1]


def effective_reach(
    weights: Float[np.ndarray, "h t t"] | RowBlocks, share: float = 0.9
) -> tuple[Float[np.ndarray, " h"], Float[np.ndarray, " h"]]:
    """Return median and mean over queries of the distance that contains `share` of the weight.

    An entry that is not finite is invisible, and a query without any weight does not count.
    """
    blocks = RowBlocks.of(weights)
    reach = np.full((blocks.heads, blocks.length), np.nan)
    for rows, block in blocks.read():
        visible = np.where(np.isfinite(block), block, 0.0).astype(np.float64)
        for query in range(rows.start, rows.stop):
            values = visible[:, query - rows.start]
            ahead = values[:, query + 1 :]
            near = np.zeros((blocks.heads, max(query, ahead.shape[1]) + 1))
            near[:, : query + 1] += values[:, query::-1]
            near[:, 1 : ahead.shape[1] + 1] += ahead
            within = near.cumsum(axis=1)
            distance = (within < share * within[:, -1:]).sum(axis=1)
            reach[:, query] = np.where(within[:, -1] > 0, distance, np.nan)
    if np.isnan(reach).all(axis=1).any():
        raise InputError("a head has no finite attention weight, so its reach cannot be measured.")
    return np.nanmedian(reach, axis=1), np.nanmean(reach, axis=1)


def _compare_entries(
    blocks: RowBlocks,
) -> tuple[Float[np.ndarray, " h"], Float[np.ndarray, "h h"]]:
    """Return shift-invariance and similarity of heads, from two passes over their rows.

    The first pass finds every head's mean and the first entry of every diagonal; the second sums
    squares and products of what differs from them.
    """
    diagonals = 2 * blocks.length - 1
    origin = np.zeros((blocks.heads, diagonals))
    count = np.zeros(diagonals, dtype=np.int64)
    total = np.zeros(blocks.heads)
    low, high = np.full(blocks.heads, np.inf), np.full(blocks.heads, -np.inf)
    for diagonal, values in blocks.entries():
        found, first = np.unique(diagonal, return_index=True)
        fresh = count[found] == 0
        origin[:, found[fresh]] = values[:, first[fresh]]
        count += np.bincount(diagonal, minlength=diagonals)
        total += values.sum(axis=1)
        low, high = np.minimum(low, values.min(axis=1)), np.maximum(high, values.max(axis=1))
    if not count.any():
        raise InputError("a head has no finite score, so it cannot be measured.")
    mean = total / count.sum()
    left, squares = np.zeros((2, blocks.heads, diagonals))
    products = np.zeros((blocks.heads, blocks.heads))
    for diagonal, values in blocks.entries():
        for head, each in enumerate(values):
            # Relative to one entry of the same diagonal, so that equal entries leave exactly 0.
            off = each - origin[head, diagonal]
            left[head] += np.bincount(diagonal, off, minlength=diagonals)
            squares[head] += np.bincount(diagonal, off**2, minlength=diagonals)
        centred = values - mean[:, None]
        products += centred @ centred.T
    within = np.maximum((squares - left**2 / np.maximum(count, 1)).sum(axis=1), 0.0)
    variance = np.diag(products).copy()
    # A rounded mean leaves a constant map with residuals that would correlate.
    constant = low == high
    shift = np.where(constant, 1.0, 1 - within / np.where(constant, 1.0, variance))
    size = np.where(constant | (variance == 0), np.inf, np.sqrt(variance))
    similarity = np.clip(products / size / size[:, None], -1, 1)
    np.fill_diagonal(similarity, 1.0)
    return np.maximum(shift, 0.0), similarity


def _tuples(value: Any) -> Any:
    """Return JSON data with tuples in place of lists."""
    if isinstance(value, list):
        return tuple(_tuples(each) for each in value)
    if isinstance(value, dict):
        return {name: _tuples(each) for name, each in value.items()}
    return value
