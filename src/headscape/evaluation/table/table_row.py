"""One row of an evaluation: a model at a length, its numbers, and all that belongs beside them.

A row is about a text (losses, shown as one of five quantities) or about a task (two accuracies).
Losses are nats per token. With T tokens, B bytes and W words scored at a mean loss l:

    perplexity exp(l)      byte perplexity exp(l T / B)      word perplexity exp(l T / W)
    bits per byte l T / (B ln 2)
"""

import math
from dataclasses import dataclass, field
from typing import Any, Literal

from headscape.errors import InputError

Quantity = Literal[
    "perplexity", "byte-perplexity", "word-perplexity", "bits-per-byte", "loss",
    "exact", "symbols",
]  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Kind:
    """How rows of one kind are written and shown."""

    group: str
    """The name of the list of rows in a JSON file."""
    version: int
    """Version of that file's format."""
    stem: str
    """Name of a table's files."""
    quantities: tuple[Quantity, ...]
    """What a row can be shown as; the first is the default."""
    fields: tuple[str, ...]
    """The fields in a JSON file, in their order."""


TEXT = Kind(
    group="measurements",
    version=2,
    stem="evaluation",
    quantities=("perplexity", "byte-perplexity", "word-perplexity", "bits-per-byte", "loss"),
    fields=(
        "method", "length", "protocol", "corpus", "text", "model", "recipe", "longest",
        "train_length", "seed", "windows", "tokens", "bytes", "words", "loss", "low", "high",
        "by_position", "refused",
    ),
)  # fmt: skip
TASK = Kind(
    group="scores",
    version=1,
    stem="tasks",
    quantities=("exact", "symbols"),
    fields=(
        "method", "encoding", "recipe", "seed", "task", "length", "depth", "examples", "symbols",
        "exact", "questions", "model", "refused",
    ),
)  # fmt: skip
_TEXT_COLUMNS = (
    "method", "seed", "train_length", "length", "protocol", "longest", "corpus", "windows",
    "tokens", "bytes", "words", "loss",
)  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Row:
    """A model at a length."""

    method: str
    """The column it belongs to: the model's name."""
    length: int
    """Tokens of a window or of a text to continue; symbols of a question."""
    model: str
    """Fingerprint of the model."""
    recipe: str | None = None
    """SHA-256 of everything the model was trained with except the seed; None if unknown."""
    seed: int | None = None
    """The training seed; None if unknown."""
    refused: str | None = None
    """Why the model cannot read this length; None if it can."""

    protocol: str = ""
    corpus: str = ""
    """The text, as the user named it."""
    text: str = ""
    """SHA-256 of the tokens."""
    longest: int | None = None
    """The length whose tokens were scored; None where every length scored all it could."""
    train_length: int | None = None
    """Context length in training; None if unknown."""
    windows: int = 0
    tokens: int = 0
    """Tokens scored."""
    bytes: int | None = None
    """Bytes scored; None where the tokenizer does not say."""
    words: int | None = None
    loss: float | None = None
    """Nats per token; None where the model was refused."""
    low: float | None = None
    """Lower end of the loss's 95% interval; None with fewer than two windows."""
    high: float | None = None
    by_position: tuple[float, ...] | None = None
    """Mean loss at each position of the window, by the protocol per-position."""

    task: str | None = None
    """The task; None for a text."""
    encoding: str = ""
    depth: float | None = None
    """Where the fact is, as a share of the text; None outside heat maps."""
    examples: int = 0
    symbols: float | None = None
    """Share of right symbols, averaged over answers; None where the model was refused."""
    exact: float | None = None
    """Share of answers that are right throughout."""
    questions: str = ""
    """SHA-256 of the questions."""
    label: str = field(default="", compare=False)
    """The model's name in the file names of its heat map; files do not contain it."""

    @property
    def kind(self) -> Kind:
        """About a text or about a task."""
        return TEXT if self.task is None else TASK

    @property
    def key(self) -> tuple[object, ...]:
        """Rows with equal keys are the same measurement; the name of a corpus is not part of it."""
        text = (self.protocol, self.longest, self.text)
        return (self.method, self.length, self.model, *text, self.task, self.depth, self.questions)

    def value(self, quantity: Quantity) -> float | None:
        """A quantity; None where the model was refused."""
        if quantity in TASK.quantities:
            return self.exact if quantity == "exact" else self.symbols
        return self._of(self.loss, quantity)

    def interval(self, quantity: Quantity) -> tuple[float, float] | None:
        """The 95% interval of a quantity made from the loss."""
        low, high = self._of(self.low, quantity), self._of(self.high, quantity)
        return None if low is None or high is None else (low, high)

    def record(self, quantity: Quantity) -> dict[str, Any]:
        """The columns of a CSV file or data frame."""
        if self.kind is TASK:
            return {name: getattr(self, name) for name in TASK.fields}
        low, high = self.interval(quantity) or (None, None)
        shown = {quantity: self.value(quantity), "low": low, "high": high, "refused": self.refused}
        return {name: getattr(self, name) for name in _TEXT_COLUMNS} | shown

    def _of(self, loss: float | None, quantity: Quantity) -> float | None:
        if loss is None:
            return None
        per = {"byte": self.bytes, "bits": self.bytes, "word": self.words}
        units = self.tokens if by_token(quantity) else per[quantity[:4]]
        if not units:
            return None
        nats = loss * self.tokens / units
        if quantity == "bits-per-byte":
            return nats / math.log(2)
        return nats if quantity == "loss" else _exp(nats)


def by_token(quantity: Quantity) -> bool:
    """Whether a quantity is per token, and so compares only between equal tokenizations."""
    return quantity in ("perplexity", "loss")


def known_quantity(name: str | None, kind: Kind) -> Quantity:
    """Return the quantity with this name, or the kind's default for None."""
    for option in kind.quantities:
        if name in (None, option):
            return option
    raise InputError(f"unknown quantity {name!r}: choose one of {', '.join(kind.quantities)}.")


def _exp(value: float) -> float:
    # A loss above 709 nats overflows a float64; such a perplexity counts as infinite.
    return math.inf if value >= 700 else math.exp(value)
