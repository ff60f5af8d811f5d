"""The sizes an encoding is built for, and the options that every encoding has.

Five fields of every config act on the scores of any encoding: `window` hides far keys, `chunk` keys
of a different block of positions, `temperature` multiplies the scores of a query, `softcap` bounds
them, `sink` adds a key without a value to the softmax. Temperatures grow with the query's position:

    llama4      1 + a ln(1 + floor((i + 1) / n0))          Llama 4, on its layers without RoPE
    ministral   1 + a ln(1 + floor(i / n0))                Ministral 3, Mistral 4, on every layer
    inkling     1 + a ln max((i + 1) / n0, 1)              Inkling, on its layers without a window
    ssmax       s_h ln n_i                                 Nakanishi 2025, arXiv:2501.19399

i counts from 0, so llama4 steps at i = n0 - 1 and ministral at i = n0. n_i is the number of keys
that query i sees: i + 1, or the window. s_h is learned and starts at 1; the first query has n = 1,
which makes its only score 0 and changes nothing. In a packed batch SSMax counts the keys of the
query's own document. The others take the positions handed in, so a packed document counts from its
own start; Llama 4 and Inkling count places in the cache instead, which differs for left padding
only.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Literal

from jaxtyping import Float
from torch import Tensor

from headscape.errors import InputError, at_least
from headscape.io.typecheck import check_types

LARGEST_INT = 2**31 - 1
"""The largest integer of a config; kernels and torch's indices take no larger window."""


@dataclass(frozen=True, kw_only=True)
class Shape:
    """The sizes of the model that an encoding is built for."""

    heads: int
    head_dim: int
    width: int
    """Model width d, the last axis of what `stream` reads."""
    train_length: int | None = None
    """Context length in training, in tokens; None where it is not known."""
    causal: bool = True
    """False builds the bidirectional form."""

    def __post_init__(self) -> None:
        at_least(1, heads=self.heads, head_dim=self.head_dim, width=self.width)
        at_least(1, train_length=self.train_length)

    def trained(self, reader: str, field: str) -> int:
        """Return the context length in training; `reader` needs it if `field` is left out."""
        if self.train_length is None:
            raise InputError(
                f"{reader} depends on the context length in training: pass train_length, or set "
                f"{field}."
            )
        return self.train_length


@dataclass(frozen=True, kw_only=True)
class Config:
    """The options of an encoding; a subclass adds its own fields.

    Types and choices are checked here, so a subclass checks only ranges.
    """

    window: int | None = None
    """A query sees only the keys at a distance below this, its own included."""
    chunk: int | None = None
    """A query sees only the keys of its own block of this many positions."""
    temperature: Literal["none", "llama4", "ministral", "inkling", "ssmax"] = "none"
    """How scores grow with the query's position, see the top of config.py."""
    temperature_rate: float = 0.1
    """a, the factor of the logarithm."""
    temperature_start: int | None = None
    """n0, the position where it starts to grow; the model's context length if left out."""
    temperature_on: Literal["scores", "content"] = "scores"
    """What the temperature multiplies: q.k and the bias, or q.k alone."""
    softcap: float | None = None
    """Scores s become softcap tanh(s / softcap)."""
    sink: bool = False
    """One learned score per head is added to the softmax's denominator."""

    def __post_init__(self) -> None:
        check_types(self)
        for item in fields(self):
            _check_range(item.name, getattr(self, item.name))
        at_least(1, window=self.window, chunk=self.chunk)
        at_least(1, temperature_start=self.temperature_start)
        if self.window is not None and self.chunk is not None:
            raise InputError(
                f"window={self.window} and chunk={self.chunk} exclude each other: choose one."
            )
        if self.temperature == "none" and self.temperature_on != "scores":
            raise InputError(
                "temperature_on='content' has no effect without a temperature: set temperature too."
            )
        if self.softcap is not None and not 0 < self.softcap < math.inf:
            raise InputError(f"softcap must be positive and finite, got {self.softcap}.")


def _check_range(name: str, value: object) -> None:
    """Refuse numbers that are not finite and integers beyond LARGEST_INT, also inside a tuple."""
    for number in value if isinstance(value, tuple) else (value,):
        if isinstance(number, float) and not math.isfinite(number):
            raise InputError(f"{name} must be finite, got {number}.")
        if isinstance(number, int) and abs(number) > LARGEST_INT:
            raise InputError(f"{name} must be at most {LARGEST_INT:,}, got {number:,}.")


SHARED = frozenset(item.name for item in fields(Config))
"""Fields that every encoding has."""

Grows = Callable[[Float[Tensor, "#b t"], float, int], Float[Tensor, "#b t"]]


def llama4(at: Float[Tensor, "#b t"], rate: float, start: int) -> Float[Tensor, "#b t"]:
    """Return 1 + rate ln(1 + floor((at + 1) / start))."""
    return 1 + rate * ((at + 1) / start).floor().log1p()


def ministral(at: Float[Tensor, "#b t"], rate: float, start: int) -> Float[Tensor, "#b t"]:
    """Return 1 + rate ln(1 + floor(at / start))."""
    return 1 + rate * (at / start).floor().log1p()


def inkling(at: Float[Tensor, "#b t"], rate: float, start: int) -> Float[Tensor, "#b t"]:
    """Return 1 + rate ln max((at + 1) / start, 1)."""
    return 1 + rate * ((at + 1) / start).clamp(min=1).log()


TEMPERATURES: dict[str, Grows] = {"llama4": llama4, "ministral": ministral, "inkling": inkling}
