"""Rows of records as text: CSV, Markdown, HTML, LaTeX, or a pandas DataFrame.

Captures, models and evaluations write their tables here. A record has a value for every column, or
None. Text of others is escaped (io/table_text.py), and numbers are printed by their column.
"""

import importlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from math import nan
from typing import Any

from headscape.errors import InputError
from headscape.io.table_text import csv_text, latex_text, markdown_text

Record = Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class Column:
    """A column of a table."""

    name: str
    """Key of the records, heading of CSV and data frames."""
    label: str
    """Heading of tables for reading."""
    text: str = ""
    """What it means, in one sentence: the tooltip of its heading."""
    form: str = ""
    """How a number is printed."""
    empty: str = ""
    """What stands for None."""
    heads_rows: bool = False
    """Whether its cells name the rows."""
    left: bool = False
    """Whether its cells are aligned to the left."""

    def shown(self, value: Any) -> str:
        """Return a value as tables print it."""
        if value is None:
            return self.empty
        if isinstance(value, Sequence) and not isinstance(value, str):
            return ", ".join(map(str, value))
        return format(value, self.form)


def to_csv(records: Sequence[Record]) -> str:
    """Return CSV with a header line; lists become text with semicolons.

    records  the rows, all with the names of the first
    """
    names = list(records[0])
    return csv_text(names, [{key: _plain(each[key]) for key in names} for each in records])


def to_frame(records: Sequence[Record]) -> Any:
    """Return a pandas DataFrame, NaN where a record has None.

    records  the rows, all with the names of the first
    """
    try:
        pandas = importlib.import_module("pandas")
    except ImportError as error:
        raise InputError(
            "to_frame needs pandas, which is not installed; run `pip install pandas`, or use "
            "rows or to_csv()."
        ) from error
    names = list(records[0])
    numbers = [
        [nan if each[key] is None else _plain(each[key]) for key in names] for each in records
    ]
    return pandas.DataFrame(numbers, columns=names)


def to_markdown(columns: Sequence[Column], records: Sequence[Record]) -> str:
    """Return a Markdown table."""
    cells = [[markdown_text(each.shown(row[each.name])) for each in columns] for row in records]
    return markdown_grid([each.label for each in columns], cells, [each.left for each in columns])


def to_html(columns: Sequence[Column], records: Sequence[Record]) -> str:
    """Return an HTML table whose headings have tooltips."""
    cells = [[escape(each.shown(row[each.name])) for each in columns] for row in records]
    return html_grid(
        [each.label for each in columns],
        cells,
        tooltips=[each.text for each in columns],
        row_heads=sum(each.heads_rows for each in columns),
    )


def markdown_grid(
    heads: Sequence[str], cells: Sequence[Sequence[str]], left: Sequence[bool] | None = None
) -> str:
    """Return a Markdown table of cells that are Markdown already, aligned to the right."""
    rules = ["---" if here else "---:" for here in left or [False] * len(heads)]
    lines = [f"| {' | '.join(line)} |\n" for line in ([markdown_text(x) for x in heads], *cells)]
    return "".join([lines[0], f"|{'|'.join(rules)}|\n", *lines[1:]])


def html_grid(
    heads: Sequence[str],
    cells: Sequence[Sequence[str]],
    *,
    tooltips: Sequence[str] | None = None,
    row_heads: int = 1,
) -> str:
    """Return an HTML table of cells that are HTML already; the first ones of a row name it."""
    titles = [f' title="{escape(text)}"' if text else "" for text in tooltips or [""] * len(heads)]
    top = "".join(
        f'<th scope="col"{title}>{escape(head)}</th>'
        for head, title in zip(heads, titles, strict=True)
    )
    body = "".join(
        "<tr>"
        + "".join(f'<th scope="row">{cell}</th>' for cell in line[:row_heads])
        + "".join(f"<td>{cell}</td>" for cell in line[row_heads:])
        + "</tr>\n"
        for line in cells
    )
    return f"<table>\n<thead><tr>{top}</tr></thead>\n<tbody>\n{body}</tbody>\n</table>\n"


def latex_grid(heads: Sequence[str], cells: Sequence[Sequence[str]]) -> str:
    """Return a LaTeX tabular for the package booktabs, of cells that are LaTeX already."""
    rows = [" & ".join(line) + r" \\" for line in cells]
    lines = [
        rf"\begin{{tabular}}{{{'r' * len(heads)}}}",
        r"\toprule",
        " & ".join(map(latex_text, heads)) + r" \\",
        r"\midrule",
        *rows,
        r"\bottomrule",
        r"\end{tabular}",
    ]
    return "\n".join(lines) + "\n"


def _plain(value: Any) -> Any:
    """Return a list as text; anything else as it is."""
    return "; ".join(map(str, value)) if isinstance(value, list | tuple) else value
