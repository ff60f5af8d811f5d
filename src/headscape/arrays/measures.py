"""Numbers behind the captions: one record per layer and head.

`shift_invariance`  1 - (squares left within diagonals) / (squares about the mean): how much of a
                    map's variance i - j explains. Exactly 1.0 for a Toeplitz map.
`effective_reach`   the least distance that contains 90% of a query's attention weight; per head the
                    median and the mean over queries. Both sides count where attention looks ahead.
`head_similarity`   Pearson correlation between the heads' maps; 0 for a constant map, which has no
                    most similar head.

Context-dependence, which needs many sequences, is in `context.py`. All work on [h t s] arrays with
NaN where a key is invisible (0 in weights). `Measures` puts them together for one or more layers;
how it is written as CSV, HTML and so on is in `measures_table.py`.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from jaxtyping import Float

from headscape.arrays import measures_table
from headscape.arrays.capture_file import CaptureData
from headscape.arrays.choice import choose_layer, choose_quantity
from headscape.arrays.context import ContextDependence
from headscape.arrays.measures_table import Record
from headscape.errors import InputError
from headscape.io.table_text import markdown_text


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
                    maps=capture.visible(layer, quantity),
                    weights=capture.values(layer, "weights") if has_weights else None,
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


def measure_layer(
    *,
    layer: int,
    heads: tuple[int, ...],
    maps: Float[np.ndarray, "h t t"],
    weights: Float[np.ndarray, "h t t"] | None = None,
    context: ContextDependence | None = None,
) -> LayerMeasures:
    """Return the measures of one sequence's maps, with `context` from many sequences."""
    median, mean = (None, None) if weights is None else effective_reach(weights)
    return LayerMeasures(
        layer=layer,
        heads=heads,
        context=context,
        shift=tuple(shift_invariance(maps).tolist()),
        reach_median=None if median is None else tuple(median.tolist()),
        reach_mean=None if mean is None else tuple(mean.tolist()),
        similarity=tuple(tuple(row) for row in head_similarity(maps).tolist()),
    )


def shift_invariance(maps: Float[np.ndarray, "h t t"]) -> Float[np.ndarray, " h"]:
    """Return the share of each map's variance over visible entries that i - j explains."""
    visible = np.isfinite(maps).all(axis=0)
    if not visible.any():
        raise InputError("no pair of tokens has a finite value in every head to be measured.")
    queries, keys = np.nonzero(visible)
    distance = queries - keys
    distance -= distance.min()
    entries = maps[:, queries, keys].astype(np.float64)
    count = np.maximum(np.bincount(distance), 1)
    _, first = np.unique(distance, return_index=True)
    origin = np.zeros(len(count), dtype=np.int64)
    origin[distance[first]] = first
    shares = np.ones(len(maps))
    for head, values in enumerate(entries):
        # Relative to one entry of the same diagonal, so that equal entries leave exactly 0.
        left = values - values[origin[distance]]
        within = np.bincount(distance, left**2) - np.bincount(distance, left) ** 2 / count
        total = ((values - values.mean()) ** 2).sum()
        if total > 0:
            shares[head] = 1 - max(within.sum(), 0.0) / total
    return np.maximum(shares, 0.0)


def effective_reach(
    weights: Float[np.ndarray, "h t t"], share: float = 0.9
) -> tuple[Float[np.ndarray, " h"], Float[np.ndarray, " h"]]:
    """Return median and mean over queries of the distance that contains `share` of the weight."""
    heads, length, _ = weights.shape
    reach = np.empty((heads, length))
    for query in range(length):
        behind = weights[:, query, query::-1].astype(np.float64)
        ahead = weights[:, query, query + 1 :].astype(np.float64)
        near = np.zeros((heads, length))
        near[:, : query + 1] += behind
        near[:, 1 : length - query] += ahead
        within = near.cumsum(axis=1)
        reach[:, query] = (within < share * within[:, -1:]).sum(axis=1)
    return np.median(reach, axis=1), reach.mean(axis=1)


def head_similarity(maps: Float[np.ndarray, "h t s"]) -> Float[np.ndarray, "h h"]:
    """Return the correlation of every pair of heads over visible entries."""
    entries = maps[:, np.isfinite(maps).all(axis=0)].astype(np.float64)
    entries = entries - entries.mean(axis=1, keepdims=True)
    # A rounded mean leaves a constant map with residuals that would correlate.
    entries[entries.min(axis=1) == entries.max(axis=1)] = 0
    size = np.sqrt((entries**2).sum(axis=1))
    unit = entries / np.where(size > 0, size, 1.0)[:, None]
    similarity: np.ndarray = np.clip(unit @ unit.T, -1, 1)
    np.fill_diagonal(similarity, 1.0)
    return similarity


def _tuples(value: Any) -> Any:
    """Return JSON data with tuples in place of lists."""
    if isinstance(value, list):
        return tuple(_tuples(each) for each in value)
    if isinstance(value, dict):
        return {name: _tuples(each) for name, each in value.items()}
    return value
