"""The text that a model is scored on: the held-out side of a corpus, as tokens.

It is the corpus the model was trained on, unless the caller names one.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from jaxtyping import Int64, Integer

from headscape.data.dataset import Dataset, open_dataset
from headscape.errors import InputError
from headscape.evaluation.protocols import Windows
from headscape.evaluation.units import Units, units
from headscape.models.model import Model


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
    found = []
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
        found.append(texts[key])
    return found


def _dataset(model: Model, corpus: str | None, opened: dict[str, Dataset]) -> Dataset:
    if corpus is None:
        if model.dataset is None:
            raise InputError(f"{model.spec.name} has no corpus of its own: name one with --corpus.")
        return model.dataset
    tokenizer = model.tokenizer
    if tokenizer is None:
        raise InputError(f"{model.spec.name} has no tokenizer, so it cannot read {corpus}.")
    if tokenizer.fingerprint not in opened:
        opened[tokenizer.fingerprint] = open_dataset(corpus, tokenizer)
    return opened[tokenizer.fingerprint]
