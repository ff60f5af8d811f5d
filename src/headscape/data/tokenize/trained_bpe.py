"""A byte-level BPE trained on the corpus (Sennrich et al., arXiv 1508.07909; bytes as in GPT-2).

It is trained on the first 128 million characters of the training split, always in the same order,
so a corpus always gives the same tokenizer. Of N tokens, 256 are bytes, N - 257 are merges and the
last is end-of-text; a small corpus gives fewer merges, not padding. A tokenizer is stored as JSON,
in the format of the package `tokenizers`.
"""

import hashlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Integer, UInt
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from headscape.data.corpus.corpus import Corpus
from headscape.data.tokenize.byte_level import encoded
from headscape.data.tokenize.byte_tokenizer import END_OF_TEXT
from headscape.errors import InputError
from headscape.io.atomic import write_text
from headscape.io.json_file import read_json

TRAINING_CHARACTERS = 128_000_000
SMALLEST = 257


class TrainedBPE:
    """A trained BPE, from its JSON."""

    def __init__(self, text: str):
        self._json = text
        self._bpe = Tokenizer.from_str(text)
        self.end_of_text = self._bpe.get_vocab_size()
        self.vocabulary = self.end_of_text + 1
        self._dtype = np.dtype(np.uint16 if self.vocabulary <= 1 << 16 else np.uint32)

    def __repr__(self) -> str:
        return f"TrainedBPE(vocabulary={self.vocabulary})"

    @property
    def fingerprint(self) -> str:
        """SHA-256 of the JSON."""
        return hashlib.sha256(self._json.encode()).hexdigest()

    def encode(self, text: str) -> UInt[np.ndarray, " tokens"]:
        """Return the tokens of a text."""
        return encoded(self._bpe, text, self._dtype)

    def decode(self, ids: Integer[np.ndarray, " tokens"]) -> str:
        """Return the text, with end-of-text written as <|endoftext|>."""
        ids = np.asarray(ids)
        ends = np.flatnonzero(ids == self.end_of_text)
        parts = [part[part < self.end_of_text].tolist() for part in np.split(ids, ends)]
        return END_OF_TEXT.join(self._bpe.decode(part) for part in parts)

    def describe(self) -> dict[str, Any]:
        """Return the kind and the JSON of the tokenizer."""
        return {"kind": "bpe", "json": self._json}

    @classmethod
    def load(cls, described: dict[str, Any]) -> "TrainedBPE":
        """Return the tokenizer of a description."""
        text = described.get("json")
        if not isinstance(text, str):
            raise InputError('the description of a trained BPE has no string "json".')
        try:
            return cls(text)
        except Exception as error:
            reason = " ".join(str(error).split())
            raise InputError(f"the trained BPE cannot be read: {reason}.") from error


def trained_on(corpus: Corpus, vocabulary: int, cache: Path | None = None) -> TrainedBPE:
    """Train a BPE on a corpus, or load it from `cache`."""
    if not SMALLEST <= vocabulary <= 1 << 20:
        raise InputError(f"bpe:N needs N between {SMALLEST} and {1 << 20}, got {vocabulary}.")
    if cache is None:
        return TrainedBPE(train(_training_texts(corpus), vocabulary))
    name = f"{corpus.fingerprint()[:16]}-bpe-{vocabulary}.json"
    path = cache / "tokenizers" / name
    text = _stored(path)
    if text is None:
        text = train(_training_texts(corpus), vocabulary)
        sha256 = hashlib.sha256(text.encode()).hexdigest()
        write_text(path, json.dumps({"sha256": sha256, "json": text}))
    return TrainedBPE(text)


def train(texts: Iterator[str], vocabulary: int) -> str:
    """Train a BPE of `vocabulary` tokens, including end-of-text, and return its JSON."""
    bpe = Tokenizer(models.BPE())
    bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    bpe.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary - 1,
        show_progress=False,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
    )
    bpe.train_from_iterator(texts, trainer)
    return str(bpe.to_str())


def _stored(path: Path) -> str | None:
    """Return the JSON of an earlier training; None if it is missing or damaged."""
    try:
        stored = read_json(path)
    except InputError:
        return None
    text = str(stored.get("json"))
    intact = hashlib.sha256(text.encode(errors="replace")).hexdigest() == stored.get("sha256")
    return text if intact else None


def _training_texts(corpus: Corpus) -> Iterator[str]:
    left = TRAINING_CHARACTERS
    for document in corpus:
        if document.split == "train":
            yield document.text[:left]
            left -= len(document.text)
            if left <= 0:
                return
