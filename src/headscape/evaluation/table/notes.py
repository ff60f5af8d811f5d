"""The sentence under a table: how its numbers were measured."""

from collections.abc import Iterable, Sequence
from typing import Final

from headscape.data.tasks import Task, task
from headscape.evaluation.table.table_row import Quantity, Row, by_token

SHARES: Final[dict[str, str]] = {"exact": "exact answers", "symbols": "right symbols"}


def note(rows: Sequence[Row], quantity: Quantity, seeds: Iterable[int]) -> str:
    """How the numbers were measured, in one sentence; `seeds` are the cells' numbers of seeds."""
    if rows[0].task is None:
        parts = _text_parts(rows, quantity)
    else:
        parts = _task_parts(rows[0], task(rows[0].task), quantity)
    counts = sorted({*seeds} - {0})
    if counts and counts[-1] > 1:
        parts.append(f"mean ± standard deviation over {'-'.join(map(str, counts))} seeds")
    return "; ".join(parts) + "."


def _text_parts(rows: Sequence[Row], quantity: Quantity) -> list[str]:
    first = rows[0]
    trained = sorted({row.train_length for row in rows if row.train_length is not None})
    parts = [
        f"{quantity} by protocol {first.protocol}",
        f"corpus {first.corpus}",
        "all whole windows" if first.longest is None else "the same tokens at every length",
        f"{_span(row.tokens for row in rows if row.tokens)} tokens scored",
    ]
    if not by_token(quantity):
        parts.append(f"{_span(row.bytes for row in rows if row.bytes)} bytes")
    if trained:
        parts.append(f"trained at {', '.join(map(str, trained))}")
    return parts


def _task_parts(first: Row, chosen: Task, quantity: Quantity) -> list[str]:
    about = f"{chosen.name} ({chosen.level}): share of {SHARES[quantity]}"
    if first.depth is not None:
        name = first.method if first.seed is None else f"{first.method}, seed {first.seed}"
        return [about, name, f"{first.examples} questions of each length and depth"]
    low, high = chosen.train_lengths
    parts = [
        about,
        f"{first.examples} questions of each length",
        f"trained on lengths {low} to {high}",
    ]
    if chosen.guess:
        parts.append(f"the commonest answer alone gets {chosen.guess:.2f}")
    return parts


def _span(counts: Iterable[int]) -> str:
    """One number, or the smallest and the largest of several."""
    found = sorted(set(counts)) or [0]
    return " to ".join(f"{count:,}" for count in dict.fromkeys((found[0], found[-1])))
