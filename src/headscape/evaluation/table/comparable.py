"""Which rows may share a table; all others are refused."""

from collections.abc import Sequence

from headscape.errors import InputError
from headscape.evaluation.table.table_row import Quantity, Row, by_token

ALIKE = 1.1
"""Largest ratio of scored bytes between two tokenizers that are compared by the byte."""


def check(rows: Sequence[Row], quantity: Quantity) -> None:
    """Refuse rows that cannot be compared, and columns that would average different models."""
    if len({row.kind.group for row in rows}) > 1:
        raise InputError("rows on a text and rows on a task cannot be compared: use two tables.")
    if rows[0].task is None:
        _check_texts(rows, quantity)
    else:
        _check_tasks(rows)
    if rows[0].depth is None:
        _check_seeds(rows)


def _check_texts(rows: Sequence[Row], quantity: Quantity) -> None:
    _check_alike(rows, "protocol")
    if len({row.longest for row in rows}) > 1:
        raise InputError(
            "with --same-tokens every length scores the tokens of the longest length, which "
            "differs between these evaluations, so they cannot be compared: evaluate them with the "
            "same longest length."
        )
    if len({row.text for row in rows}) > 1:
        # One text may have two names, and two texts one name.
        _check_alike(rows, "corpus")
        _check_tokens(rows, quantity)
    if not by_token(quantity):
        _check_bytes(rows, quantity)


def _check_tasks(rows: Sequence[Row]) -> None:
    _check_alike(rows, "task")
    asked: dict[int, Row] = {}
    maps: dict[tuple[object, ...], Row] = {}
    for row in rows:
        if (row.depth is None) != (rows[0].depth is None):
            raise InputError(
                "these evaluations are heat maps and accuracies by length, which cannot be "
                "compared: merge the two kinds separately."
            )
        if row.depth is None and asked.setdefault(row.length, row).questions != row.questions:
            raise InputError(
                f"{asked[row.length].method} and {row.method} were asked different questions at "
                f"length {row.length}: evaluate them with the same --examples."
            )
        if (
            row.depth is not None
            and maps.setdefault((row.label, row.length, row.depth), row) != row
        ):
            raise InputError(
                f"two different heat maps are both called {row.label}: rename one of their files."
            )


def _check_alike(rows: Sequence[Row], name: str) -> None:
    first = rows[0]
    for row in rows:
        if getattr(row, name) != getattr(first, name):
            raise InputError(
                f"{first.method} was evaluated with {name} {getattr(first, name)} and "
                f"{row.method} with {getattr(row, name)}, which cannot be compared: use one {name}."
            )


def _check_tokens(rows: Sequence[Row], quantity: Quantity) -> None:
    seen: dict[object, Row] = {}
    for row in rows:
        here = (row.method, row.model, row.length)
        twin = seen.setdefault(None if by_token(quantity) else here, row)
        if twin.text == row.text:
            continue
        if (twin.method, twin.model, twin.length) == here:
            raise InputError(
                f"{row.method} was scored on two texts at length {row.length}: leave out one of "
                f"these evaluations."
            )
        raise InputError(
            f"{twin.method} and {row.method} were scored on different tokens (different --limit "
            f"or tokenizer), which cannot be compared: use the same --limit, or compare by the "
            f"byte with --quantity bits-per-byte."
        )


def _check_bytes(rows: Sequence[Row], quantity: Quantity) -> None:
    by_length: dict[int, Row] = {}
    for row in rows:
        if row.refused is not None:
            continue
        if row.bytes is None:
            raise InputError(
                f"the tokenizer of {row.method} does not say which bytes its tokens are, so "
                f"{quantity} is unknown: use perplexity or loss."
            )
        twin = by_length.setdefault(row.length, row)
        assert twin.bytes is not None
        if not 1 / ALIKE < row.bytes / max(twin.bytes, 1) < ALIKE:
            raise InputError(
                f"at length {row.length} {twin.method} was scored on {twin.bytes:,} bytes and "
                f"{row.method} on {row.bytes:,}, which cannot be compared: evaluate them without "
                f"--limit, or on more text."
            )


def _check_seeds(rows: Sequence[Row]) -> None:
    """Refuse models of one column that differ in more than the training seed."""
    recipes: dict[str, str | None] = {}
    seen: dict[tuple[str, int | None, int], str] = {}
    for row in rows:
        if recipes.setdefault(row.method, row.recipe) != row.recipe:
            raise InputError(
                f"two models are both called {row.method} and their configs differ in more than "
                f"the seed, so they cannot be averaged: evaluate them into separate tables."
            )
        # A model that is stretched to fit has a different fingerprint at every length.
        if seen.setdefault((row.method, row.seed, row.length), row.model) != row.model:
            name = row.method if row.seed is None else f"{row.method} with seed {row.seed}"
            raise InputError(
                f"two different models are both called {name}: evaluate them into separate tables."
            )
