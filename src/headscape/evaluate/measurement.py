"""One number of a table, and everything that has to be said beside it.

Losses are nats per token. With T tokens, B bytes and W words scored at a mean loss l:

    perplexity exp(l)      byte perplexity exp(l T / B)      word perplexity exp(l T / W)
    bits per byte l T / (B ln 2)
"""

import json
import math
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal, get_args

from headscape.errors import InputError
from headscape.evaluate import rows
from headscape.io import atomic

FORMAT = 2
Quantity = Literal["perplexity", "byte-perplexity", "word-perplexity", "bits-per-byte", "loss"]


@dataclass(frozen=True, kw_only=True)
class Measurement:
    """A model at a length, by a protocol, on a text."""

    method: str
    """The column it belongs to."""
    length: int
    protocol: str
    corpus: str
    """Which text, as it was asked for."""
    text: str
    """SHA-256 of the tokens."""
    model: str
    """SHA-256 of the model."""
    recipe: str | None = None
    """SHA-256 of all that the model was trained with but its seed; None if that is not known."""
    longest: int | None = None
    """The length whose tokens were scored; None where every length scored all it could."""
    train_length: int | None = None
    """None where it is not known (a model from elsewhere)."""
    seed: int | None = None
    """The training seed."""
    windows: int = 0
    tokens: int = 0
    """Tokens scored."""
    bytes: int | None = None
    """Bytes scored; None where the tokens do not say."""
    words: int | None = None
    loss: float | None = None
    """None where the model cannot read so many tokens."""
    low: float | None = None
    """Lower end of the loss's 95% interval; None with fewer than two windows."""
    high: float | None = None
    by_position: tuple[float, ...] | None = None
    """Mean loss at each position of the window, by the protocol `per-position`."""
    refused: str | None = None
    """Why there is no number."""

    def value(self, quantity: Quantity = "perplexity", loss: float | None = None) -> float | None:
        """The loss, or `loss` in its place (an end of its interval), as a quantity."""
        loss = self.loss if loss is None else loss
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

    def interval(self, quantity: Quantity = "perplexity") -> tuple[float, float] | None:
        """The 95% interval of a quantity."""
        if self.low is None or self.high is None:
            return None
        low, high = self.value(quantity, self.low), self.value(quantity, self.high)
        return None if low is None or high is None else (low, high)


def by_token(quantity: Quantity) -> bool:
    """Whether a quantity is of tokens, which compare only if a text is cut into the same ones."""
    return quantity in ("perplexity", "loss")


def quantity(name: str) -> Quantity:
    """A quantity by its name."""
    for option in get_args(Quantity):
        if option == name:
            return option  # type: ignore[no-any-return]
    raise InputError(f"unknown quantity {name!r}: there are {', '.join(get_args(Quantity))}.")


def write(path: Path, measurements: Iterable[Measurement]) -> None:
    """Write measurements as JSON, atomically."""
    data = {"format": FORMAT, "measurements": [asdict(one) for one in measurements]}
    atomic.write_text(path, json.dumps(data, indent=1) + "\n")


def read(path: Path) -> list[Measurement]:
    """The measurements that `write` wrote."""
    return rows.read(path, "measurements", FORMAT, Measurement)


def _exp(value: float) -> float:
    # A loss above 709 nats overflows a float64; such a model's perplexity is infinite for us.
    return math.inf if value >= 700 else math.exp(value)
