"""Text from files of others in tables: escaped for Markdown and LaTeX, harmless in a spreadsheet.

Names of models, runs and corpora may contain anything. Each format has one function here, and every
table goes through it.
"""

import csv
import re
from collections.abc import Iterable, Mapping, Sequence
from io import StringIO
from typing import Final

from headscape.io.terminal import one_line

_LATEX: Final[Mapping[str, str]] = {
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    **{letter: f"\\{letter}" for letter in "&%$#_{}"},
}
_MARKDOWN: Final = re.compile(r"[\\`*\[\]<|]|(?<![A-Za-z0-9])_|_(?![A-Za-z0-9])")
_FORMULA: Final = re.compile(r"\s*[=+\-@]|\t")


def latex_text(text: str) -> str:
    """Return text as LaTeX shows it, on one line."""
    return "".join(_LATEX.get(letter, letter) for letter in one_line(text))


def markdown_text(text: str) -> str:
    """Return text as Markdown shows it, on one line and within one cell of a table."""
    return _MARKDOWN.sub(lambda found: f"\\{found[0]}", one_line(text))


def csv_text(names: Sequence[str], rows: Iterable[Mapping[str, object]]) -> str:
    """Return CSV with a header line.

    A spreadsheet computes text that begins with = + - or @. Such text gets an apostrophe in front,
    which spreadsheets do not show, unless it is a number.
    """
    out = StringIO()
    writer = csv.DictWriter(out, names, lineterminator="\n")
    writer.writerow({name: _cell(name) for name in names})
    writer.writerows({name: _cell(value) for name, value in row.items()} for row in rows)
    return out.getvalue()


def _cell(value: object) -> object:
    if not isinstance(value, str):
        return value
    # The writer does not quote a bare carriage return, which would end the row.
    value = value.replace("\r\n", "\n").replace("\r", "\n")
    if not _FORMULA.match(value):
        return value
    try:
        float(value)
    except ValueError:
        return f"'{value}"
    return value
