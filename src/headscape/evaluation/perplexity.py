"""A model's loss over a held-out text at one length, by one protocol.

The text is the held-out side of a corpus: the one the model was trained on, unless the caller names
one. Windows go through the model in batches of about `batch_tokens` tokens. Batches are cut once,
before anything is computed, so a resumed evaluation adds the same numbers in the same order as an
uninterrupted one. Each window leaves one sum of losses (and, by `per-position`, a share in one sum
per position); nothing else is kept, so memory does not grow with the text.

The 95% interval is the expanded percentile bootstrap over windows (measures/interval.py), from 6
windows on. It covers the choice of text, not of training seed.
"""

import hashlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Float64, Int64, Integer

from headscape.data.dataset import Dataset, open_dataset
from headscape.errors import InputError
from headscape.evaluation.journal import resumed
from headscape.evaluation.protocols import Protocol, Windows, plan
from headscape.evaluation.row import Row
from headscape.evaluation.units import Units, units
from headscape.measures.interval import estimate
from headscape.models.model import Model

Advance = Callable[[int], None]
"""Called with the cost of each finished batch."""


@dataclass(frozen=True, kw_only=True, eq=False)
class HeldOut:
    """A stream of tokens and what they stand for."""

    tokens: Integer[np.ndarray, " n"]
    corpus: str
    """The corpus, as the user named it."""
    units: Units | None = None
    """Bytes and words of the tokens; None where the tokenizer does not say."""

    @cached_property
    def fingerprint(self) -> str:
        """SHA-256 of the tokens, whatever their dtype."""
        return hashlib.sha256(self.tokens.astype("<i8").tobytes()).hexdigest()

    def scored_units(self, windows: Windows) -> tuple[int | None, int | None]:
        """Bytes and words that windows score; None where the tokenizer does not say."""
        if self._counts is None:
            return None, None
        size, words = self._counts
        targets = windows.targets()
        return int(size[targets].sum()), int(words[targets].sum())

    @cached_property
    def _counts(self) -> tuple[Int64[np.ndarray, " n"], Int64[np.ndarray, " n"]] | None:
        return None if self.units is None else self.units.counts(self.tokens)


def held_out(
    models: Sequence[Model], corpus: str | None = None, limit: int | None = None
) -> list[HeldOut]:
    """The text of each model, cut to `limit` tokens; models with equal texts share one."""
    texts: dict[tuple[str, ...], HeldOut] = {}
    of_models = []
    opened: dict[str, Dataset] = {}
    for model in models:
        dataset = _dataset(model, corpus, opened)
        key = (dataset.corpus, dataset.fingerprint, dataset.tokenizer.fingerprint)
        if key not in texts:
            texts[key] = HeldOut(
                tokens=dataset.validation[:limit],
                corpus=dataset.corpus,
                units=units(dataset.tokenizer),
            )
        of_models.append(texts[key])
    return of_models


def _dataset(model: Model, corpus: str | None, opened: dict[str, Dataset]) -> Dataset:
    if corpus is None:
        if model.dataset is None:
            raise InputError(f"{model.spec.name} has no text of its own: name a corpus.")
        return model.dataset
    tokenizer = model.tokenizer
    if tokenizer is None:
        raise InputError(f"{model.spec.name} has no tokenizer, so it cannot read {corpus}.")
    if tokenizer.fingerprint not in opened:
        opened[tokenizer.fingerprint] = open_dataset(corpus, tokenizer)
    return opened[tokenizer.fingerprint]


@dataclass(frozen=True, kw_only=True, eq=False)
class TextJob:
    """A model to score on a text at one length."""

    model: Model
    text: HeldOut
    windows: Windows
    row: Row
    """Everything except the losses."""

    @classmethod
    def of(
        cls,
        model: Model,
        text: HeldOut,
        protocol: Protocol,
        length: int,
        longest: int | None = None,
    ) -> "TextJob":
        """Plan the windows; with `longest`, the tokens that this length scores, so both compare."""
        spec = model.spec
        windows = plan(protocol, len(text.tokens), length, longest)
        row = Row(
            method=spec.name,
            length=length,
            protocol=protocol.name,
            corpus=text.corpus,
            text=text.fingerprint,
            model=model.fingerprint,
            recipe=spec.recipe,
            longest=longest,
            train_length=spec.train_length,
            seed=spec.seed,
            refused=model.length_error(length),
        )
        if row.refused is None:
            size, words = text.scored_units(windows)
            tokens = int((length - windows.first).sum())
            row = replace(row, windows=len(windows), tokens=tokens, bytes=size, words=words)
        return cls(model=model, text=text, windows=windows, row=row)

    @property
    def cost(self) -> int:
        """The work of all windows."""
        return self._window_cost * len(self.windows)

    def run(
        self,
        *,
        batch_tokens: int = 8192,
        journal: Path | None = None,
        advance: Advance | None = None,
    ) -> Row:
        """Score the text; with a folder for journals, only what is not finished yet."""
        windows, length = self.windows, self.windows.length
        header = {
            "format": 1,
            "model": self.row.model,
            "text": self.row.text,
            "protocol": self.row.protocol,
            "length": length,
            "longest": self.row.longest,
            "batch_tokens": batch_tokens,
        }
        sums, positions = np.zeros(len(windows)), np.zeros(length)
        for batch, entry in resumed(journal, header, batches(windows, batch_tokens), self._score):
            sums[batch] = entry["windows"]
            if "positions" in entry:
                positions[int(windows.first[batch.start]) :] += entry["positions"]
            if advance is not None:
                advance(self._window_cost * (batch.stop - batch.start))
        counts = length - windows.first
        _, low, high = estimate(sums, counts)
        return replace(
            self.row,
            loss=float(sums.sum() / counts.sum()),
            low=None if np.isnan(low) else float(low),
            high=None if np.isnan(high) else float(high),
            by_position=_means(positions, windows) if self._by_position else None,
        )

    @property
    def _window_cost(self) -> int:
        return max(1, round(self.model.cost(self.windows.length)))

    @property
    def _by_position(self) -> bool:
        return self.row.protocol == "per-position"

    def _score(self, batch: slice) -> dict[str, list[float]]:
        windows, tokens = self.windows, self.text.tokens
        rows = [
            tokens[start : start + windows.length + 1].astype(np.int64)
            for start in windows.start[batch].tolist()
        ]
        first = int(windows.first[batch.start])
        losses = self.model.losses(torch.from_numpy(np.stack(rows)), first)
        entry = {"windows": losses.sum(dim=1).tolist()}
        return entry | {"positions": losses.sum(dim=0).tolist()} if self._by_position else entry


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


def _means(sums: Float64[np.ndarray, " length"], windows: Windows) -> tuple[float, ...]:
    """Sums by position over the number of windows that were scored there."""
    scored = np.cumsum(np.bincount(windows.first, minlength=windows.length))
    return tuple((sums / scored).tolist())
