"""Measurements as a table; those that were measured differently are refused.

The line under the table says how the numbers were measured. JSON and CSV hold every single
measurement, with its interval.
"""

import csv
import io
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from headscape.errors import InputError
from headscape.evaluate.layout import Cell, Layout, over_seeds
from headscape.evaluate.measurement import Measurement, Quantity, by_token
from headscape.evaluate.seeds import Member, check_seeds

ALIKE = 1.1
"""Texts of two tokenizers compare by the byte if neither has this many times the other's."""


@dataclass(frozen=True, kw_only=True)
class Table:
    """Measurements of one protocol, arranged."""

    quantity: Quantity
    measurements: tuple[Measurement, ...]

    @classmethod
    def of(cls, measurements: Iterable[Measurement], quantity: Quantity = "perplexity") -> "Table":
        """Arrange measurements, each once; those that do not compare are refused."""
        rows = {
            (one.method, one.length, one.protocol, one.longest, one.text, one.model): one
            for one in measurements
        }
        if not rows:
            raise InputError("there is nothing to put into a table: give at least one evaluation.")
        check(tuple(rows.values()), quantity)
        return cls(quantity=quantity, measurements=tuple(rows.values()))

    @property
    def methods(self) -> list[str]:
        """Columns, in the order they first appear."""
        return list(dict.fromkeys(one.method for one in self.measurements))

    @property
    def lengths(self) -> list[int]:
        """Rows, ascending."""
        return sorted({one.length for one in self.measurements})

    def cell(self, method: str, length: int) -> Cell:
        """Mean and spread over seeds."""
        here = [one for one in self.measurements if (one.method, one.length) == (method, length)]
        return Cell.of([one.value(self.quantity) for one in here])

    def note(self) -> str:
        """How the numbers were measured, in one sentence."""
        one = self.measurements[0]
        trained = sorted({m.train_length for m in self.measurements if m.train_length is not None})
        counts = [self.cell(m.method, m.length).count for m in self.measurements]
        parts = [
            f"{self.quantity} by protocol {one.protocol}",
            f"corpus {one.corpus}",
            "all whole windows" if one.longest is None else "the same tokens at every length",
            f"{_span(m.tokens for m in self.measurements if m.tokens)} tokens scored",
        ]
        if not by_token(self.quantity):
            parts.append(f"{_span(m.bytes for m in self.measurements if m.bytes)} bytes")
        if trained:
            parts.append(f"trained at {', '.join(map(str, trained))}")
        return "; ".join(filter(None, [*parts, over_seeds(counts)])) + "."

    def markdown(self) -> str:
        """A Markdown table and its note."""
        return self._layout().markdown()

    def latex(self) -> str:
        """A LaTeX tabular for the package booktabs, and its note as a comment."""
        return self._layout().latex()

    def csv(self) -> str:
        """Every measurement in a row of its own."""
        out = io.StringIO()
        writer = csv.writer(out, lineterminator="\n")
        names = [
            "method", "seed", "train_length", "length", "protocol", "longest", "corpus",
            "windows", "tokens", "bytes", "words",
        ]  # fmt: skip
        names += ["loss"] if self.quantity != "loss" else []
        writer.writerow([*names, self.quantity, "low", "high", "refused"])
        for one in self.measurements:
            low, high = one.interval(self.quantity) or (None, None)
            row = [getattr(one, name) for name in names]
            writer.writerow([*row, one.value(self.quantity), low, high, one.refused])
        return out.getvalue()

    def _layout(self) -> Layout:
        return Layout(
            methods=self.methods,
            cells={n: [self.cell(method, n) for method in self.methods] for n in self.lengths},
            best=min,
            number=lambda value: format_number(value, self.quantity),
            note=self.note(),
        )


def format_number(value: float, quantity: Quantity = "perplexity") -> str:
    """Two decimals, as the paper prints perplexities; three of losses and bits."""
    if quantity.endswith("perplexity"):
        return f"{value:.2f}" if not 1e5 <= value < math.inf else f"{value:.3g}"
    return f"{value:.3f}"


def _span(counts: Iterable[int]) -> str:
    """One number, or the least and the most of several."""
    found = sorted(set(counts)) or [0]
    return " to ".join(f"{count:,}" for count in dict.fromkeys((found[0], found[-1])))


def check(rows: Sequence[Measurement], quantity: Quantity) -> None:
    """Refuse what does not compare: other protocols, other texts, models that are no seeds."""
    _check_alike(rows, "protocol")
    if len({row.longest for row in rows}) > 1:
        raise InputError(
            "with --same-tokens every length scores the tokens of the longest, which is not the "
            "same in these evaluations, so they do not compare: evaluate them alike."
        )
    if len({row.text for row in rows}) > 1:
        # The same text may go by two names, another by the same one.
        _check_alike(rows, "corpus")
        _check_text(rows, quantity)
    if not by_token(quantity):
        _check_bytes(rows, quantity)
    check_seeds(Member(row.method, row.recipe, row.seed, row.length, row.model) for row in rows)


def _check_alike(rows: Sequence[Measurement], name: str) -> None:
    first = rows[0]
    other = next((row for row in rows if getattr(row, name) != getattr(first, name)), None)
    if other is not None:
        raise InputError(
            f"{first.method} was measured with {name} {getattr(first, name)} and "
            f"{other.method} with {getattr(other, name)}, which do not compare: "
            f"evaluate them alike."
        )


def _check_text(rows: Sequence[Measurement], quantity: Quantity) -> None:
    seen: dict[object, Measurement] = {}
    for row in rows:
        here = (row.method, row.model, row.length)
        twin = seen.setdefault(None if by_token(quantity) else here, row)
        if twin.text == row.text:
            continue
        if (twin.method, twin.model, twin.length) == here:
            raise InputError(
                f"{row.method} was measured on two texts at length {row.length}: give one of "
                f"these evaluations."
            )
        raise InputError(
            f"{twin.method} and {row.method} were scored on other tokens, by another --limit or "
            f"tokenizer, which do not compare: evaluate them alike, or by the byte with "
            f"--quantity bits-per-byte."
        )


def _check_bytes(rows: Sequence[Measurement], quantity: Quantity) -> None:
    by_length: dict[int, Measurement] = {}
    for row in rows:
        if row.refused is not None:
            continue
        if row.bytes is None:
            raise InputError(
                f"{row.method}'s tokens do not say which bytes they are, so there is no "
                f"{quantity}: ask for the perplexity or the loss."
            )
        twin = by_length.setdefault(row.length, row)
        assert twin.bytes is not None
        if not 1 / ALIKE < row.bytes / max(twin.bytes, 1) < ALIKE:
            raise InputError(
                f"at length {row.length} {twin.method} was scored on {twin.bytes:,} bytes and "
                f"{row.method} on {row.bytes:,}, which do not compare: evaluate them without "
                f"--limit, or on more text."
            )
