"""The measures as a table: CSV, Markdown, HTML, or a pandas DataFrame.

A record has every column of COLUMNS, with numbers or None. Tables leave out the columns that are
None in every record; CSV and DataFrame keep them, empty.
"""

import importlib
from collections.abc import Mapping, Sequence
from html import escape
from math import nan
from typing import Any, Final

from headscape.errors import InputError
from headscape.io.table_text import csv_text

Record = dict[str, int | float | None]

COLUMNS: Final[Mapping[str, str]] = {
    "layer": "Layer of the model.",
    "head": "Head within the layer.",
    "context_dependence": "Share of the variance of the head's maps over several sequences that "
    "the input explains beyond the positions: 0 if every input has the same map.",
    "low": "Lower end of the 95% bootstrap interval of context dependence, over sequences.",
    "high": "Upper end of the same interval.",
    "shift_invariance": "Share of the variance of one map that the distance query - key explains: "
    "1 if equal distances always have equal values.",
    "reach_median": "Distance in tokens (frames for sound) that contains 90% of a query's "
    "attention weight, median over queries.",
    "reach_mean": "The same distance, mean over queries.",
    "most_similar_head": "The other head of the layer whose map correlates most with this one; "
    "none for a constant map, such as a bias of 0.",
    "similarity": "Pearson correlation with that head's map, from -1 to 1.",
}
"""What each column means, in one sentence."""

_INDICES: Final = ("layer", "head", "most_similar_head")
_FORMATS: Final[Mapping[str, str]] = {
    "context_dependence": ".3g",
    "low": ".3g",
    "high": ".3g",
    "shift_invariance": ".4g",
    "reach_median": ".0f",
    "reach_mean": ".1f",
    "similarity": ".2f",
}


def to_csv(rows: Sequence[Record], first: int) -> str:
    """Return CSV text with a header line; layers and heads count from `first`."""
    return csv_text(list(COLUMNS), [_counted(row, first) for row in rows])


def join_csv(parts: Sequence[tuple[str, Sequence[Record]]], first: int) -> str:
    """Return CSV text of several captures, with their names in a first column `capture`."""
    rows = [{"capture": name} | _counted(row, first) for name, rows in parts for row in rows]
    return csv_text(["capture", *COLUMNS], rows)


def to_markdown(rows: Sequence[Record], first: int) -> str:
    """Return a Markdown table of the measured columns."""
    names = measured(rows)
    lines = [[label(name) for name in names], ["---:"] * len(names), *_cells(rows, names, first)]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def to_html(rows: Sequence[Record], first: int) -> str:
    """Return an HTML table of the measured columns, each explained by its heading's tooltip."""
    names = measured(rows)
    head = "".join(
        f'<th scope="col" title="{escape(COLUMNS[name])}">{label(name)}</th>' for name in names
    )
    header, cell = '<th scope="row">{}</th>', "<td>{}</td>"
    tags = [header if name in {"layer", "head"} else cell for name in names]
    body = "".join(
        f"<tr>{''.join(map(str.format, tags, line))}</tr>\n" for line in _cells(rows, names, first)
    )
    return f"<table>\n<thead><tr>{head}</tr></thead>\n<tbody>\n{body}</tbody>\n</table>\n"


def to_frame(rows: Sequence[Record]) -> Any:
    """Return a pandas DataFrame of numbers, NaN where a record has None."""
    try:
        pandas = importlib.import_module("pandas")
    except ImportError as error:
        raise InputError(
            "to_frame needs pandas, which is not installed; run `pip install pandas`, or use "
            "rows() or to_csv()."
        ) from error
    numbers = [{name: nan if x is None else x for name, x in row.items()} for row in rows]
    return pandas.DataFrame(numbers, columns=list(COLUMNS))


def measured(rows: Sequence[Record]) -> list[str]:
    """Return the columns with at least one number, and most_similar_head if there are several."""
    several = {"most_similar_head"} if len({row["head"] for row in rows}) > 1 else set()
    return [
        name for name in COLUMNS if name in several or any(row[name] is not None for row in rows)
    ]


def _counted(row: Record, first: int) -> Record:
    """Return the record with layers and heads counted from `first`."""
    moved = {name: None if (value := row[name]) is None else value + first for name in _INDICES}
    return row | moved


def _cells(rows: Sequence[Record], names: Sequence[str], first: int) -> list[list[str]]:
    empty = {"most_similar_head": "none"}
    return [
        [
            empty.get(name, "") if row[name] is None else format(row[name], _FORMATS.get(name, ""))
            for name in names
        ]
        for row in (_counted(each, first) for each in rows)
    ]


def label(name: str) -> str:
    """Return a column's name as tables show it."""
    return {"low": "95% low", "high": "95% high"}.get(name, name.replace("_", " "))
