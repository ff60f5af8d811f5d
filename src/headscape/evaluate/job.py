"""A whole evaluation: several models, several lengths, one protocol, one table.

A model that cannot read a length gets a "-" there; a model that can read none of them is refused.
Progress is one line with the time left, by the work that each window is.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from headscape.errors import InputError
from headscape.evaluate import table
from headscape.evaluate.measurement import Measurement, Quantity, quantity
from headscape.evaluate.perplexity import measure, scored_units
from headscape.evaluate.protocols import Windows, parse, plan
from headscape.evaluate.scoring import Scorer
from headscape.evaluate.subjects import Subject
from headscape.io.progress import SlowBar


@dataclass(frozen=True, kw_only=True)
class EvaluateConfig:
    """How to measure."""

    lengths: tuple[int, ...] = (512, 1024, 2048, 4096, 8192, 16384)
    """Test lengths, in tokens."""
    protocol: str = "nonoverlap"
    """nonoverlap, last-K, sliding-K or per-position."""
    same_tokens: bool = False
    """Whether every length scores the tokens that the longest one scores."""
    limit: int | None = None
    """Use only so many tokens from the beginning of the text."""
    batch_tokens: int = 8192
    """Tokens that go through a model at once: a question of memory."""
    quantity: Quantity = "perplexity"
    """What the table shows; the JSON holds what all of them are made from."""

    def __post_init__(self) -> None:
        if not self.lengths:
            raise InputError("there is no length to evaluate at: give at least one.")
        numbers = [("a length", length) for length in self.lengths]
        for name, value in [*numbers, ("limit", self.limit), ("batch_tokens", self.batch_tokens)]:
            if value is not None and value < 1:
                raise InputError(f"{name} must be at least 1, not {value}.")
        parse(self.protocol)
        quantity(self.quantity)


def evaluate(
    subjects: Sequence[Subject], config: EvaluateConfig, journal: Path | None = None
) -> list[Measurement]:
    """Measure every subject at every length; with a folder, resumable."""
    protocol = parse(config.protocol)
    lengths = sorted(set(config.lengths))
    longest = lengths[-1] if config.same_tokens else None
    work: list[tuple[Subject, int, Measurement]] = []
    total = 0.0
    for subject in (_cut(subject, config.limit) for subject in subjects):
        reasons = {length: subject.scorer(length).cannot(length) for length in lengths}
        if all(reasons.values()):
            raise InputError(f"{subject.method.name}: {reasons[lengths[0]]}")
        for length in lengths:
            windows = plan(protocol, len(subject.text.tokens), length, longest)
            scorer = subject.scorer(length)
            work.append(
                (subject, length, _empty(subject, scorer, config, reasons[length], windows))
            )
            if reasons[length] is None:
                total += len(windows) * scorer.cost(length)
    # What cannot stand in one table is refused now, not after hours.
    table.check([empty for _, _, empty in work], config.quantity)
    out = []
    with SlowBar("evaluating", 1000) as bar:
        spent = _Permille(total, bar.advance)
        for subject, length, empty in work:
            if empty.refused is not None:
                out.append(empty)
                continue
            out.append(
                measure(
                    subject.scorer(length),
                    subject.text,
                    subject.method,
                    protocol,
                    length,
                    longest=longest,
                    batch_tokens=config.batch_tokens,
                    journal=journal,
                    advance=spent,
                )
            )
    return out


class _Permille:
    """Turns work done into whole thousandths of all of it."""

    def __init__(self, total: float, advance: Callable[[int], None]) -> None:
        self._total, self._advance = total, advance
        self._done, self._told = 0.0, 0

    def __call__(self, cost: float) -> None:
        self._done += cost
        now = int(1000 * self._done / self._total)
        self._advance(now - self._told)
        self._told = now


def _cut(subject: Subject, limit: int | None) -> Subject:
    if limit is None:
        return subject
    return replace(subject, text=replace(subject.text, tokens=subject.text.tokens[:limit]))


def _empty(
    subject: Subject, scorer: Scorer, config: EvaluateConfig, reason: str | None, windows: Windows
) -> Measurement:
    """All of a measurement but its losses."""
    size, words = (None, None) if reason else scored_units(subject.text, windows)
    return Measurement(
        method=subject.method.name,
        train_length=subject.method.train_length,
        seed=subject.method.seed,
        recipe=subject.method.recipe,
        longest=max(config.lengths) if config.same_tokens else None,
        length=windows.length,
        protocol=config.protocol,
        bytes=size,
        words=words,
        corpus=subject.text.corpus,
        text=subject.text.fingerprint,
        model=scorer.fingerprint,
        refused=reason,
    )
