"""A corpus opened with a tokenizer: the only place that turns a corpus spec into tokens."""

import os
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Protocol

import numpy as np
from jaxtyping import UInt

from headscape.data.corpus.corpus import Corpus, open_corpus
from headscape.data.corpus.reading import Split
from headscape.data.tokenize.published_tokenizer import PublishedTokenizer
from headscape.data.tokenize.tokenizer import Tokenizer, open_tokenizer
from headscape.data.tokens.shards import open_shards
from headscape.errors import InputError


class CorpusSide(Protocol):
    """One side of a corpus: all its tokens, and where documents begin and end."""

    @property
    def tokens(self) -> UInt[np.ndarray, " n"]:
        """All tokens, end-of-text after each document."""
        ...

    @property
    def offsets(self) -> UInt[np.ndarray, " documents_plus_1"]:
        """Document i is tokens[offsets[i] : offsets[i + 1]]."""
        ...


class EncodedSide:
    """A side whose documents are encoded whole, in memory."""

    def __init__(self, corpus: Corpus, tokenizer: PublishedTokenizer, split: Split) -> None:
        self._corpus, self._tokenizer, self._split = corpus, tokenizer, split

    @cached_property
    def _parts(self) -> list[UInt[np.ndarray, " n"]]:
        last = self._tokenizer.end_of_text
        end = np.array([] if last is None else [last], np.uint32)
        parts = [
            np.concatenate([self._tokenizer.encode(item.text), end])
            for item in self._corpus
            if item.split == self._split
        ]
        if not sum(map(len, parts)):
            raise InputError(f"the {self._split} side of {self._corpus.spec} has no tokens.")
        return parts

    @cached_property
    def tokens(self) -> UInt[np.ndarray, " n"]:
        """All tokens."""
        return np.concatenate(self._parts)

    @cached_property
    def offsets(self) -> UInt[np.ndarray, " documents_plus_1"]:
        """Where each document begins, and the end of the last."""
        return np.cumsum([0, *map(len, self._parts)]).astype(np.uint64)


@dataclass(frozen=True, kw_only=True, eq=False)
class Dataset:
    """A corpus as tokens: documents in a fixed order, end-of-text after each."""

    corpus: str
    """The spec it was opened with: stdlib, a path, hf:NAME."""
    fingerprint: str
    """SHA-256 of the corpus: equal fingerprints mean equal documents in equal order."""
    tokenizer: Tokenizer
    train_side: CorpusSide
    validation_side: CorpusSide

    def __repr__(self) -> str:
        return (
            f"Dataset({self.corpus!r}, {len(self.train):,} training tokens, "
            f"{len(self.validation):,} validation tokens)"
        )

    @property
    def train(self) -> UInt[np.ndarray, " n"]:
        """The training tokens."""
        return self.train_side.tokens

    @property
    def validation(self) -> UInt[np.ndarray, " n"]:
        """The held-out tokens."""
        return self.validation_side.tokens

    @property
    def share(self) -> str:
        """What of a file is held out, for messages: " (466 kB given, 5% held out)"; else ""."""
        path = Path(self.corpus)
        if not path.is_file():
            return ""
        return f" ({path.stat().st_size / 1000:,.0f} kB given, 5% held out)"

    def document(self, number: int) -> UInt[np.ndarray, " n"]:
        """Return the tokens of one validation document, counted from 0."""
        offsets = self.validation_side.offsets
        if not 0 <= number < len(offsets) - 1:
            raise InputError(
                f"validation document must be between 0 and {len(offsets) - 2} for "
                f"{self.corpus}, got {number}."
            )
        return self.validation[int(offsets[number]) : int(offsets[number + 1])]


def open_dataset(corpus: str, tokenizer: Tokenizer | str, cache: Path | None = None) -> Dataset:
    """Open a corpus with a tokenizer, or with the spec of one (bytes, bpe:N, gpt2).

    Tokens are written to `cache` the first time and verified every time. A published tokenizer
    encodes documents whole, in memory, when a side is first used.
    """
    cache = default_cache() if cache is None else cache
    documents = open_corpus(corpus, cache)
    if isinstance(tokenizer, str):
        tokenizer = open_tokenizer(tokenizer, documents, cache)
    train: CorpusSide
    validation: CorpusSide
    if isinstance(tokenizer, PublishedTokenizer):
        train = EncodedSide(documents, tokenizer, "train")
        validation = EncodedSide(documents, tokenizer, "validation")
    else:
        shards = open_shards(documents, tokenizer, cache)
        train, validation = shards.train, shards.validation
    return Dataset(
        corpus=corpus,
        fingerprint=documents.fingerprint(),
        tokenizer=tokenizer,
        train_side=train,
        validation_side=validation,
    )


def default_cache() -> Path:
    """Return the cache folder: $HEADSCAPE_CACHE, or `headscape` in the user's cache folder."""
    if chosen := os.environ.get("HEADSCAPE_CACHE"):
        return Path(chosen)
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "headscape"
