"""A model's loss over a held-out text at one length, by one protocol.

The text is the held-out side of a corpus: the one the model was trained on, unless the caller names
one. Windows go through the model in batches of about `batch_tokens` tokens. Batches are cut once,
before anything is computed, so a resumed evaluation adds the same numbers in the same order as an
uninterrupted one. Each window leaves one sum of losses (and, by `per-position`, a share in one sum
per position); nothing else is kept, so memory does not grow with the text.

The 95% interval is the expanded percentile bootstrap over windows (measures/interval.py), from 6
windows on. It covers the choice of text, not of training seed.

Bytes and words that each token stands for: a word is a run of bytes that are not ASCII white space,
counted at its first byte; a document's beginning starts one. End-of-text stands for 0 bytes and 0
words; its loss still counts, so losses per byte and per word include predicting where documents
end. Tables of token bytes come from byte-level vocabularies, in which each character of a token's
spelling is one byte: 33-126, 161-172 and 174-255 stand for themselves, the other 68 bytes in
ascending order are the characters from 256 on.
"""

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Bool, Float64, Int64, Integer

from headscape.data.dataset import Dataset, open_dataset
from headscape.data.tokenize.bpe import gpt2
from headscape.data.tokenize.tokenizer import Tokenizer
from headscape.errors import InputError
from headscape.evaluation.journal import resumed
from headscape.evaluation.protocols import Protocol, Windows, plan
from headscape.evaluation.row import EvaluationRow
from headscape.measures.interval import estimate
from headscape.models.model import Model

_SPACE = frozenset(b" \t\n\r\v\f")


@dataclass(frozen=True, kw_only=True, eq=False)
class Units:
    """What a vocabulary's tokens contribute, by token number."""

    size: Int64[np.ndarray, " vocabulary"]
    """Bytes."""
    inner: Int64[np.ndarray, " vocabulary"]
    """Words that begin after the first byte."""
    opens: Bool[np.ndarray, " vocabulary"]
    """Whether the first byte is part of a word."""
    closes: Bool[np.ndarray, " vocabulary"]
    """Whether a word that follows is a new one: the token ends in white space or is empty."""

    @classmethod
    def of(cls, spelled: list[bytes]) -> "Units":
        """From every token's bytes; b"" for tokens that are not text."""
        solid = [[byte not in _SPACE for byte in token] for token in spelled]
        inner = [sum(now and not old for old, now in pairwise(one)) for one in solid]
        return cls(
            size=np.array([len(token) for token in spelled], dtype=np.int64),
            inner=np.array(inner, dtype=np.int64),
            opens=np.array([bool(one) and one[0] for one in solid], dtype=np.bool_),
            closes=np.array([not one or not one[-1] for one in solid], dtype=np.bool_),
        )

    def counts(
        self, tokens: Integer[np.ndarray, " n"]
    ) -> tuple[Int64[np.ndarray, " n"], Int64[np.ndarray, " n"]]:
        """Bytes and words of each token of a stream that begins a document."""
        new = np.concatenate([[True], self.closes[tokens[:-1]]])
        return self.size[tokens], self.inner[tokens] + (self.opens[tokens] & new)


def units(tokenizer: Tokenizer) -> Units | None:
    """Return the units of a tokenizer's tokens; None if its description does not give bytes."""
    described = tokenizer.describe()
    special = {number: b"" for number in (tokenizer.end_of_text,) if number is not None}
    if described["kind"] == "bytes":
        return Units.of([bytes([byte]) for byte in range(256)] + [b""])
    if described["kind"] == "gpt2":
        return byte_level(gpt2().get_vocab(), tokenizer.vocabulary, special)
    if '"ByteLevel"' not in described.get("json", ""):
        return None
    # The JSON of the package `tokenizers`: added tokens are spelled in characters, not in bytes.
    parsed = json.loads(described["json"])
    for token in parsed["added_tokens"]:
        special.setdefault(token["id"], b"" if token["special"] else token["content"].encode())
    vocabulary = parsed["model"]["vocab"]
    size = max(tokenizer.vocabulary, *(number + 1 for number in [*vocabulary.values(), *special]))
    return byte_level(vocabulary, size, special)


def byte_level(vocabulary: Mapping[str, int], size: int, special: Mapping[int, bytes]) -> Units:
    """Return the units of a byte-level vocabulary; `special` tokens are spelled as they are."""
    whole = [*range(33, 127), *range(161, 173), *range(174, 256)]
    alphabet = {chr(byte): byte for byte in whole}
    rest = sorted(set(range(256)) - set(whole))
    alphabet |= {chr(256 + number): byte for number, byte in enumerate(rest)}
    spelled = [b""] * size
    for text, number in vocabulary.items():
        if number not in special:
            spelled[number] = bytes(alphabet[character] for character in text)
    for number, content in special.items():
        spelled[number] = content
    return Units.of(spelled)


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
    name: str = "the text"
    """What messages call it."""

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
    models: Sequence[Model],
    corpus: str | None = None,
    limit: int | None = None,
    text: str | None = None,
) -> list[HeldOut]:
    """The text of each model, cut to `limit` tokens; models with equal texts share one.

    It is the held-out part of a corpus, or all of `text`.
    """
    if text is not None:
        return _whole_texts(models, text, limit)
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
                name=f"the held-out text of {dataset.corpus}{dataset.share}",
            )
        of_models.append(texts[key])
    return of_models


def _whole_texts(models: Sequence[Model], text: str, limit: int | None) -> list[HeldOut]:
    found: dict[str, HeldOut] = {}
    for model in models:
        tokenizer = model.tokenizer
        if tokenizer is None:
            raise InputError(f"{model.spec.name} has no tokenizer, so it cannot read a text.")
        if tokenizer.fingerprint not in found:
            found[tokenizer.fingerprint] = HeldOut(
                tokens=tokenizer.encode(text)[:limit], corpus="text", units=units(tokenizer)
            )
    # Every model has a tokenizer by now.
    return [found[model.tokenizer.fingerprint] for model in models if model.tokenizer is not None]


def _dataset(model: Model, corpus: str | None, opened: dict[str, Dataset]) -> Dataset:
    if corpus is None:
        if model.dataset is None:
            raise InputError(
                f"{model.spec.name} has no text of its own: give a text or a corpus, such as "
                f"stdlib."
            )
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
    row: EvaluationRow
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
        windows = plan(protocol, len(text.tokens), length, longest, name=text.name)
        row = EvaluationRow(
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
    ) -> EvaluationRow:
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
