"""A model's loss over a token stream at one length, by one protocol.

Windows are taken in batches of about `batch_tokens` tokens. Batches are cut once, before anything
is computed, so a resumed evaluation adds the same numbers in the same order as an uninterrupted
one. Each window leaves one sum of losses (and, by `per-position`, a share in one sum per position);
nothing else is kept, so memory does not grow with the text.

The 95% interval is the percentile bootstrap over windows: `RESAMPLES` draws of as many windows with
replacement, each giving a mean over its tokens. It covers the choice of text, not of training seed.
"""

import hashlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Float64, Int64, Integer

from headscape.evaluate.journal import Journal
from headscape.evaluate.measurement import Measurement
from headscape.evaluate.protocols import Protocol, Windows, plan
from headscape.evaluate.scoring import Scorer
from headscape.evaluate.units import Units

RESAMPLES = 1000
Advance = Callable[[float], None]
"""Told the cost of each finished batch."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Text:
    """The tokens that are evaluated on."""

    tokens: Integer[np.ndarray, " n"]
    corpus: str
    """Where they come from, as it is printed."""
    units: Units | None = None
    """Bytes and words of the tokens, where they are known."""

    @cached_property
    def fingerprint(self) -> str:
        """SHA-256 of the tokens, whatever integers hold them."""
        return hashlib.sha256(self.tokens.astype("<i8").tobytes()).hexdigest()


@dataclass(frozen=True, kw_only=True)
class Method:
    """The column a measurement belongs to."""

    name: str
    train_length: int | None = None
    seed: int | None = None
    recipe: str | None = None
    """What all seeds of a method have in common; see `Measurement`."""


def measure(
    scorer: Scorer,
    text: Text,
    method: Method,
    protocol: Protocol,
    length: int,
    *,
    longest: int | None = None,
    batch_tokens: int = 8192,
    journal: Path | None = None,
    advance: Advance | None = None,
) -> Measurement:
    """Score a text; with a folder for journals, only what is not finished yet.

    `longest` asks for the tokens that this length scores, so that lengths compare.
    """
    windows = plan(protocol, len(text.tokens), length, longest)
    about = {
        "format": 1,
        "model": scorer.fingerprint,
        "text": text.fingerprint,
        "protocol": protocol.name,
        "length": length,
        "longest": longest,
        "batch_tokens": batch_tokens,
    }
    kept = None if journal is None else Journal(journal, about)
    finished = {} if kept is None else kept.finished
    sums, positions = np.zeros(len(windows)), np.zeros(length)
    for number, batch in enumerate(batches(windows, batch_tokens)):
        entry = finished.get(number)
        if entry is None:
            entry = _score(scorer, text, windows, batch, by_position=_by_position(protocol))
            if kept is not None:
                kept.record(number, entry)
        sums[batch] = entry["windows"]
        if "positions" in entry:
            positions[int(windows.first[batch.start]) :] += entry["positions"]
        if advance is not None:
            advance(scorer.cost(length) * (batch.stop - batch.start))
    counts = length - windows.first
    low, high = bootstrap(sums, counts)
    size, words = scored_units(text, windows)
    return Measurement(
        method=method.name,
        train_length=method.train_length,
        seed=method.seed,
        recipe=method.recipe,
        longest=longest,
        length=length,
        protocol=protocol.name,
        corpus=text.corpus,
        text=text.fingerprint,
        model=scorer.fingerprint,
        windows=len(windows),
        tokens=int(counts.sum()),
        bytes=size,
        words=words,
        loss=float(sums.sum() / counts.sum()),
        low=low,
        high=high,
        by_position=_means(positions, windows) if _by_position(protocol) else None,
    )


def batches(windows: Windows, batch_tokens: int) -> Iterator[slice]:
    """Consecutive windows that are scored from the same index on, a few at a time."""
    most = max(1, batch_tokens // windows.length)
    start = 0
    while start < len(windows):
        stop = min(start + most, len(windows))
        other = np.flatnonzero(windows.first[start:stop] != windows.first[start])
        stop = start + int(other[0]) if len(other) else stop
        yield slice(start, stop)
        start = stop


def bootstrap(
    sums: Float64[np.ndarray, " windows"], counts: Int64[np.ndarray, " windows"], seed: int = 0
) -> tuple[float | None, float | None]:
    """The 95% interval of the mean loss; none of a single window."""
    if len(sums) < 2:
        return None, None
    random = np.random.default_rng(seed)
    means = np.empty(RESAMPLES)
    for draw in range(RESAMPLES):
        chosen = random.integers(len(sums), size=len(sums))
        means[draw] = sums[chosen].sum() / counts[chosen].sum()
    low, high = np.quantile(means, [0.025, 0.975]).tolist()
    return low, high


def _score(
    scorer: Scorer, text: Text, windows: Windows, batch: slice, *, by_position: bool
) -> dict[str, list[float]]:
    rows = [
        text.tokens[start : start + windows.length + 1].astype(np.int64)
        for start in windows.start[batch].tolist()
    ]
    losses = scorer.losses(torch.from_numpy(np.stack(rows)), int(windows.first[batch.start]))
    entry = {"windows": losses.sum(dim=1).tolist()}
    return entry | {"positions": losses.sum(dim=0).tolist()} if by_position else entry


def _by_position(protocol: Protocol) -> bool:
    return protocol.kind == "per-position"


def _means(sums: Float64[np.ndarray, " length"], windows: Windows) -> tuple[float, ...]:
    """Sums by position over the number of windows that were scored there."""
    scored = np.cumsum(np.bincount(windows.first, minlength=windows.length))
    return tuple((sums / scored).tolist())


def scored_units(text: Text, windows: Windows) -> tuple[int | None, int | None]:
    """Bytes and words that windows score; None where the tokens do not say."""
    if text.units is None:
        return None, None
    size, words = text.units.counts(text.tokens)
    targets = windows.targets()
    return int(size[targets].sum()), int(words[targets].sum())
