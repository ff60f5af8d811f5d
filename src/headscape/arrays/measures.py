"""Numbers behind the captions, from whole maps of one layer.

`shift_invariance`  1 - (squares left within diagonals) / (squares about the mean): how much of a
                    map's variance i - j explains. Exactly 1.0 for a Toeplitz map.
`effective_reach`   the least distance that holds 90% of a query's attention weight; per head the
                    median and the mean over queries. Both sides count where attention looks ahead.
`head_similarity`   Pearson correlation between the heads' maps; 0 with a constant one.

Context-dependence, which needs many sequences, is in `context.py`. All work on [h t s] arrays with
NaN where a key is invisible (0 in weights).
"""

import json
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from jaxtyping import Float

from headscape.arrays.context import ContextDependence


@dataclass(frozen=True, kw_only=True)
class Measures:
    """All measures of one layer; a measure whose quantity was not captured is None."""

    layer: int
    heads: tuple[int, ...]
    """Heads measured, counted from 0; every per-head tuple follows this order."""
    quantity: str
    """What the maps hold: `bias`, or `final` for the scores themselves."""
    context: ContextDependence | None = None
    shift: tuple[float, ...] | None = None
    reach_median: tuple[float, ...] | None = None
    reach_mean: tuple[float, ...] | None = None
    similarity: tuple[tuple[float, ...], ...] | None = None

    def to_json(self) -> str:
        """JSON text that `from_json` reads back."""
        return json.dumps(asdict(self), indent=2, allow_nan=False) + "\n"

    @classmethod
    def from_json(cls, text: str) -> "Measures":
        """The measures that `to_json` wrote."""
        held = json.loads(text)
        if held["context"] is not None:
            held["context"] = ContextDependence(**_tuples(held["context"]))
        return cls(**_tuples(held))

    def rows(self) -> tuple[list[str], list[list[str]]]:
        """Column names, and one row of text per head."""
        names, columns = ["head"], [[str(head + 1) for head in self.heads]]
        if self.context is not None:
            names += ["context-dependence", "95% interval"]
            columns.append([f"{x:.3g}" for x in self.context.heads])
            columns.append([f"{a:.3g} to {b:.3g}" for a, b in self.context.head_intervals])
        for name, values, form in (
            ("shift-invariance", self.shift, ".4g"),
            ("reach (median)", self.reach_median, ".0f"),
            ("reach (mean)", self.reach_mean, ".1f"),
            ("most similar head", self._nearest(), ""),
        ):
            if values is not None:
                names.append(name)
                columns.append([format(value, form) for value in values])
        return names, [list(row) for row in zip(*columns, strict=True)]

    def to_markdown(self) -> str:
        """The rows as a Markdown table."""
        names, rows = self.rows()
        lines = [names, ["---:"] * len(names), *rows]
        return "".join(f"| {' | '.join(line)} |\n" for line in lines)

    def _nearest(self) -> tuple[str, ...] | None:
        if self.similarity is None or len(self.heads) < 2:
            return None
        others = np.array(self.similarity)
        np.fill_diagonal(others, -np.inf)
        best = others.argmax(axis=1)
        return tuple(
            f"{self.heads[k] + 1} ({others[row, k]:.2f})" for row, k in enumerate(best.tolist())
        )


def measure(
    *,
    layer: int,
    heads: tuple[int, ...],
    quantity: str,
    maps: Float[np.ndarray, "h t t"],
    weights: Float[np.ndarray, "h t t"] | None = None,
    context: ContextDependence | None = None,
) -> Measures:
    """Everything that one sequence's maps say, beside what many sequences said in `context`."""
    median, mean = (None, None) if weights is None else effective_reach(weights)
    return Measures(
        layer=layer,
        heads=heads,
        quantity=quantity,
        context=context,
        shift=tuple(shift_invariance(maps).tolist()),
        reach_median=None if median is None else tuple(median.tolist()),
        reach_mean=None if mean is None else tuple(mean.tolist()),
        similarity=tuple(tuple(row) for row in head_similarity(maps).tolist()),
    )


def shift_invariance(maps: Float[np.ndarray, "h t t"]) -> Float[np.ndarray, " h"]:
    """Share of each map's variance over visible entries that the distance i - j explains."""
    visible = np.isfinite(maps).all(axis=0)
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
        # Relative to one entry of the same diagonal, so that equal entries leave exactly nothing.
        left = values - values[origin[distance]]
        within = np.bincount(distance, left**2) - np.bincount(distance, left) ** 2 / count
        total = ((values - values.mean()) ** 2).sum()
        if total > 0:
            shares[head] = 1 - max(within.sum(), 0.0) / total
    return np.maximum(shares, 0.0)


def effective_reach(
    weights: Float[np.ndarray, "h t t"], share: float = 0.9
) -> tuple[Float[np.ndarray, " h"], Float[np.ndarray, " h"]]:
    """Median and mean over queries of the distance that holds `share` of the attention."""
    heads, length, _ = weights.shape
    reach = np.empty((heads, length))
    for query in range(length):
        behind = weights[:, query, query::-1].astype(np.float64)
        ahead = weights[:, query, query + 1 :].astype(np.float64)
        near = np.zeros((heads, length))
        near[:, : query + 1] += behind
        near[:, 1 : length - query] += ahead
        held = near.cumsum(axis=1)
        reach[:, query] = (held < share * held[:, -1:]).sum(axis=1)
    return np.median(reach, axis=1), reach.mean(axis=1)


def head_similarity(maps: Float[np.ndarray, "h t s"]) -> Float[np.ndarray, "h h"]:
    """Correlation of every pair of heads over visible entries."""
    entries = maps[:, np.isfinite(maps).all(axis=0)].astype(np.float64)
    entries = entries - entries.mean(axis=1, keepdims=True)
    size = np.sqrt((entries**2).sum(axis=1))
    unit = entries / np.where(size > 0, size, 1.0)[:, None]
    similarity: np.ndarray = np.clip(unit @ unit.T, -1, 1)
    np.fill_diagonal(similarity, 1.0)
    return similarity


def _tuples(held: dict[str, Any]) -> dict[str, Any]:
    def freeze(value: object) -> object:
        return tuple(freeze(each) for each in value) if isinstance(value, list) else value

    return {name: freeze(value) for name, value in held.items()}
