"""Which tokens of a stream are scored, and how much context each of them has.

A window of length L that starts at token s reads tokens s ... s + L - 1 and predicts the L tokens
s + 1 ... s + L; the predictions from index `first` on are scored.

    nonoverlap     windows at 0, L, 2L ...; every prediction is scored. The CABLE paper's.
    last-K         the same windows; only the last K predictions of each are scored. DAPE's (256).
    sliding-K      windows at 0, K, 2K ...; the first is scored whole, the others in their last K:
                   each token once, with at least L - K + 1 tokens before it once L have passed.
                   sliding-1 is what token-by-token decoding with a context of L gives.
    per-position   nonoverlap, reported as the mean loss at each position of the window.

Tokens left over at the end of the stream are not scored, so different lengths score slightly
different tokens. With `longest` given they score the same ones, those of the longest length:

    nonoverlap, per-position   predictions 1 ... T, T the last that the longest length scores;
    sliding-K                  predictions 1 ... N - 1, all of them;
    last-K                     the same K predictions, each window of a length ending where the
                               longest one ends.

A last window that would pass T is moved back to end at T and scores only what is still unscored.
"""

import re
from dataclasses import dataclass
from typing import Literal

import numpy as np
from jaxtyping import Int64

from headscape.errors import InputError

Kind = Literal["nonoverlap", "last", "sliding", "per-position"]
NAMES = "nonoverlap, last-256, sliding-256 (any number) and per-position"


@dataclass(frozen=True, kw_only=True)
class Protocol:
    """How a stream is cut into windows."""

    kind: Kind
    count: int = 0
    """K of last-K and sliding-K; 0 for the others."""

    @property
    def name(self) -> str:
        """The name beside every number: nonoverlap, last-256 and so on."""
        return f"{self.kind}-{self.count}" if self.count else self.kind


@dataclass(frozen=True, kw_only=True, eq=False)
class Windows:
    """The windows of one length, in the order they are evaluated."""

    length: int
    start: Int64[np.ndarray, " windows"]
    """Where each begins in the stream."""
    first: Int64[np.ndarray, " windows"]
    """The first prediction of each that is scored."""

    def __len__(self) -> int:
        return len(self.start)

    def targets(self) -> Int64[np.ndarray, " scored"]:
        """Every scored token's index in the stream, window by window."""
        spans = zip(self.start.tolist(), self.first.tolist(), strict=True)
        return np.concatenate(
            [np.arange(start + first, start + self.length) + 1 for start, first in spans]
        )


def parse(name: str) -> Protocol:
    """Return the protocol with a name such as `last-256`."""
    if name == "nonoverlap":
        return Protocol(kind="nonoverlap")
    if name == "per-position":
        return Protocol(kind="per-position")
    numbered = re.fullmatch(r"(last|sliding)-([1-9]\d*)", name)
    if numbered is None:
        raise InputError(f"unknown protocol {name!r}: there are {NAMES}.")
    kind: Kind = "last" if numbered[1] == "last" else "sliding"
    return Protocol(kind=kind, count=int(numbered[2]))


def plan(
    protocol: Protocol,
    tokens: int,
    length: int,
    longest: int | None = None,
    *,
    name: str = "the text",
) -> Windows:
    """Return the windows of `length` over a stream of `tokens` tokens.

    With `longest`, the windows that score the same tokens as that length does. `name` is what a
    message calls the stream.
    """
    reach = length if longest is None else longest
    if length < 1 or reach < length:
        raise InputError(
            f"a length must be between 1 and the longest length, {reach}, got {length}."
        )
    if tokens < reach + 1:
        shorter = f" or a length of at most {tokens - 1}" if tokens > 1 else ""
        raise InputError(
            f"a length of {reach} needs {reach + 1} tokens and {name}, cut to the limit if there "
            f"is one, has {tokens}: give more text{shorter}."
        )
    if protocol.count > length:
        raise InputError(
            f"{protocol.name} scores {protocol.count} tokens, more than a length of {length} has: "
            f"leave out that length or choose a smaller number."
        )
    if protocol.kind == "last":
        end = np.arange(1, (tokens - 1) // reach + 1) * reach
        first = np.full(len(end), length - protocol.count)
        return Windows(length=length, start=end - length, first=first)
    step = protocol.count or length
    covered = tokens - 1 if protocol.kind == "sliding" else (tokens - 1) // reach * reach
    start = np.arange((covered - length) // step + 1) * step
    first = np.full(len(start), length - step)
    first[0] = 0
    scored = int(start[-1]) + length
    if longest is not None and scored < covered:
        start = np.append(start, covered - length)
        first = np.append(first, length - (covered - scored))
    return Windows(length=length, start=start, first=first)
