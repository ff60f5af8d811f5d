"""A model's loss over a text at one length, by one protocol.

Windows go through the model in batches of about `batch_tokens` tokens. Batches are cut once, before
anything is computed, so a resumed evaluation adds the same numbers in the same order as an
uninterrupted one. Each window leaves one sum of losses (and, by `per-position`, a share in one sum
per position); nothing else is kept, so memory does not grow with the text.

The 95% interval is the percentile bootstrap over windows: `RESAMPLES` draws (seed 0) of as many
windows with replacement, each giving a mean over its tokens. It covers the choice of text, not of
training seed.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Float64, Int64

from headscape.evaluation.held_out import HeldOut
from headscape.evaluation.journal import resumed
from headscape.evaluation.protocols import Protocol, Windows, plan
from headscape.evaluation.table.table_row import Row
from headscape.models.model import Model

RESAMPLES = 1000
Advance = Callable[[int], None]
"""Called with the cost of each finished batch."""


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
        low, high = bootstrap(sums, counts)
        return replace(
            self.row,
            loss=float(sums.sum() / counts.sum()),
            low=low,
            high=high,
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


def bootstrap(
    sums: Float64[np.ndarray, " windows"], counts: Int64[np.ndarray, " windows"]
) -> tuple[float | None, float | None]:
    """The 95% interval of the mean loss; (None, None) for a single window."""
    if len(sums) < 2:
        return None, None
    random = np.random.default_rng(0)
    means = np.empty(RESAMPLES)
    for draw in range(RESAMPLES):
        chosen = random.integers(len(sums), size=len(sums))
        means[draw] = sums[chosen].sum() / counts[chosen].sum()
    low, high = np.quantile(means, [0.025, 0.975]).tolist()
    return low, high


def _means(sums: Float64[np.ndarray, " length"], windows: Windows) -> tuple[float, ...]:
    """Sums by position over the number of windows that were scored there."""
    scored = np.cumsum(np.bincount(windows.first, minlength=windows.length))
    return tuple((sums / scored).tolist())
