"""The measures of every head: rows, tables, JSON, and the heads that stand out."""

import json
from dataclasses import dataclass
from html import escape
from typing import Any

import numpy as np
from jaxtyping import Float

from headscape.errors import InputError
from headscape.io.table_text import csv_text
from headscape.io.terminal import printable
from headscape.measures.head_definitions import DRIFTING, MEASURES, kinds_of

Row = dict[str, Any]
MAIN = (
    "position_share", "slash_score", "slash_distance", "sink_score", "reach_90_no_sink",
    "half_life", "entropy", "induction", "retrieval", "effect_removed", "length_drift",
)  # fmt: skip
"""Columns of the table for reading; CSV and JSON have all."""


@dataclass(frozen=True, kw_only=True, repr=False, eq=False)
class HeadMeasures:
    """Numbers per layer and head of one model, both counted from 0."""

    about: dict[str, Any]
    """The model, what was recognised in it, and what it was measured on."""
    values: dict[str, Float[np.ndarray, "3 layers h"]]
    """Mean, low and high by measure; NaN where it does not apply."""
    kernel: Float[np.ndarray, "layers h n"]
    """Mean final score at distances 1 - T to T - 1; NaN where no key is visible."""
    closed_form: Float[np.ndarray, "layers h n"] | None = None
    """The kernel of mean queries and keys, for encodings that rotate."""
    bands: Float[np.ndarray, "layers h m"] | None = None
    """RoPE: the use of each pair of dims, fastest first, as shares."""
    maps: Float[np.ndarray, "layers h c c"] | None = None
    """Mean weight by cells of queries and keys."""
    drift: dict[int, dict[str, Float[np.ndarray, "layers h"]] | None]
    """Measures at multiples of the trained length; None where the model cannot read it."""

    def row(self, layer: int, head: int) -> Row:
        """Return one head: measures by name, with `_low` and `_high`; None is not measured."""
        found: Row = {"layer": layer, "head": head}
        for name, estimates in self.values.items():
            for suffix, value in zip(("", "_low", "_high"), estimates[:, layer, head], strict=True):
                found[name + suffix] = _number(value)
        for multiple, at_length in self.drift.items():
            for name in DRIFTING:
                value = None if at_length is None else _number(at_length[name][layer, head])
                found[f"{name}_{multiple}x"] = value
        found["kinds"] = kinds_of(found)
        return found

    def rows(self) -> list[Row]:
        """Return every head, layer by layer."""
        layers, heads = self.kernel.shape[:2]
        return [self.row(layer, head) for layer in range(layers) for head in range(heads)]

    @property
    def importance(self) -> str:
        """The measure that ranks heads by how much position matters: the causal effect if known."""
        return "effect_removed" if "effect_removed" in self.values else "position_share"

    def top(self, count: int = 10, measure: str | None = None, *, least: bool = False) -> list[Row]:
        """Return the heads with the largest (or least) measure, by default the importance.

        Effects are ranked by their size, whatever their sign.
        """
        name = measure or self.importance
        if name not in self.values:
            known = ", ".join(self.values)
            raise InputError(f"{name!r} was not measured: choose from {known}.")
        rows = [row for row in self.rows() if row[name] is not None]
        ranked = abs if name.startswith("effect_") else float
        return sorted(rows, key=lambda row: ranked(row[name]), reverse=not least)[:count]

    def to_json(self) -> str:
        """Return JSON text that `from_json` reads; layers and heads count from 0."""
        arrays = {
            name: _listed(getattr(self, name))
            for name in ("kernel", "closed_form", "bands", "maps")
        }
        whole = {
            "about": self.about,
            "definitions": {name: vars(MEASURES[name]) for name in self.values},
            "values": {name: _listed(value) for name, value in self.values.items()},
            "kinds": [row["kinds"] for row in self.rows()],
            "drift": {
                str(multiple): None if found is None else {k: _listed(v) for k, v in found.items()}
                for multiple, found in self.drift.items()
            },
            **arrays,
        }
        return json.dumps(whole, allow_nan=False, ensure_ascii=False) + "\n"

    @classmethod
    def from_json(cls, text: str) -> "HeadMeasures":
        """Return the measures that `to_json` wrote."""
        read = json.loads(text)
        drift = {
            int(multiple): None if found is None else {k: _array(v) for k, v in found.items()}
            for multiple, found in read["drift"].items()
        }
        curves = {
            name: None if read[name] is None else _array(read[name])
            for name in ("closed_form", "bands", "maps")
        }
        return cls(
            about=read["about"],
            values={name: _array(value) for name, value in read["values"].items()},
            kernel=_array(read["kernel"]),
            drift=drift,
            **curves,
        )

    def to_csv(self, first: int = 0) -> str:
        """Return every column as CSV; layers and heads count from `first`."""
        rows = self.rows()
        counted = (
            {**row, "layer": row["layer"] + first, "head": row["head"] + first}
            | {"kinds": "; ".join(row["kinds"])}
            for row in rows
        )
        return csv_text(list(rows[0]), counted)

    def to_markdown(self, first: int = 1) -> str:
        """Return a table of the main measures; layers and heads count from `first`."""
        names = [name for name in MAIN if name in self.values]
        labels = ["layer", "head", *(MEASURES[name].label for name in names), "kinds"]
        lines = [labels, ["---:"] * (len(labels) - 1) + ["---"], *self._cells(names, first)]
        return "".join(f"| {' | '.join(line)} |\n" for line in lines)

    def _cells(self, names: list[str], first: int) -> list[list[str]]:
        return [
            [
                *(str(row[key] + first) for key in ("layer", "head")),
                *(shown(name, row[name]) for name in names),
                ", ".join(row["kinds"]),
            ]
            for row in self.rows()
        ]

    def __repr__(self) -> str:
        layers, heads = self.kernel.shape[:2]
        return f"<measures of {printable(self.about['model'])}: {layers} layers x {heads} heads>"

    def _repr_html_(self) -> str:
        names = [name for name in MAIN if name in self.values]
        head = "".join(
            f'<th title="{escape(MEASURES[name].text)}">{MEASURES[name].label}</th>'
            for name in names
        )
        body = "".join(
            f"<tr>{''.join(f'<td>{escape(cell)}</td>' for cell in line)}</tr>\n"
            for line in self._cells(names, 0)
        )
        top = f"<th>layer</th><th>head</th>{head}<th>kinds</th>"
        return f"<table>\n<thead><tr>{top}</tr></thead>\n<tbody>\n{body}</tbody>\n</table>\n"


def shown(name: str, value: float | None) -> str:
    """Return a measure as tables print it."""
    return "" if value is None else format(value, MEASURES[name].form)


def _number(value: float) -> float | None:
    return float(value) if np.isfinite(value) else None


def _listed(value: np.ndarray | None) -> Any:
    """Return nested lists of numbers with 6 digits, None for NaN."""
    if value is None:
        return None
    if value.ndim:
        return [_listed(part) for part in value]
    return float(f"{value:.6g}") if np.isfinite(value) else None


def _array(value: Any) -> np.ndarray:
    return np.array(value, dtype=np.float64)
