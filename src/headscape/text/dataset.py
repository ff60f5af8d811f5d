"""A corpus opened with a tokenizer: the only place that turns a corpus spec into tokens."""

import os
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from jaxtyping import UInt

from headscape.errors import InputError
from headscape.text.corpus.corpus import open_corpus
from headscape.text.tokenize.tokenizer import Tokenizer, open_tokenizer
from headscape.text.tokens.shards import Shards, open_shards


@dataclass(frozen=True, kw_only=True, eq=False)
class Dataset:
    """A corpus as tokens: documents in a fixed order, end-of-text after each."""

    corpus: str
    """The spec it was opened with: stdlib, a path, hf:NAME."""
    tokenizer: Tokenizer
    shards: Shards

    def __repr__(self) -> str:
        return (
            f"Dataset({self.corpus!r}, {len(self.train):,} training tokens, "
            f"{len(self.validation):,} validation tokens)"
        )

    @property
    def fingerprint(self) -> str:
        """SHA-256 of the corpus: equal fingerprints mean equal documents in equal order."""
        return self.shards.train.header.corpus

    @property
    def train(self) -> UInt[np.ndarray, " n"]:
        """The training tokens, memory-mapped."""
        return self.shards.train.tokens

    @property
    def validation(self) -> UInt[np.ndarray, " n"]:
        """The held-out tokens, memory-mapped."""
        return self.shards.validation.tokens

    def document(self, number: int) -> UInt[np.ndarray, " n"]:
        """Return the tokens of one validation document, counted from 0."""
        offsets = self.shards.validation.offsets
        if not 0 <= number < len(offsets) - 1:
            raise InputError(
                f"validation document must be between 0 and {len(offsets) - 2} for "
                f"{self.corpus}, got {number}."
            )
        return self.validation[int(offsets[number]) : int(offsets[number + 1])]


def open_dataset(corpus: str, tokenizer: Tokenizer | str, cache: Path | None = None) -> Dataset:
    """Open a corpus with a tokenizer, or with the spec of one (bytes, bpe:N, gpt2).

    Tokens are written to `cache` the first time and verified every time.
    """
    cache = default_cache() if cache is None else cache
    documents = open_corpus(corpus, cache)
    if isinstance(tokenizer, str):
        tokenizer = open_tokenizer(tokenizer, documents, cache)
    return Dataset(
        corpus=corpus, tokenizer=tokenizer, shards=open_shards(documents, tokenizer, cache)
    )


def default_cache() -> Path:
    """Return the cache folder: $HEADSCAPE_CACHE, or `headscape` in the user's cache folder."""
    if "HEADSCAPE_CACHE" in os.environ:
        return Path(os.environ["HEADSCAPE_CACHE"])
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "headscape"
