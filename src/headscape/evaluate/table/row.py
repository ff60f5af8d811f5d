"""One row of an evaluation: a model at a length, its numbers, and all that belongs beside them.

    TextRow   losses on a text       perplexity and the quantities made from the same loss
    TaskRow   answers on a task      exact answers and right symbols

Losses are nats per token. With T tokens, B bytes and W words scored at a mean loss l:

    perplexity exp(l)      byte perplexity exp(l T / B)      word perplexity exp(l T / W)
    bits per byte l T / (B ln 2)
"""

import math
from dataclasses import asdict, dataclass, field
from typing import Any, ClassVar, Literal

from headscape.errors import InputError

Quantity = Literal[
    "perplexity", "byte-perplexity", "word-perplexity", "bits-per-byte", "loss",
    "exact", "symbols",
]  # fmt: skip


class Row:
    """What every row has; its two kinds list their fields in the order of the JSON file."""

    group: ClassVar[str]
    """The name of the list of rows in a JSON file."""
    version: ClassVar[int]
    """Version of that file's format."""
    stem: ClassVar[str]
    """Name of the files of a table of such rows."""
    quantities: ClassVar[tuple[Quantity, ...]]
    """What it can be shown as; the first is the default."""

    method: str
    """The column it belongs to: the model's name."""
    length: int
    model: str
    """Fingerprint of the model."""
    recipe: str | None
    """SHA-256 of everything the model was trained with except the seed; None if unknown."""
    seed: int | None
    """The training seed; None if unknown."""
    refused: str | None
    """Why the model cannot read this length; None if it can."""

    @property
    def key(self) -> tuple[object, ...]:
        """Rows with equal keys are the same measurement."""
        raise NotImplementedError

    def value(self, quantity: Quantity) -> float | None:
        """A quantity; None where the model was refused."""
        raise NotImplementedError

    def interval(self, quantity: Quantity) -> tuple[float, float] | None:  # noqa: ARG002
        """The 95% interval of a quantity, where there is one."""
        return None

    def to_json(self) -> dict[str, Any]:
        """Every field that files contain, in their order."""
        return asdict(self)  # type: ignore[call-overload, no-any-return]

    def record(self, quantity: Quantity) -> dict[str, Any]:
        """The columns of a CSV file or data frame."""
        raise NotImplementedError


@dataclass(frozen=True, kw_only=True)
class TextRow(Row):
    """The loss of a model on a text, at a length, by a protocol."""

    group = "measurements"
    version = 2
    stem = "evaluation"
    quantities = ("perplexity", "byte-perplexity", "word-perplexity", "bits-per-byte", "loss")

    method: str
    length: int
    protocol: str
    corpus: str
    """The text, as the user named it."""
    text: str
    """SHA-256 of the tokens."""
    model: str
    recipe: str | None = None
    longest: int | None = None
    """The length whose tokens were scored; None where every length scored all it could."""
    train_length: int | None = None
    """Context length in training; None if unknown."""
    seed: int | None = None
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
    refused: str | None = None

    @property
    def key(self) -> tuple[object, ...]:
        """Column, model, tokens and protocol; the name of a corpus is not part of it."""
        return (self.method, self.length, self.protocol, self.longest, self.text, self.model)

    def value(self, quantity: Quantity) -> float | None:
        """The loss as a quantity."""
        return self._of(self.loss, quantity)

    def interval(self, quantity: Quantity) -> tuple[float, float] | None:
        """The ends of the loss's interval as a quantity."""
        low, high = self._of(self.low, quantity), self._of(self.high, quantity)
        return None if low is None or high is None else (low, high)

    def record(self, quantity: Quantity) -> dict[str, Any]:
        """What was measured, the quantity with its interval, and why there is none."""
        names = [
            "method", "seed", "train_length", "length", "protocol", "longest", "corpus",
            "windows", "tokens", "bytes", "words", "loss",
        ]  # fmt: skip
        low, high = self.interval(quantity) or (None, None)
        shown = {quantity: self.value(quantity), "low": low, "high": high, "refused": self.refused}
        return {name: getattr(self, name) for name in names} | shown

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


@dataclass(frozen=True, kw_only=True)
class TaskRow(Row):
    """A model's accuracy on a task, at a length and, in a heat map, a depth."""

    group = "scores"
    version = 1
    stem = "tasks"
    quantities = ("exact", "symbols")

    method: str
    encoding: str
    recipe: str | None = None
    seed: int | None = None
    task: str
    length: int
    """Symbols of a question; tokens of a text that the model continues."""
    depth: float | None = None
    """Where the fact is, as a share of the text; None outside heat maps."""
    examples: int
    symbols: float | None = None
    """Share of right symbols, averaged over answers; None where the model was refused."""
    exact: float | None = None
    """Share of answers that are right throughout."""
    questions: str
    """SHA-256 of the questions."""
    model: str
    refused: str | None = None
    label: str = field(default="", compare=False)
    """The model's name in the file names of its heat map; files do not contain it."""

    @property
    def key(self) -> tuple[object, ...]:
        """Column, model and questions."""
        return (self.task, self.method, self.length, self.depth, self.model, self.questions)

    def value(self, quantity: Quantity) -> float | None:
        """One of the two accuracies."""
        return self.exact if quantity == "exact" else self.symbols

    def to_json(self) -> dict[str, Any]:
        """Every field except the label."""
        return {name: value for name, value in asdict(self).items() if name != "label"}

    def record(self, quantity: Quantity) -> dict[str, Any]:  # noqa: ARG002
        """Every field: both accuracies are among them."""
        return self.to_json()


KINDS: tuple[type[TextRow] | type[TaskRow], ...] = (TextRow, TaskRow)


def by_token(quantity: Quantity) -> bool:
    """Whether a quantity is per token, and so compares only between equal tokenizations."""
    return quantity in ("perplexity", "loss")


def known_quantity(name: str | None, kind: type[Row]) -> Quantity:
    """Return the quantity with this name, or the kind's default for None."""
    for option in kind.quantities:
        if name in (None, option):
            return option
    raise InputError(f"unknown quantity {name!r}: choose one of {', '.join(kind.quantities)}.")


def _exp(value: float) -> float:
    # A loss above 709 nats overflows a float64; such a perplexity counts as infinite.
    return math.inf if value >= 700 else math.exp(value)
