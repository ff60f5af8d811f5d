"""Values that several commands read: layers and heads, texts, options that do not apply.

The command line counts layers, heads and queries from 1, and Python from 0.
"""

import sys
from collections.abc import Iterable
from pathlib import Path

import typer

from headscape.errors import InputError
from headscape.io.files import utf8

MAX_INDEX = 100_000
"""Largest layer or head number that is accepted."""
MAX_DIGITS = 20
"""Most digits of a number; Python refuses to convert more than 4,300."""


def given(context: typer.Context, name: str) -> bool:
    """Whether an option was written on the command line."""
    source = context.get_parameter_source(name)
    return source is not None and source.name != "DEFAULT"


def refuse_unused(
    context: typer.Context, used: Iterable[str], options: Iterable[str], by: str
) -> None:
    """Refuse options that were given and that `by` does not use."""
    for name in options:
        if name not in set(used) and given(context, name):
            raise InputError(f"{by} does not use --{name.replace('_', '-')}: leave it out.")


def numbers(words: "list[str] | None", what: str) -> "str | list[int]":
    """Return layers or heads as written: all, last, or numbers from 1 such as 1 3 5-8."""
    if not words:
        return "all"
    if words in (["all"], ["last"]):
        return words[0]
    chosen: list[int] = []
    for word in words:
        low, dash, high = word.partition("-")
        if not _is_count(low) or (dash and not _is_count(high)):
            raise InputError(f"{what}s {word!r}: write all, last, or numbers such as 1,3,5-8.")
        first, last = int(low), int(high or low)
        if first == 0:
            raise InputError(f"{what}s {word!r}: {what}s count from 1 on the command line.")
        if not 1 <= first <= last <= MAX_INDEX:
            raise InputError(f"{what}s {word!r}: a range must go up, within 1 to {MAX_INDEX}.")
        chosen += range(first, last + 1)
    return chosen


def from_zero(words: "list[str] | None", count: int, what: str) -> "tuple[int, ...]":
    """Return the indices from 0 of layers or heads that the command line counts from 1."""
    from headscape.captures.record import indices

    return indices(numbers(words, what), count, what, first=1)


def number_from_zero(number: int | None, option: str) -> int | None:
    """Return a number that the command line counts from 1, counted from 0."""
    if number is None:
        return None
    if number < 1:
        raise InputError(f"{option} counts from 1 on the command line, got {number}.")
    return number - 1


def as_text(prompt: str) -> str:
    """Return a text from the command line, also where the locale is not UTF-8."""
    return utf8(prompt).decode("utf-8", "replace")


def read_text(file: str | None) -> str | None:
    """Return the text of a file; - is standard input."""
    if file is None:
        return None
    if file == "-":
        return sys.stdin.read()
    if not Path(file).is_file():
        raise InputError(f"there is no file {file}.")
    from headscape.data.corpus.reading import read_documents

    return "".join(part.text for part in read_documents(Path(file), Path(file).name))


def chosen_text(prompt: str | None, file: str | None) -> str | None:
    """Return the text of --prompt or --text; None where neither is given."""
    if prompt is not None and file is not None:
        raise InputError(f"give --prompt or --text {file}, not both.")
    return read_text(file) if prompt is None else as_text(prompt)


def _is_count(word: str) -> bool:
    return word.isdecimal() and len(word) <= MAX_DIGITS
